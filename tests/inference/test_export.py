"""ONNX export: onnxruntime and torch.export give the samples of `Segmenter.sample` from the same noise."""

import json
import shutil

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import phiseg
from phiseg.cli import main as main_module
from phiseg.core.errors import ConfigError, ModelError, OutputError
from phiseg.inference import export as export_module
from phiseg.inference.export import INTENDED_USE, OneSample, export_onnx
from phiseg.models.model_folder import load_model, save_calibration, save_model
from phiseg.models.noise import draw_noise, seeded_generator
from phiseg.models.registry import MODELS, build_model
from phiseg.models.temperatures import Calibration

SIZE = (10, 8)
PREPROCESSING = {
    "classes": ["background", "lesion"],
    "image_channels": 1,
    "size": list(SIZE),
    "spacing_mm": [0.5, 0.5],
    "intensity": {"kind": "window", "low": -1000.0, "high": 400.0},
    "plane": "axial",
    "centred_on": "nodule",
}


@pytest.fixture
def save(make_recipe, tmp_path):
    """Return a function that writes the folder of a tiny model with temperatures far from 1."""

    def save(name="phiseg", *, patch_size=None, **settings):
        torch.manual_seed(0)
        model = build_model(make_recipe(name, settings=settings).model).eval()
        folder = tmp_path / f"{name}-model"
        save_model(
            folder,
            model,
            preprocessing=PREPROCESSING | {"patch_size": patch_size},
            provenance={"recipe": f"tiny-{name}"},
            card="# A card\n",
        )
        factors = tuple(1.7 - 0.5 * level if takes else 1.0 for level, takes in enumerate(model.takes_temperature))
        save_calibration(folder, Calibration(noise=factors, logits=2.5), fit={})
        return folder

    return save


def drawn(model, number, size=SIZE, seed=4):
    """Return images, the noise of one sample of each, and the logits that `sample` draws with that noise."""
    image = torch.rand(number, 1, *size, generator=seeded_generator(seed)) - 0.5
    noise = draw_noise(model.noise_shapes(size), number, 1, [seeded_generator(seed, row) for row in range(number)])
    logits = model.sample(image, 1, generator=[seeded_generator(seed, row) for row in range(number)])[:, 0]
    return image, [level[:, 0] for level in noise], logits


