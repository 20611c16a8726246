"""A loaded model: prepare an image, sample it, predict a scan."""

import json
import warnings

import numpy as np
import pytest
import torch

import phiseg
from helpers.dicom_slices import write_scan
from helpers.known_models import KnownModel, ball, brightest, place
from helpers.small_volumes import CHANNELS, SIZE, write_volumes
from helpers.tiny_models import tiny_phiseg
from phiseg.api.model import Model
from phiseg.core.errors import ConfigError, DataError, ModelError
from phiseg.data.intensity import Intensity, normalise, zscored
from phiseg.data.store import Dataset
from phiseg.imaging.nifti_files import write_nifti
from phiseg.imaging.pictures import fitted
from phiseg.imaging.series import read_series
from phiseg.imaging.volume import Volume
from phiseg.imaging.volume_files import write_volume
from phiseg.inference.preprocessing import Preprocessing
from phiseg.inference.sampling import sample_cases
from phiseg.inference.sampling_options import Sampling
from phiseg.inference.scan_prediction import predict_volume
from phiseg.models import load_model
from phiseg.models.noise import seeded_generator


@pytest.fixture
def model(trained):
    """A tiny 2-D model of images of 16 x 16 pixels of 5.6 mm, with the window 0 to 1."""
    return phiseg.load(str(trained()))


@pytest.fixture
def changed(trained, copy):
    """Return a function that loads the tiny model with another preprocessing."""

    def load(**changes):
        folder = copy(trained() / "model", f"model-{'-'.join(changes)}")
        path = folder / "preprocessing.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
        return phiseg.load(folder)

    return load


def test_load_returns_the_model_of_a_run(model, trained):
    assert model.path == trained() / "model"
    assert model.classes == ("background", "lesion")
    assert repr(model) == f"Model('{model.path}': phiseg, 2 classes, on cpu)"
    assert model.to("cpu") is model
    again = phiseg.load(model)
    assert all(map(torch.equal, again.network.state_dict().values(), model.network.state_dict().values()))


def test_load_in_bfloat16(model, lesions, tmp_path, bfloat16):
    low = phiseg.load(model, precision=bfloat16)
    assert (model.precision, low.precision) == ("float32", "bfloat16")
    image = torch.rand(1, 1, 16, 16, generator=torch.Generator().manual_seed(0)) - 0.5
    exact, found = (one.sample(image, 4) for one in (model, low))
    assert found.dtype == torch.float32
    assert not torch.equal(exact, found)
    torch.testing.assert_close(exact.softmax(2), found.softmax(2), rtol=0, atol=0.05)
    options = {"num_samples": 2, "progress": False}
    scores = phiseg.evaluate(low, lesions, tmp_path / "low", **options)
    assert scores.summary.precision == "bfloat16"
    scores = phiseg.evaluate(low, lesions, tmp_path / "exact", precision="float32", **options)
    assert scores.summary.precision == "float32"


def test_load_names_bundled_models_where_there_is_no_such_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=r"runs/py.*lidc-nodule"):
        phiseg.load("runs/py")
    with pytest.raises(ConfigError, match="device 'cdua'"):
        phiseg.load("lesion-phantom", device="cdua")


# prepare


def test_prepare_applies_the_window_of_the_training(model):
    raw = np.random.default_rng(0).uniform(-0.2, 1.2, (16, 16))
    prepared = model.prepare(raw.tolist())
    assert prepared.shape == (1, 1, 16, 16)
    np.testing.assert_allclose(prepared[0, 0], np.clip(raw, 0, 1) - 0.5, atol=1e-6)


def test_prepared_image_of_a_dataset_is_the_stored_one(model, lesions):
    data = Dataset.open(lesions)
    np.testing.assert_array_equal(model.prepare(data.images[3])[0], data.image(3))


def test_prepare_resamples_to_the_spacing_of_the_training(model):
    rows = np.linspace(0, 1, 32)[:, None].repeat(8, axis=1)  # pixels of 2.8 x 11.2 mm: 16 x 16 pixels of 5.6 mm
    prepared = model.prepare(rows, spacing_mm=(2.8, 11.2))[0, 0]
    assert prepared.shape == (16, 16)
    np.testing.assert_allclose(prepared[:, 3], (np.arange(16) * 2 + 0.5) / 31 - 0.5, atol=1e-6)
    assert model.prepare(rows, spacing_mm=2.8).shape == (1, 1, 16, 4)


