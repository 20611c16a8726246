"""Scans are prepared as the training images were, or rejected if modality or values do not match."""

import json
import tracemalloc

import numpy as np
import pytest
from PIL import Image

from helpers.known_models import KnownModel, brightest, place
from helpers.small_volumes import SPACING_MM, write_volumes
from phiseg.core.bundled import bundled_models
from phiseg.core.errors import DataError
from phiseg.data.store import Dataset
from phiseg.imaging.frame import Frame
from phiseg.imaging.volume import Volume
from phiseg.inference.prepared_stack import PreparedStack
from phiseg.inference.preprocessing import Preprocessing
from phiseg.inference.scans import ScanFile, read_scan
from phiseg.models import load_model

WINDOW = {"kind": "window", "low": -1000, "high": 400}


def prepared(values, *, trained_on=None, intensity=WINDOW, **options):
    model = KnownModel(brightest, modality=trained_on, intensity=intensity)
    volume = Volume(np.asarray(values, dtype=np.float32).reshape(10, 10, -1), place())
    return PreparedStack.of(volume, Preprocessing.of(model), name="scan7", **options)


def test_series_of_another_modality_is_rejected():
    scan = np.linspace(-900, 300, 200)
    with pytest.raises(DataError, match="scan7 has modality MR, but the model was trained on CT; use a CT series"):
        prepared(scan, modality="MR", trained_on="CT")
    with pytest.raises(DataError, match=r"scan7 has modality \(none\), but the model was trained on CT"):
        prepared(scan, modality="", trained_on="CT")


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_single_voxel_that_is_not_finite_is_rejected(wrong):
    scan = np.linspace(-900, 300, 200)
    scan[77] = wrong
    with pytest.raises(DataError, match="scan7 has NaN or infinite voxels"):
        prepared(scan)


def test_checks_of_a_scan_need_little_memory():
    scan = np.linspace(-900, 300, 400_000, dtype=np.float32).reshape(10, 10, -1)
    tracemalloc.start()
    prepared(scan)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < scan.nbytes / 8


@pytest.mark.parametrize(("modality", "trained_on"), [("CT", "CT"), (None, "CT"), ("MR", None)])
def test_unknown_modality_accepts_any_scan(modality, trained_on):
    """A NIfTI file does not tell its modality, and not every model does."""
    assert prepared(np.linspace(-900, 300, 200), modality=modality, trained_on=trained_on).warnings == ()


@pytest.mark.parametrize("inside", [0, 1, 2, 3, 100])
def test_values_outside_window_give_warning(inside):
    """Those on its edges are what others clipped or padded with, and say nothing."""
    values = np.tile([-1000.0, 400.0, 5000.0, 70000.0], 50)
    values[:inside] = 0
    warnings = prepared(values).warnings
    if inside >= 2:  # 1 % of 200
        assert warnings == ()
    else:
        (line,) = warnings
        assert f"only {inside / 2:.1f}% of voxels are in the window of the model (-1000 to 400)" in line
        assert "the values (-1000 to 70000) may be in another unit" in line


def test_picture_gives_warning_for_hounsfield_window():
    (line,) = prepared(np.tile([0.0, 17.0, 255.0, 90.0], 50)).warnings
    assert "no value is below 0 (range 0 to 255), but the window of the model starts at -1000" in line
    assert prepared(np.tile([-1.0, 17.0, 255.0, 90.0], 50)).warnings == ()


def test_z_scores_give_no_unit_warning():
    assert prepared(np.linspace(5000, 70000, 200), intensity={"kind": "zscore"}).warnings == ()


MR_LIKE, CLIPPED = np.tile([0.0, 17.0, 255.0, 1000.0], 50), np.tile([-2000.0, 5000.0, 70000.0, 1e5], 50)


@pytest.mark.parametrize(
    ("values", "cause"), [(MR_LIKE, "no value is below 0"), (CLIPPED, "only 0.0% of voxels are in the window")]
)
def test_strict_intensity_rejects_other_values(values, cause):
    with pytest.raises(DataError, match=f"scan7 is rejected by --strict-intensity: {cause}"):
        prepared(values, strict_intensity=True)


def test_strict_intensity_accepts_values_of_the_window_and_prepared_values():
    assert prepared(np.linspace(-900, 300, 200), strict_intensity=True).warnings == ()
    assert prepared(MR_LIKE, strict_intensity=True, is_prepared=True).warnings == ()
    assert prepared(MR_LIKE, strict_intensity=True, intensity={"kind": "zscore"}).warnings == ()


def stack_of(values, kind, **options):
    """Slices (N, H, W) of a scan for a model that knows z-scores."""
    model = KnownModel(brightest, intensity={"kind": kind}, plane="axial", **options)
    volume = Volume(values.transpose(2, 1, 0), place())
    return PreparedStack.of(volume, Preprocessing.of(model), name="scan7")