def run_onnx(path, image, noise):
    """Return logits and probabilities as onnxruntime computes them."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    inputs = {"image": image.numpy()} | {f"noise_{level}": part.numpy() for level, part in enumerate(noise)}
    assert {value.name for value in session.get_inputs()} == set(inputs)
    return session.run(["logits", "probs"], inputs)


@pytest.mark.parametrize("name", MODELS)
def test_exported_module_matches_sample(save, name):
    model = load_model(save(name))
    image, noise, expected = drawn(model, 3)
    logits, probs = OneSample(model)(image, *noise)
    torch.testing.assert_close(logits, expected)
    torch.testing.assert_close(probs, expected.softmax(1))


@pytest.mark.slow  # a trace takes seconds, however small the model; the command's test makes one of PHiSeg
@pytest.mark.parametrize("name", MODELS)
def test_onnxruntime_draws_what_sample_draws(save, name, tmp_path):
    folder, path = save(name), tmp_path / "model.onnx"
    model = load_model(folder)
    inputs = export_onnx(folder, path)
    assert inputs == ("image", *(f"noise_{level}" for level in range(len(model.noise_shapes(SIZE)))))
    for number in (1, 3):
        image, noise, expected = drawn(model, number)
        logits, probs = run_onnx(path, image, noise)
        np.testing.assert_allclose(logits, expected.numpy(), atol=1e-4)
        np.testing.assert_allclose(probs, expected.softmax(1).numpy(), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_torch_export_matches_sample(save, name):
    model = load_model(save(name))
    exported = OneSample(model).export(SIZE).module()
    for number in (1, 3):
        image, noise, expected = drawn(model, number)
        torch.testing.assert_close(exported(image, *noise)[0], expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "extra"),
    [("phiseg", {"presence": True, "norm": "group"}), ("probunet", {}), ("unet", {}), ("ssn", {})],
    ids=str,
)
def test_onnxruntime_draws_volumes(save, name, extra, tmp_path):
    """Sizes that need padding along every axis, strides that differ, and two slices at the coarsest level."""
    axes = {"dims": 3, "strides": ((1, 2, 2), (2, 2, 2)), "kernels": ((1, 3, 3), (3, 3, 3), (3, 3, 3))}
    extra = extra | ({"num_levels": 2} if name == "phiseg" else {})
    folder, path = save(name, channels=[3, 4, 4], patch_size=[3, 6, 7], **axes, **extra), tmp_path / "model.onnx"
    model = load_model(folder)
    for size in (None, (4, 8, 5)):
        export_onnx(folder, path, size=size, overwrite=True)
        for number in (1, 3):
            image, noise, expected = drawn(model, number, size=size or (3, 6, 7))
            logits, probs = run_onnx(path, image, noise)
            assert logits.shape == (number, 2, *(size or (3, 6, 7)))
            np.testing.assert_allclose(logits, expected.numpy(), atol=1e-4)
            np.testing.assert_allclose(probs, expected.softmax(1).numpy(), atol=1e-5)


def test_size_must_have_the_dimensions_of_the_model(save, tmp_path):
    folder = save(dims=3, channels=[3, 4], num_levels=2)
    with pytest.raises(ConfigError, match="size 8 x 8 is invalid; give slices, height and width, each at least 1"):
        export_onnx(folder, tmp_path / "model.onnx", size=(8, 8))


def test_command_exports_size_and_bundle_without_temperatures(save, cli, tmp_path, monkeypatch):
    monkeypatch.setitem(main_module.COMMANDS, "export", ("export", ""))
    folder = save(channels=[3, 4], presence=True)
    path, bundle = tmp_path / "new" / "model.onnx", tmp_path / "bundle"
    done = cli("export", folder, "--onnx", path, "--size", 9, 7, "--uncalibrated", "--monai-bundle", bundle)
    assert (done.code, done.err) == (0, "")
    model = load_model(folder, calibrated=False)
    for number in (1, 3):
        image, noise, expected = drawn(model, number, size=(9, 7))
        np.testing.assert_allclose(run_onnx(path, image, noise)[0], expected.numpy(), atol=1e-4)
    assert not (bundle / "models" / "phiseg" / "calibration.json").exists()

    recipe = "\n".join(line[2:] for line in done.out.split(str(bundle))[0].splitlines()[1:])
    names = {"onnxruntime": onnxruntime, "numpy": np, "image": image.numpy()}
    exec(recipe, names)  # what it prints is Python that runs
    assert names["probs"].shape == (3, 2, 9, 7)
    assert f"cd {bundle}" in done.out

    proto = onnx.load(path)
    onnx.checker.check_model(proto, full_check=True)
    assert proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    metadata = {entry.key: entry.value for entry in proto.metadata_props}
    assert json.loads(metadata["classes"]) == ["background", "lesion"]
    assert PREPROCESSING.items() <= json.loads(metadata["preprocessing"]).items()
    assert json.loads(metadata["noise_names"]) == ["level 1", "level 2", "presence"]
    assert json.loads(metadata["calibration"]) == {"noise": [], "logits": 1, "margin": None}
    assert (metadata["phiseg_version"], metadata["recipe"]) == (phiseg.__version__, "tiny-phiseg")
    assert metadata["intended_use"] == INTENDED_USE
    assert b".py" not in path.read_bytes()  # no stack traces with the paths of this machine

    again = cli("export", folder, "--onnx", path)
    assert again.code == 2
    assert again.err.startswith("phiseg: error: ")
    assert "already exists" in again.err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "give --onnx FILE, --monai-bundle DIR or both"),
        (["--monai-bundle", "new", "--size", "8", "8"], "--size applies to --onnx FILE only"),
        (["--onnx", "new", "--size", "0", "8"], "size 0 x 8"),
        (["--onnx", "new", "--size", "2", "8", "8"], "size 2 x 8 x 8 is invalid; give height and width"),
    ],
)
def test_command_errors_are_one_line(save, cli, monkeypatch, tmp_path, words, reason):
    monkeypatch.setitem(main_module.COMMANDS, "export", ("export", ""))
    folder = save()
    monkeypatch.chdir(tmp_path)
    done = cli("export", folder, *words)
    assert done.code == 2
    assert reason in done.err
    assert done.err.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_missing_packages_error_shows_install_command(save, monkeypatch, tmp_path):
    monkeypatch.setattr(export_module, "find_spec", lambda name: None if name == "onnxscript" else object())
    with pytest.raises(ConfigError, match=r"requires onnxscript; run: pip install 'phiseg\[onnx\]'"):
        export_onnx(save(), tmp_path / "model.onnx")


def test_untraceable_model_is_rejected_with_reason(save, monkeypatch, tmp_path):
    def decode(self, encoding, noise, num_samples):
        return noise[0] if noise[0].sum() > 0 else -noise[0]  # a choice by value: no graph can hold it

    monkeypatch.setattr(MODELS["phiseg"], "decode_samples", decode)
    with pytest.raises(ModelError, match=r"'phiseg' cannot be exported \(torch.export: \S+") as caught:
        export_onnx(save(), tmp_path / "model.onnx")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "model.onnx").exists()


def test_existing_file_is_not_overwritten(save, tmp_path):
    (tmp_path / "model.onnx").write_text("mine")
    with pytest.raises(OutputError, match="already exists"):
        export_onnx(save(), tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx").read_text() == "mine"


def test_copied_model_folder_draws_the_same(trained, tmp_path):
    run = trained()
    original = load_model(run)
    moved = tmp_path / "elsewhere" / "with another name"
    shutil.copytree(run / "model", moved)
    copied = load_model(moved)
    _, _, expected = drawn(original, 2, size=(16, 16))
    assert torch.equal(drawn(copied, 2, size=(16, 16))[2], expected)
    assert (copied.preprocessing, copied.provenance) == (original.preprocessing, original.provenance)
    for path in moved.iterdir():
        assert str(run).encode() not in path.read_bytes()  # nothing leads back to where it was