def test_prepare_cuts_the_crop_around_a_centre(changed):
    image = np.arange(40 * 40).reshape(40, 40) / 1600
    prepared = changed(centred_on="nodule").prepare(image, centre=(20, 12))
    np.testing.assert_allclose(prepared[0, 0], image[12:28, 4:20] - 0.5, atol=1e-6)


def test_prepare_takes_z_scores_where_the_training_did(changed):
    raw = np.random.default_rng(0).normal(100, 20, (16, 16))
    prepared = changed(intensity={"kind": "image_zscore"}).prepare(raw)
    np.testing.assert_allclose(prepared[0, 0], (raw - raw.mean()) / raw.std(), atol=1e-5)


@pytest.mark.parametrize("kind", ["window", "image_zscore"])
@pytest.mark.parametrize("shape", [(20, 40), (40, 20), (7, 5)])
def test_prepare_resizes_pictures_as_in_training(changed, shape, kind):
    window = Intensity(kind="window", low=0, high=1)
    model = changed(
        is_resized=True, spacing_mm=None, intensity=window.model_dump() if kind == "window" else {"kind": kind}
    )
    picture = np.random.default_rng(0).uniform(size=(1, *shape)).astype(np.float32)
    stored = fitted(picture, (16, 16))
    expected = normalise(stored, window) if kind == "window" else zscored(stored)
    prepared = model.prepare(picture)
    assert prepared.shape == (1, 1, 16, 16)
    np.testing.assert_array_equal(prepared[0], expected)


@pytest.mark.parametrize("shape", [(16,), (2, 16, 16), (1, 1, 16, 16), (0, 16)])
def test_prepare_refuses_another_shape(model, shape):
    with pytest.raises(DataError, match=r"shape \(.*but the model expects \(height, width\)"):
        model.prepare(np.ones(shape))


@pytest.mark.parametrize("spacing", [0, -1.0, (1.0, float("nan")), (1, 0)])
def test_prepare_refuses_a_spacing_that_is_not_positive(model, spacing):
    with pytest.raises(DataError, match="above 0"):
        model.prepare(np.eye(16), spacing_mm=spacing)


def test_prepare_warns_of_another_unit(model):
    with pytest.warns(UserWarning, match="another unit"):
        model.prepare(np.random.default_rng(0).integers(2, 255, (16, 16)))


# sample


def test_sample_repeats_with_the_same_seed(model, lesions):
    image = torch.from_numpy(np.stack([Dataset.open(lesions).image(row) for row in (0, 1)]))
    logits = model.sample(image, 4, seed=7)
    assert logits.shape == (2, 4, 2, 16, 16)
    assert torch.equal(model.sample(image, 4, seed=7), logits)
    torch.testing.assert_close(model.sample(image[:1], 6, seed=7)[:, :4], logits[:1])
    assert not torch.equal(model.sample(image, 4, seed=8), logits)
    torch.testing.assert_close(model.sample(image.numpy(), 4, seed=7, chunk_size=3), logits)


def test_sample_draws_independent_noise_for_other_images(model, lesions, monkeypatch):
    image = torch.from_numpy(np.stack([Dataset.open(lesions).image(row) for row in (0, 1)]))
    whole = model.sample(image, 4, seed=7)
    torch.testing.assert_close(model.sample(image.flip(0), 4, seed=7).flip(0), whole)  # the place does not matter

    def noise(_, num_samples, *, generator, **options):
        return torch.stack([torch.randn(num_samples, generator=one) for one in generator])

    monkeypatch.setattr(model.network, "sample", noise)
    first, second = model.sample(image[:1], 2000, seed=7), model.sample(image[1:], 2000, seed=7)
    correlation = torch.corrcoef(torch.cat([first, second]))[0, 1]
    assert abs(correlation) < 5 / 2000**0.5  # five standard errors
    torch.testing.assert_close(model.sample(image[:1] + 1e-7, 2000, seed=7), first)  # rounding errors
    hounsfield = np.random.default_rng(0).integers(-1000, 401, (50, 1, 16, 16))
    window = torch.from_numpy((hounsfield + 1000) / 1400 - 0.5)
    assert torch.equal(model.sample(window, 2, seed=7), model.sample(window.float() + 1e-7, 2, seed=7))


