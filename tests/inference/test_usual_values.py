"""A crop that does not look like the training images is noticed, and the reason names values of the scan."""

import json
import re
from pathlib import Path

import nibabel
import numpy as np
import pytest

from helpers.known_models import KnownModel, brightest, place
from phiseg.data.intensity import Intensity, normalise
from phiseg.data.writer import Case, write_dataset
from phiseg.imaging.series import read_series
from phiseg.imaging.volume import Volume
from phiseg.inference.case_folders import predict_scans
from phiseg.inference.points import Point
from phiseg.inference.prediction_jobs import list_prediction_jobs
from phiseg.inference.preprocessing import Preprocessing
from phiseg.inference.sampling_options import Sampling
from phiseg.inference.scan_prediction import predict_volume
from phiseg.inference.scans import find_scans
from phiseg.inference.usual_values import MAX_IMAGES, UsualValues

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
SERIES = SHARED / "lidc_dicom" / "LIDC-IDRI-0003" / "01-01-2000-94866" / "3000611-03264"
WINDOW = Intensity(kind="window", low=-1000, high=400)
SIZE = 24


def nodule(random, *, noise=30):
    """Lung at -850 with a nodule in the middle, and in some crops the chest wall."""
    rows, columns = np.mgrid[:SIZE, :SIZE] - (SIZE - 1) / 2
    image = np.full((SIZE, SIZE), -850.0)
    image[np.hypot(rows, columns) < random.uniform(2, 8)] = random.uniform(-100, 100)
    image[columns > random.uniform(2, SIZE)] = 50
    return image + random.normal(0, noise, image.shape)


def seen(image):
    return normalise(np.asarray(image, dtype=np.float32)[None], WINDOW)


@pytest.fixture(scope="module")
def usual():
    random = np.random.default_rng(0)
    return UsualValues.of([seen(nodule(random)) for _ in range(400)])


def test_few_other_training_images_are_unusual(usual):
    random = np.random.default_rng(1)
    flagged = [usual.why_unusual(seen(nodule(random)), WINDOW) is not None for _ in range(400)]
    assert np.mean(flagged) < 0.03


@pytest.mark.parametrize(
    ("mean", "noise", "above"),
    [
        pytest.param(-1000, 8, False, id="air"),
        pytest.param(60, 20, True, id="soft tissue all around"),
        pytest.param(500, 150, True, id="MR from 0 to 1000"),
    ],
)
def test_other_tissue_or_modality_is_unusual(usual, mean, noise, above):
    random = np.random.default_rng(2)
    for _ in range(20):
        image = random.normal(mean, noise, (SIZE, SIZE))
        reason = usual.why_unusual(seen(image), WINDOW)
        assert reason.startswith("the image around the point does not look like the model's training images")
        numbers = re.search(
            r"the (\d+)th percentile of the crop is (-?\d+); in 99.8 % .* between (-?\d+) and (-?\d+)\)", reason
        )
        share, here, low, high = map(int, numbers.groups())
        assert here == pytest.approx(np.percentile(np.clip(image, -1000, 400), share), abs=1)
        assert here > high if above else here < low


def test_range_is_from_training_images():
    """Constant images: every percentile is the value itself."""
    values = np.linspace(-700, -300, 201)
    usual = UsualValues.of([seen(np.full((4, 4), value)) for value in values])
    for value in (-695, -500, -305):
        assert usual.why_unusual(seen(np.full((4, 4), value)), WINDOW) is None
    reason = usual.why_unusual(seen(np.full((4, 4), -250)), WINDOW)
    assert "is -250; in 99.8 % of the training images it is between -700 and -300" in reason


def test_rare_combination_of_percentiles_is_unusual():
    """Each value alone is usual, but training images are constant and this one is a ramp."""
    usual = UsualValues.of([seen(np.full((4, 4), value)) for value in np.linspace(-700, -300, 201)])
    ramp = np.linspace(-690, -310, 16).reshape(4, 4)
    reason = usual.why_unusual(seen(ramp), WINDOW)
    assert "a combination rarer than in 99.5 % of the training images" in reason
    assert f"50th percentile {np.median(ramp):.0f}" in reason


def test_few_training_images_decide_nothing():
    random = np.random.default_rng(0)
    assert UsualValues.of([seen(nodule(random)) for _ in range(49)]) is None


def test_z_scores_are_named_as_such():
    random = np.random.default_rng(0)
    usual = UsualValues.of([random.normal(0, 1, (1, 8, 8)).astype(np.float32) for _ in range(100)])
    reason = usual.why_unusual(np.full((1, 8, 8), 7, np.float32), Intensity(kind="zscore"))
    assert "is 7.00 (z-score)" in reason


def dataset(folder, *, number, centred_on):
    """Nodules for training, and air for validation, which must not count."""
    random = np.random.default_rng(5)
    nothing, looked = np.zeros((1, SIZE, SIZE)), np.array([True])
    air = np.full((1, SIZE, SIZE), -1000)
    train = [Case(f"t{n}", f"t{n}", nodule(random)[None], nothing, looked) for n in range(number)]
    val = [Case(f"v{n}", f"v{n}", air, nothing, looked) for n in range(60)]
    return write_dataset(
        folder,
        name="nodules",
        classes=("background", "nodule"),
        num_annotators=1,
        image_shape=(1, SIZE, SIZE),
        image_dtype=np.int16,
        intensity=WINDOW,
        cases=[*train, *val],
        splits={"train": [case.patient for case in train], "val": [case.patient for case in val]},
        centred_on=centred_on,
    )


