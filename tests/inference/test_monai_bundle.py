"""MONAI bundles: MONAI's own tools accept and run them, with the results of phiseg."""

import json
import os
import subprocess
import sys

import nibabel
import numpy as np
import pytest
import torch

from helpers.bundle_runs import AXES, WINDOW, mean_of_samples, prepared, random_volume, run, save_tiny_model
from phiseg.core.errors import DataError, ModelError, OutputError
from phiseg.data.intensity import Intensity, normalise
from phiseg.imaging.frame import Frame, crop
from phiseg.imaging.nifti_files import read_nifti, write_nifti
from phiseg.imaging.volume import Volume, from_slices, to_slices
from phiseg.inference.monai_bundle import Evaluator, MeanPrediction, write_monai_bundle
from phiseg.inference.prepared_stack import PreparedStack
from phiseg.inference.preprocessing import Preprocessing
from phiseg.models.model_folder import load_model
from phiseg.models.temperatures import Calibration


@pytest.fixture
def save(tmp_path):
    """Return a function that writes the folder of a tiny model with three classes."""
    return lambda name="model", **settings: save_tiny_model(tmp_path / name, **settings)


@pytest.fixture
def images(tmp_path):
    """Return a folder for images."""
    (tmp_path / "images").mkdir()
    return tmp_path / "images"