def test_prepare_refers_volumes_to_predict(model, monkeypatch):
    monkeypatch.setattr(model.network, "config", model.network.config.model_copy(update={"dims": 3}))
    with pytest.raises(ConfigError, match=r"use model\.predict"):
        model.prepare(np.eye(16))


def test_sample_takes_a_generator(model):
    image, generators = torch.zeros(2, 1, 16, 16), [seeded_generator(3, n) for n in range(2)]
    expected = model.network.sample(image, 3, generator=[seeded_generator(3, n) for n in range(2)])
    torch.testing.assert_close(model.sample(image, 3, generator=generators), expected)


def raw(low, high):
    return torch.rand(1, 1, 16, 16, generator=torch.Generator().manual_seed(0)) * (high - low) + low


@pytest.mark.parametrize(
    ("image", "problem"),
    [
        (raw(0, 255), "values from .* to 25"),
        (raw(0, 1), r"values from .*\(-0\.5 to 0\.5\)"),
        (raw(-1000, 400), "values from -9"),
        (raw(0, 255).to(torch.uint8), "integers"),
        (torch.full((1, 1, 16, 16), torch.nan), "NaN"),
    ],
)
def test_sample_notices_a_raw_image(model, image, problem):
    with pytest.raises(DataError, match=problem) as caught:
        model.sample(image, 2)
    assert "NaN" in problem or "model.prepare(image)" in str(caught.value)


def test_sample_notices_a_raw_image_for_a_z_score_model(changed):
    model = changed(intensity={"kind": "zscore"})
    with pytest.raises(DataError, match="standard deviation 1"):
        model.sample(raw(0, 255), 2)
    assert model.sample(raw(-2, 9), 2).shape == (1, 2, 2, 16, 16)


def test_sample_states_the_shape_it_takes(model):
    with pytest.raises(ModelError, match=r"\(batch, 1, height, width\), got \(16, 16\)"):
        model.sample(np.zeros((16, 16)), 2)


def test_sample_agrees_with_the_samples_of_the_dataset(model, lesions, trained):
    data = Dataset.open(lesions)
    (case,) = sample_cases(load_model(trained()), data, [4], num_samples=3, seed=0)
    generator = [seeded_generator(0, "sample", data.cases[4]["case"])]
    logits = model.sample(model.prepare(data.images[4]), 3, generator=generator)
    assert torch.equal(logits[0].argmax(1), case.summary.labels.long())


def test_sample_extends_thin_volumes_as_the_samples_of_a_dataset_do(tmp_path):
    data = write_volumes(tmp_path / "volumes")
    network = tiny_phiseg(channels=(4, 5), num_levels=2, image_channels=CHANNELS, dims=3, steps=0)
    network.preprocessing = Preprocessing.of_dataset(data, patch_size=(9, *SIZE)).to_json()
    (case,) = sample_cases(network, data, [3], num_samples=3, seed=0, keep_probs=True)
    generator = [seeded_generator(0, "sample", data.cases[3]["case"])]
    logits = Model(network, tmp_path).sample(data.image(3)[None], 3, generator=generator)
    torch.testing.assert_close(logits[0].softmax(1), case.probs)


# predict


@pytest.fixture
def volume():
    values = np.random.default_rng(3).uniform(size=(16, 14, 2)).astype(np.float32)
    return Volume(values, np.diag([-5.6, -5.6, 8, 1]))


def test_predict_reads_a_file(model, volume, tmp_path):
    write_nifti(tmp_path / "scan.nii.gz", volume)
    found = model.predict(str(tmp_path / "scan.nii.gz"), num_samples=5, seed=1)
    expected = predict_volume(model.network, volume, sampling=Sampling(num_samples=5, seed=1))
    np.testing.assert_array_equal(found.labels, expected.labels)
    np.testing.assert_array_equal(found.gamma, expected.gamma)
    assert model.predict(volume, num_samples=5).labels.shape == expected.labels.shape


@pytest.fixture
def series(tmp_path):
    """A CT series with slices of 3 mm, 2 mm apart."""
    write_scan(tmp_path / "ct7", PixelSpacing=[5.6, 5.6])
    return tmp_path / "ct7"