def test_usual_values_are_stored_with_the_model(tmp_path):
    prepared = dataset(tmp_path / "data", number=MAX_IMAGES + 40, centred_on="nodule")
    stored = Preprocessing.of_dataset(prepared)
    restored = Preprocessing.parse(json.loads(json.dumps(stored.model_dump(mode="json"))), where="a test")
    assert restored == stored == Preprocessing.of_dataset(prepared)  # always of the same images
    random = np.random.default_rng(6)
    flagged = [restored.usual_values.why_unusual(seen(nodule(random)), WINDOW) for _ in range(200)]
    assert np.mean([reason is not None for reason in flagged]) < 0.04
    assert restored.usual_values.why_unusual(seen(np.full((SIZE, SIZE), -1000)), WINDOW)


def test_whole_slices_have_no_usual_values(tmp_path):
    prepared = dataset(tmp_path / "data", number=60, centred_on=None)
    assert Preprocessing.of_dataset(prepared).usual_values is None


@pytest.fixture
def scan(usual):
    """A scan with a nodule in lung on its left, and soft tissue on its right; and a model that knows nodules."""
    random = np.random.default_rng(3)
    values = np.full((80, 40, 5), 40.0)
    values[:40] = -850
    values[17:23, 17:23, 1:4] = 30
    values += random.normal(0, 30, values.shape)
    model = KnownModel(
        brightest,
        size=(SIZE, SIZE),
        centred_on="nodule",
        plane="axial",
        intensity=WINDOW.model_dump(),
        usual_values=usual.model_dump(mode="json"),
    )
    return model, Volume(values.astype(np.float32), place())


def test_prediction_warns_about_unusual_crop(scan):
    model, volume = scan
    sampling = Sampling(num_samples=1)
    assert predict_volume(model, volume, point=(20, 20, 2), sampling=sampling).unusual is None
    assert "training images" in predict_volume(model, volume, point=(62, 20, 2), sampling=sampling).unusual


@pytest.fixture
def predict(scan, tmp_path):
    """Return a function that predicts a point in the lung (a) and one in soft tissue (a-2)."""
    model, volume = scan
    source = tmp_path / "a.nii.gz"
    nibabel.save(nibabel.Nifti1Image(volume.values, volume.affine), source)
    jobs = list_prediction_jobs(find_scans([source])[0], [Point(20, 20, 2), Point(62, 20, 2)], {})
    sampling = Sampling(num_samples=1, reach_mm=0)

    def predict(out, **options):
        return predict_scans(
            model, jobs, out, sampling=sampling, identity={}, draw=lambda *_: b"", progress=False, **options
        )

    return predict


def test_doubts_are_printed_and_stored(predict, tmp_path, capsys):
    assert predict(tmp_path / "out") == {}
    usual, unusual = (json.loads((tmp_path / "out" / name / "summary.json").read_text()) for name in ("a", "a-2"))
    assert (usual["unusual"], unusual["unusual"]) == (False, True)
    reason = "the image around the point does not look like the model's training images"
    assert not any(reason in line for line in usual["warnings"])
    assert any(reason in line for line in unusual["warnings"])
    assert f"phiseg: a-2: {reason}" in capsys.readouterr().err


def test_strict_intensity_rejects_unusual_points_before_sampling(scan, predict, tmp_path, capsys):
    model, _ = scan
    failed = predict(tmp_path / "strict", strict_intensity=True)
    assert [path.name for path in (tmp_path / "strict").iterdir()] == list({"a", "a-2"} - failed.keys()) == ["a"]
    assert failed["a-2"].startswith("a-2 is rejected by --strict-intensity: the image around the point")
    assert f"phiseg: skipped a-2: {failed['a-2']}" in capsys.readouterr().err
    number = len(model.seen)
    predict(tmp_path / "out")
    assert len(model.seen) == 3 * number  # a-2 was not sampled at all
    for path in (tmp_path / "strict" / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "out" / "a" / path.name).read_bytes()


@pytest.mark.skipif(not SERIES.is_dir(), reason="needs ../shared/data with LIDC-IDRI")
def test_lidc_crops_differ_from_air_and_mediastinum():
    with np.load(SHARED / "lidc_slices128.npz") as arrays:
        images, split = arrays["images"][:, 32:96, 32:96], arrays["split"]
    images = images.astype(np.float32) * 1400 / 255 - 1000
    random = np.random.default_rng(0)
    train = random.choice(np.flatnonzero(split == "train"), MAX_IMAGES, replace=False)
    usual = UsualValues.of([seen(images[row]) for row in train])
    val = [usual.why_unusual(seen(image), WINDOW) is not None for image in images[split == "val"]]
    assert np.mean(val) < 0.03
    values = read_series(SERIES).volume.values  # column, row, slice

    def flagged(column, row, number):
        crop = values[column - 32 : column + 32, row - 32 : row + 32, number].T
        return usual.why_unusual(seen(crop), WINDOW) is not None

    assert not flagged(368, 351, 77)  # two nodules
    assert not flagged(307, 198, 83)
    assert flagged(80, 60, 77)  # air beside the patient
    assert flagged(250, 240, 58)  # mediastinum