def test_monai_command_matches_phiseg_on_scan_grid(save, images, tmp_path):
    calibration = Calibration(noise=(2.0, 0.5), logits=1.5)
    folder = save(plane="axial", spacing_mm=[5.0, 2.0], calibration=calibration)
    volume = random_volume((4, 11, 13))
    write_nifti(images / "scan.nii.gz", volume)
    bundle = tmp_path / "bundle"
    write_monai_bundle(folder, bundle)
    options = {"config_file": "configs/inference.json", "meta_file": "configs/metadata.json"}
    options |= {"dataset_dir": images, "output_dir": tmp_path / "out", "num_samples": 3, "seed": 5}
    words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    done = subprocess.run(
        [sys.executable, "-m", "monai.bundle", "run", *words],
        cwd=bundle,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr

    model = load_model(folder)
    assert model.calibration == calibration
    slices = to_slices(read_nifti(images / "scan.nii.gz"), "axial").values
    assert slices.shape == (4, 13, 11)
    image = normalise(slices, Intensity(**WINDOW))[:, None]
    expected = np.moveaxis(
        mean_of_samples(model, image, 3, seed=5, case=prepared(tmp_path / "bundle", images)), 1, 3
    )  # (slices, H, W, K)
    mean, labels = (nibabel.load(tmp_path / "out" / f"scan_{name}.nii.gz") for name in ("mean", "labels"))
    np.testing.assert_allclose(mean.affine, AXES, atol=1e-5)
    np.testing.assert_allclose(labels.affine, AXES, atol=1e-5)
    np.testing.assert_allclose(mean.get_fdata(), from_slices(expected, "axial", like=volume).values, atol=1e-5)
    assert labels.get_data_dtype() == np.uint8
    np.testing.assert_array_equal(labels.get_fdata(), mean.get_fdata().argmax(3))
    assert len(np.unique(labels.get_fdata())) > 1


@pytest.mark.parametrize("kind", ["zscore", "image_zscore"])
def test_arrays_without_plane_are_unchanged(kind, save, images, tmp_path):
    folder = save(channels=2, intensity={"kind": kind})
    array = np.random.default_rng(0).normal(40, 7, (2, 9, 14))
    np.save(images / "case.npy", array)
    write_monai_bundle(folder, tmp_path / "bundle")
    written = run(tmp_path / "bundle", images, tmp_path / "out", num_samples=2)
    scored = (array - array.mean((1, 2), keepdims=True)) / array.std((1, 2), keepdims=True)
    (expected,) = mean_of_samples(
        load_model(folder), scored[None].astype(np.float32), 2, case=prepared(tmp_path / "bundle", images)
    )
    found = np.squeeze(written["case_mean.nii.gz"].get_fdata())
    np.testing.assert_allclose(found, np.moveaxis(expected, 0, 2), atol=1e-5)
    np.testing.assert_array_equal(written["case_labels.nii.gz"].get_fdata(), found.argmax(2))


def test_centred_model_predicts_only_the_centre(save, images, tmp_path):
    folder = save(plane="axial", centred_on="nodule")
    image = random_volume((15, 6, 1), np.diag([1.0, 1, 1, 1])).values[..., 0]  # 2-D: x towards Right, y Anterior
    nibabel.save(nibabel.Nifti1Image(image, np.eye(4)), images / "flat.nii")
    write_monai_bundle(folder, tmp_path / "bundle")
    written = run(tmp_path / "bundle", images, tmp_path / "out", num_samples=2)
    shown = normalise(
        image[::-1, ::-1].T, Intensity(**WINDOW)
    )  # (6, 15), anterior above, patient's right at the left
    seen = np.full((10, 8), -0.5, dtype=np.float32)
    seen[2:8] = shown[:, 3:11]
    np.testing.assert_allclose(prepared(tmp_path / "bundle", images)[0, 0].numpy(), seen, atol=1e-6)
    (expected,) = mean_of_samples(
        load_model(folder), seen[None, None], 2, case=prepared(tmp_path / "bundle", images)
    )
    whole = np.zeros((3, 6, 15))
    whole[:, :, 3:11] = expected[:, 2:8]
    found = np.squeeze(written["flat_mean.nii.gz"].get_fdata())
    np.testing.assert_allclose(found, np.moveaxis(whole, 0, 2).transpose(1, 0, 2)[::-1, ::-1], atol=1e-5)
    np.testing.assert_array_equal(np.squeeze(written["flat_labels.nii.gz"].get_fdata()), found.argmax(2))


@pytest.mark.parametrize("centred_on", [None, "nodule"])
def test_slices_have_individual_z_scores_as_in_training(centred_on, save, images, tmp_path):
    folder = save(plane="axial", centred_on=centred_on, intensity={"kind": "image_zscore"})
    volume = random_volume((15, 16, 3), np.diag([-1.0, -1, 2, 1]))
    volume.values[..., 1] += 5000
    write_nifti(images / "scan.nii.gz", volume)
    write_monai_bundle(folder, tmp_path / "bundle")
    stack = PreparedStack.of(volume, Preprocessing.of(load_model(folder)), name="scan")
    shown = prepared(tmp_path / "bundle", images)[0]
    frame = Frame.centred((7.5, 7), (10, 8)) if centred_on else Frame((0, 0), (1, 1), (16, 15))
    expected = stack.images(np.arange(3), frame)[:, 0]
    assert shown.shape == expected.shape
    np.testing.assert_allclose(shown.numpy(), expected, atol=2e-3)
    assert abs(expected[1].mean() - expected[0].mean()) < 0.01


def test_slices_are_resampled_to_training_spacing(save, images, tmp_path):
    """A ramp along the world stays that ramp, wherever its pixels are put."""
    folder = save(plane="coronal", spacing_mm=[1.0, 1.5])
    ramp = random_volume((8, 11, 6))
    places = ramp.world(np.stack(np.meshgrid(*map(np.arange, ramp.grid), indexing="ij"), axis=-1))
    write_nifti(images / "ramp.nii.gz", Volume((places @ [3.0, 2.0, 20.0]).astype(np.float32), AXES))
    write_monai_bundle(folder, tmp_path / "bundle")
    shown = prepared(tmp_path / "bundle", images)
    np.testing.assert_allclose(np.linalg.norm(shown.affine[:3, :3], axis=0), [5, 1, 1.5], atol=1e-6)
    assert shown.shape[1] == 6
    voxels = np.stack(np.meshgrid(*map(np.arange, shown.shape[1:]), indexing="ij"), axis=-1)
    world = voxels @ shown.affine[:3, :3].numpy().T + shown.affine[:3, 3].numpy()
    expected = normalise(world @ [3.0, 2.0, 20.0], Intensity(**WINDOW))
    inside = (slice(None), slice(1, -1), slice(1, -1))  # beyond the border, the last value is repeated
    np.testing.assert_allclose(shown[0].numpy()[inside], expected[inside], atol=1e-4)
    assert np.ptp(expected[inside]) > 0.1

    written = run(tmp_path / "bundle", images, tmp_path / "out", num_samples=2)
    mean, labels = written["ramp_mean.nii.gz"], written["ramp_labels.nii.gz"]
    assert (mean.shape, labels.shape) == ((8, 11, 6, 3), (8, 11, 6))
    for image in (mean, labels):
        np.testing.assert_allclose(image.affine, AXES, atol=1e-5)
    np.testing.assert_allclose(mean.get_fdata().sum(3), 1, atol=1e-5)
    np.testing.assert_array_equal(labels.get_fdata(), mean.get_fdata().argmax(3))


def test_bundle_input_matches_predict(save, images, tmp_path):
    """On noise beyond the window, which clips to other images before than after resampling."""
    folder = save(plane="axial", spacing_mm=[3.0, 1.25])
    volume = random_volume((3, 11, 13))
    write_nifti(images / "noise.nii.gz", volume)
    write_monai_bundle(folder, tmp_path / "bundle")
    shown = prepared(tmp_path / "bundle", images)
    stack = PreparedStack.of(volume, Preprocessing.of(load_model(folder)), name="noise")
    to_slice = np.linalg.inv(stack.stack.affine) @ shown.affine.numpy()  # from the bundle's pixels
    np.testing.assert_allclose(np.diag(to_slice)[1:3], stack.step, atol=1e-6)
    frame = Frame(tuple(to_slice[1:3, 3]), stack.step, shown.shape[2:])
    expected = stack.images(np.arange(3), frame)[:, 0]
    inside = (slice(None), slice(1, -1), slice(1, -1))  # beyond the border, the last value is repeated
    np.testing.assert_allclose(shown[0].numpy()[inside], expected[inside], atol=1e-4)
    clipped_first = crop(normalise(stack.stack.values[..., 0], Intensity(**WINDOW)), frame, interpolation="linear")
    assert np.abs(clipped_first - expected)[inside].max() > 0.1


def test_stack_neighbours_matches_the_context_of_predict(save, images, tmp_path):
    folder = save(plane="axial", channels=2, context=2)
    affine = np.diag([-1.0, -1, 2, 1])
    volume = random_volume((8, 10, 6, 2), affine)
    write_nifti(images / "scan.nii.gz", volume)
    write_monai_bundle(folder, tmp_path / "bundle")
    stack = PreparedStack.of(volume, Preprocessing.of(load_model(folder)), name="scan")
    expected = stack.images(np.arange(6), Frame((0, 0), (1, 1), (10, 8)), context=2)  # (6, 10, 10, 8)
    shown = prepared(tmp_path / "bundle", images).numpy()
    np.testing.assert_allclose(shown, expected.swapaxes(0, 1), atol=1e-5)
    assert np.abs(expected[2, 2:4] - expected[2, :2]).max() > 0.1

    written = run(tmp_path / "bundle", images, tmp_path / "out", num_samples=2)
    found = written["scan_mean.nii.gz"]
    np.testing.assert_allclose(found.affine, affine, atol=1e-5)
    means = mean_of_samples(
        load_model(folder), expected, 2, case=prepared(tmp_path / "bundle", images)
    )  # (6, 3, 10, 8)
    np.testing.assert_allclose(found.get_fdata(), means.transpose(3, 2, 0, 1), atol=1e-5)
    assert "| neighbouring slices | 2 on each side" in (tmp_path / "bundle" / "docs" / "README.md").read_text()


def test_monai_accepts_the_network_and_loads_its_weights(save, tmp_path, monkeypatch):
    from monai.bundle import load, verify_net_in_out

    bundle = tmp_path / "bundle"
    write_monai_bundle(save(), bundle)
    monkeypatch.chdir(bundle)
    files = {"config_file": "configs/inference.json", "meta_file": "configs/metadata.json"}
    verify_net_in_out("network_def", **files, device="cpu")
    with pytest.raises(ValueError, match="output channel number"):  # it does look
        verify_net_in_out(
            "network_def", **files, device="cpu", **{"_meta_#network_data_format#outputs#pred#num_channels": 2}
        )
    loaded = load("bundle", bundle_dir=tmp_path, workflow_type="inference", device="cpu")
    for name, weight in load_model(bundle / "models" / "phiseg").state_dict().items():
        assert torch.equal(loaded.state_dict()[f"model.{name}"], weight)


def test_metadata_satisfies_monai_schema(save, tmp_path):
    """MONAI takes a schema that is there instead of downloading it: here, one with the same requirements."""
    from monai.bundle import verify_metadata

    tensor = ["type", "format", "num_channels", "spatial_shape", "dtype", "value_range"]
    described = {
        "type": "object",
        "minProperties": 1,
        "additionalProperties": {"type": "object", "required": tensor},
    }
    text = ["schema", "version", "monai_version", "pytorch_version", "numpy_version", "task", "description"]
    text += ["authors", "copyright", "data_source", "data_type", "image_classes", "pred_classes", "intended_use"]
    schema = {
        "type": "object",
        "required": [*text, "required_packages_version", "network_data_format"],
        "properties": {
            **{name: {"type": "string"} for name in text},
            "required_packages_version": {"type": "object", "required": ["phiseg"]},
            "network_data_format": {
                "type": "object",
                "required": ["inputs", "outputs"],
                "properties": {"inputs": described, "outputs": described},
            },
        },
    }
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    write_monai_bundle(save(), tmp_path / "bundle")
    path = tmp_path / "bundle" / "configs" / "metadata.json"
    verify_metadata(meta_file=str(path), filepath=str(tmp_path / "schema.json"))
    metadata = json.loads(path.read_text())
    assert metadata["network_data_format"]["outputs"]["pred"]["channel_def"]["2"] == "rim"
    del metadata["task"]
    path.write_text(json.dumps(metadata))
    with pytest.raises(ValueError, match="task"):
        verify_metadata(meta_file=str(path), filepath=str(tmp_path / "schema.json"))


def test_mean_is_independent_of_batch_and_chunks(save):
    folder = str(save())
    image = torch.rand(3, 1, 10, 8) - 0.5
    together = MeanPrediction(folder, num_samples=5)(image)
    alone = torch.cat([MeanPrediction(folder, num_samples=5, chunk_size=2)(part[None]) for part in image])
    torch.testing.assert_close(together, alone)
    assert not torch.allclose(together, MeanPrediction(folder, num_samples=5, seed=1)(image), atol=1e-4)


def test_images_have_independent_noise(save):
    """The network sees zeros instead of each image, so that only the noise can differ."""
    network, found = MeanPrediction(str(save()), num_samples=1), []
    first, second = torch.rand(2, 1, 10, 8) - 0.5
    Evaluator(
        [{"image": image} for image in (first, second, first)],
        network,
        lambda image, network: network(torch.zeros_like(image)),
        lambda item: found.append(item["pred"]),
        torch.device("cpu"),
    ).run()
    assert torch.equal(found[0], found[2])
    assert (found[0] - found[1]).abs().max() > 1e-3


def test_uncalibrated_bundle_omits_temperatures(save, tmp_path):
    folder = save(calibration=Calibration(logits=3.0))
    (folder / "README.md").unlink()  # nobody needs it
    write_monai_bundle(folder, tmp_path / "with")
    write_monai_bundle(folder, tmp_path / "without", calibrated=False)
    assert load_model(tmp_path / "with" / "models" / "phiseg").calibration.logits == 3
    assert load_model(tmp_path / "without" / "models" / "phiseg").calibration.logits == 1


def test_readme_describes_network_input(save, tmp_path):
    write_monai_bundle(
        save(plane="axial", spacing_mm=[0.7, 0.7], centred_on="nodule", modality="CT"), tmp_path / "bundle"
    )
    text = (tmp_path / "bundle" / "docs" / "README.md").read_text()
    for words in (
        "axial",
        "| modality | CT |",
        "resampled to 0.7 x 0.7 mm",
        "-100 to 300",
        "centred on a nodule",
        "Not a medical device",
    ):
        assert words in text
    assert "{" not in text


@pytest.mark.parametrize("plane", ["axial", None])
def test_spacing_range_is_stated(plane, save, tmp_path):
    write_monai_bundle(save(plane=plane, spacing_range_mm=[0.5, 0.8]), tmp_path / "bundle")
    text = (tmp_path / "bundle" / "docs" / "README.md").read_text()
    assert "0.5 to 0.8 mm in training" in text
    metadata = json.loads((tmp_path / "bundle" / "configs" / "metadata.json").read_text())
    assert metadata["image_classes"].endswith("pixels of 0.5 to 0.8 mm")


def test_unsupported_model_is_rejected_in_one_line(save, tmp_path):
    with pytest.raises(ModelError, match="'auto'"):
        write_monai_bundle(save(plane="auto"), tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()
    folder = save("other")
    (tmp_path / "mine" / "configs").mkdir(parents=True)
    (tmp_path / "mine" / "configs" / "metadata.json").write_text("{}")  # a bundle of another program
    with pytest.raises(OutputError, match="not a result of phiseg"):
        write_monai_bundle(folder, tmp_path / "mine", overwrite=True)
    write_monai_bundle(folder, tmp_path / "bundle")
    with pytest.raises(OutputError, match="already exists"):
        write_monai_bundle(folder, tmp_path / "bundle")
    write_monai_bundle(folder, tmp_path / "bundle", overwrite=True)


def test_run_without_images_is_rejected(save):
    network = MeanPrediction(str(save()))
    with pytest.raises(DataError, match="no images"):
        Evaluator([], network, None, None, torch.device("cpu")).run()