SLICES = np.random.default_rng(0).normal(0, 10, (4, 12, 14)) + 100 * np.arange(4)[:, None, None]
WHOLE, INNER = Frame((0, 0), (1, 1), (12, 14)), Frame((2, 3), (1, 1), (5, 6))


def test_z_scores_use_the_whole_volume():
    expected = (SLICES - SLICES.mean()) / SLICES.std()
    images = stack_of(SLICES, "zscore").images(np.array([1, 3]), INNER)
    np.testing.assert_allclose(images[:, 0], expected[[1, 3], 2:7, 3:9], rtol=1e-5)


def test_image_z_scores_use_the_whole_slice():
    expected = [(image - image.mean()) / image.std() for image in SLICES]
    images = stack_of(SLICES, "image_zscore").images(np.arange(4), INNER)
    np.testing.assert_allclose(images[:, 0], np.array(expected)[:, 2:7, 3:9], rtol=1e-4)
    beyond = stack_of(SLICES, "image_zscore").images(np.array([2]), Frame((-1, 0), (1, 1), (3, 14)))
    assert (beyond[0, 0, 0] == np.float32(expected[2].min())).all()  # as `prepare` pads


def test_z_scores_of_crops_use_the_crop():
    images = stack_of(SLICES, "image_zscore", centred_on="nodule").images(np.arange(4), INNER)
    for image, raw in zip(images[:, 0], SLICES[:, 2:7, 3:9], strict=True):
        np.testing.assert_allclose(image, (raw - raw.mean()) / raw.std(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("centred_on", [None, "nodule"])
@pytest.mark.parametrize("kind", ["zscore", "image_zscore"])
def test_prepared_values_are_not_z_scored_again(kind, centred_on):
    model = KnownModel(brightest, intensity={"kind": kind}, plane="axial", centred_on=centred_on)
    for stored in (SLICES[1], np.full((12, 14), 7.0)):
        volume = Volume(stored.T[:, :, None].astype(np.float32), place())
        stack = PreparedStack.of(volume, Preprocessing.of(model), name="case", is_prepared=True)
        np.testing.assert_array_equal(stack.images(np.array([0]), WHOLE)[0, 0], stored.astype(np.float32))


@pytest.mark.parametrize("intensity", [WINDOW, {"kind": "zscore"}], ids=lambda rule: rule["kind"])
def test_values_beyond_32_bits_are_rejected(intensity):
    preprocessing = Preprocessing.of(KnownModel(brightest, intensity=intensity))
    values = np.linspace(0, 1, 64).reshape(4, 4, 4)
    PreparedStack.of(Volume(values * 1e38, place()), preprocessing, name="scan7")
    with pytest.raises(DataError, match="scan7 has values beyond the range of 32 bits; check its unit and scaling"):
        PreparedStack.of(Volume(values * 1e39, place()), preprocessing, name="scan7")


def spaced(spacing, *, slices=4, resample=True, thickness_mm=None, plane="axial", **preprocessing):
    """Axial slices (row, column) of some spacing (slice, vertical, horizontal), for a model of a plane."""
    distance, vertical, horizontal = spacing
    values = np.random.default_rng(0).normal(-300, 200, (12, 10, slices))
    volume = Volume(values, place(spacing=(horizontal, vertical, distance)))
    model = Preprocessing.of(KnownModel(brightest, plane=plane, intensity=WINDOW, **preprocessing))
    return PreparedStack.of(volume, model, name="scan7", resample=resample, thickness_mm=thickness_mm)


@pytest.mark.parametrize(
    ("own", "step"),
    [
        ((0.7, 0.7), (1, 1)),
        ((0.5, 0.9), (1, 1)),  # the ends of the range
        ((0.49999, 0.9), (1, 1)),  # but for rounding
        ((0.25, 0.25), (2, 2)),
        ((1.8, 0.7), (0.5, 1)),
        ((0.1, 3.6), (5, 0.25)),
    ],
)
def test_spacing_outside_range_is_resampled_to_nearest(own, step):
    stack = spaced((2, *own), spacing_range_mm=[0.5, 0.9])
    assert stack.step == pytest.approx(step)
    assert bool(stack.warnings) == (step != (1, 1))


def test_resampling_is_warned_of():
    (line,) = spaced((2, 0.25, 1.2), spacing_range_mm=[0.5, 0.9]).warnings
    assert line.startswith("the scan has pixels of 0.25 x 1.2 mm, but the model was trained on 0.5 to 0.9 mm")
    assert "it is resampled to 0.5 x 0.9 mm" in line


def test_resampling_can_be_disabled():
    with pytest.raises(DataError, match=r"scan7 has pixels of 0.25 x 0.25 mm, .* trained on 0.5 to 0.9 mm"):
        spaced((2, 0.25, 0.25), spacing_range_mm=[0.5, 0.9], resample=False)
    assert spaced((2, 0.6, 0.6), spacing_range_mm=[0.5, 0.9], resample=False).step == (1, 1)


def test_common_spacing_has_priority_over_range():
    stack = spaced((2, 0.5, 0.5), spacing_mm=[1, 1], spacing_range_mm=[1, 1])
    assert (stack.step, stack.warnings) == ((2, 2), ())
    with pytest.raises(DataError, match=r"but the model was trained on 1 x 1 mm"):
        spaced((2, 0.5, 0.5), spacing_mm=[1, 1], spacing_range_mm=[1, 1], resample=False)


@pytest.mark.parametrize(
    ("distance", "slices", "warned"),
    [(0.6, 4, False), (5, 4, False), (0.5, 4, True), (6, 4, True), (6, 1, False)],
)
def test_other_slice_thickness_gives_warning(distance, slices, warned):
    """But for a single slice, whose distance nobody knows."""
    lines = spaced((distance, 1, 1), slices=slices, thickness_range_mm=[0.6, 5]).warnings
    assert len(lines) == warned
    if warned:
        assert f"the slices are {distance} mm apart, but those of the training images were 0.6 to 5 mm" in lines[0]


@pytest.mark.parametrize(
    ("thickness_mm", "slices", "is_usual"),
    [(None, 4, True), (0.6, 4, True), (5, 1, True), (0.5, 4, False), (6, 4, False), (6, 1, False)],
)
def test_stated_slice_thickness_is_compared_with_the_training_images(thickness_mm, slices, is_usual):
    """Whatever their distance, and for a single slice too."""
    scan = {"thickness_mm": thickness_mm, "slices": slices, "thickness_range_mm": [0.6, 5]}
    if is_usual:
        assert spaced((2, 1, 1), **scan).warnings == ()
        spaced((2, 1, 1), resample=False, **scan)
    else:
        (line,) = spaced((2, 1, 1), **scan).warnings
        reason = f"{thickness_mm} mm thick, but those of the training images were 0.6 to 5 mm thick"
        assert f"the slices are {reason}" in line
        with pytest.raises(DataError, match=f"scan7 has slices {reason}; .* omit --strict-spacing"):
            spaced((2, 1, 1), resample=False, **scan)


@pytest.mark.parametrize(
    "model", [{"plane": "coronal"}, {"plane": "sagittal"}, {"patch_size": [4, 16, 16]}], ids=str
)
def test_slice_thickness_says_nothing_about_other_planes_and_distances(model):
    """A 3-D model knows the distance of slices, not their thickness."""
    stack = spaced((2, 1, 1), thickness_mm=9, thickness_range_mm=[0.6, 5], resample=False, **model)
    assert stack.warnings == ()


@pytest.mark.parametrize(
    ("preprocessing", "assumed"),
    [
        ({}, (1, 1)),
        ({"spacing_range_mm": [0.5, 0.9]}, (0.9, 0.9)),
        ({"spacing_range_mm": [0.5, 2]}, (1, 1)),
        ({"spacing_mm": [2, 3], "spacing_range_mm": [2, 3]}, (2, 3)),
    ],
)
def test_pictures_without_spacing_are_not_resampled(tmp_path, preprocessing, assumed):
    Image.fromarray(np.arange(240, dtype=np.uint8).reshape(12, 20)).save(tmp_path / "a.png")
    model = Preprocessing.of(KnownModel(brightest, **preprocessing))
    file = ScanFile("a", tmp_path / "a.png", "picture")
    scan = read_scan(file, channels=1, plane=None, spacing_mm=model.network_spacing_mm((1.0, 1.0)))
    stack = PreparedStack.of(scan.volume, model, name="a", resample=False)
    assert stack.step == (1, 1)
    assert stack.stack.spacing_mm[1:] == pytest.approx(assumed)
    assert not any("resampled" in line for line in stack.warnings)


def test_training_writes_what_preprocessing_reads(trained, lesions):
    dataset = Dataset.open(lesions)
    stored = json.loads((trained() / "model" / "preprocessing.json").read_text())
    found = Preprocessing.of(load_model(trained()))
    assert found == Preprocessing.of_dataset(dataset)
    assert found.to_json() == stored
    assert found.dataset.fingerprint == dataset.fingerprint


def test_preprocessing_of_volumes_has_a_patch_size(tmp_path):
    dataset = write_volumes(tmp_path / "volumes")
    stored = Preprocessing.of_dataset(dataset, patch_size=(3, 4, 8))
    assert (stored.size, stored.patch_size, stored.inference_patch_size) == ((5, 8), (3, 4, 8), (3, 4, 8))
    assert Preprocessing.parse(stored.to_json(), where="preprocessing.json") == stored
    assert Preprocessing.of_dataset(dataset).inference_patch_size == (16, 5, 8)
    assert stored.thickness_range_mm == (SPACING_MM[0], SPACING_MM[0])


@pytest.mark.parametrize("folder", bundled_models().values(), ids=lambda folder: folder.name)
def test_bundled_preprocessing_is_read_completely(folder):
    stored = json.loads((folder / "preprocessing.json").read_text())
    written = Preprocessing.of(load_model(folder)).to_json()
    assert {key: written[key] for key in stored} == stored