def first_channel(image, noise):
    return brightest(image[:, :, :1], noise)


CT_WINDOW = {"kind": "window", "low": -1000, "high": 3000}


def test_predict_refuses_a_series_of_another_modality(changed, series):
    with pytest.raises(DataError, match="ct7 has modality CT, but the model was trained on MR; use a MR series"):
        changed(modality="MR").predict(series)
    with warnings.catch_warnings(action="error"):
        changed(modality="CT", intensity=CT_WINDOW).predict(series, num_samples=2)


def test_predict_warns_of_another_slice_thickness_or_refuses_it(changed, series):
    model = changed(thickness_range_mm=[1.5, 2.5], plane="axial", intensity=CT_WINDOW)
    with pytest.warns(UserWarning, match="ct7: the slices are 3 mm thick, but .* 1.5 to 2.5 mm thick"):
        model.predict(series, num_samples=2)
    with pytest.raises(DataError, match="ct7 has slices 3 mm thick"):
        model.predict(series, resample=False)


def test_predict_warns_of_other_values_or_refuses_them(model, series):
    for scan, name in ((series, "ct7"), (read_series(series).volume, "volume")):
        with pytest.warns(UserWarning, match=rf"{name}: only \S+ of voxels are in the window"):
            model.predict(scan, num_samples=2)
        with pytest.raises(DataError, match=f"{name} is rejected by --strict-intensity: only"):
            model.predict(scan, strict_intensity=True)


def test_predict_warns_of_a_truncated_lesion(tmp_path):
    write_nifti(tmp_path / "a.nii.gz", ball((15, 15, 15), place()))
    model = Model(KnownModel(brightest, centred_on="nodule"), tmp_path)
    with pytest.warns(UserWarning, match=r"a\.nii\.gz: the lesion may be larger than measured"):
        model.predict(tmp_path / "a.nii.gz", point=(7, 7, 7), sampling=Sampling(num_samples=2, reach_mm=1))
    with warnings.catch_warnings(action="error"):
        model.predict(tmp_path / "a.nii.gz", point=(7, 7, 7), num_samples=2)


@pytest.mark.parametrize("suffix", ["nii.gz", "mha"])
def test_predict_reads_channels_on_the_third_axis(tmp_path, suffix):
    """As `phiseg prepare nifti` does for images with labels of one slice."""
    values = np.random.default_rng(0).uniform(-200, 200, (12, 10, 1, 3)).astype(np.float32)
    affine = place(spacing=(1, 1.5, 2))
    write_volume(tmp_path / f"third.{suffix}", Volume(values[:, :, 0], affine))
    model = Model(KnownModel(first_channel, channels=3), tmp_path)
    found = model.predict(tmp_path / f"third.{suffix}", num_samples=2)
    expected = model.predict(Volume(values, affine), num_samples=2)
    np.testing.assert_array_equal(found.labels, expected.labels)
    assert found.volume.grid == (12, 10, 1)
    with pytest.raises(
        DataError, match=r"has 1 channels, but the model takes 4; .* of one file, in the same order"
    ):
        Model(KnownModel(first_channel, channels=4), tmp_path).predict(tmp_path / f"third.{suffix}")


def test_predict_errors_name_the_scan_and_the_fix(model, volume, tmp_path):
    with pytest.raises(DataError, match=r"nowhere\.nii does not exist"):
        model.predict(tmp_path / "nowhere.nii")
    with pytest.raises(ConfigError, match=r"takes no point; predict volume without"):
        model.predict(volume, point=(1, 2, 3))
    with pytest.raises(ConfigError, match="either by name or in sampling"):
        model.predict(volume, seed=1, sampling=Sampling())
    for name in ("a", "b"):
        write_nifti(tmp_path / f"{name}.nii.gz", volume)
    with pytest.raises(DataError, match=r"holds 2 scans; give one of them, or use phiseg\.predict"):
        model.predict(tmp_path)


def test_normalise_is_what_prepare_applies(changed):
    hounsfield = np.random.default_rng(0).integers(-1200, 600, (16, 16)).astype(np.int16)
    window = {"kind": "window", "low": -1000, "high": 400}
    prepared = changed(intensity=window).prepare(hounsfield)
    np.testing.assert_array_equal(prepared[0, 0], normalise(hounsfield, Intensity.parse(window, where="here")))
