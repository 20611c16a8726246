"""Scans as a model's training images were: the same values, or refused where modality or values say otherwise."""

import numpy as np
import pytest
from known_models import KnownModel, brightest, place

from phiseg.core.errors import DataError
from phiseg.imaging.frame import Frame
from phiseg.imaging.volume import Volume
from phiseg.inference.preprocessing import PreparedStack, Preprocessing

WINDOW = {"kind": "window", "low": -1000, "high": 400}


def prepared(values, *, modality=None, trained_on=None, intensity=WINDOW):
    model = KnownModel(brightest, modality=trained_on, intensity=intensity)
    volume = Volume(np.asarray(values, dtype=np.float32).reshape(10, 10, -1), place())
    return PreparedStack.of(volume, Preprocessing.of(model), name="scan7", modality=modality)


def test_a_series_of_another_modality_is_refused():
    scan = np.linspace(-900, 300, 200)
    with pytest.raises(DataError, match="scan7 has the modality MR, the model was trained on CT; give a CT series"):
        prepared(scan, modality="MR", trained_on="CT")
    with pytest.raises(DataError, match=r"scan7 has the modality \(none\), the model was trained on CT"):
        prepared(scan, modality="", trained_on="CT")


@pytest.mark.parametrize(("modality", "trained_on"), [("CT", "CT"), (None, "CT"), ("MR", None)])
def test_where_nobody_says_otherwise_any_scan_is_taken(modality, trained_on):
    """A NIfTI file does not tell its modality, and not every model does."""
    assert prepared(np.linspace(-900, 300, 200), modality=modality, trained_on=trained_on).warnings == ()


@pytest.mark.parametrize("inside", [0, 1, 2, 3, 100])
def test_values_beyond_the_window_are_doubted(inside):
    """Those on its edges are what others clipped or padded with, and say nothing."""
    values = np.tile([-1000.0, 400.0, 5000.0, 70000.0], 50)
    values[:inside] = 0
    warnings = prepared(values).warnings
    if inside >= 2:  # 1 % of 200
        assert warnings == ()
    else:
        (line,) = warnings
        assert f"only {inside / 2:.1f}% of its voxels lie in the model's window, -1000 to 400" in line
        assert "its values, -1000 to 70000, look as if they were in another unit" in line


def test_a_picture_is_doubted_where_the_model_knows_hounsfield_units():
    (line,) = prepared(np.tile([0.0, 17.0, 255.0, 90.0], 50)).warnings
    assert "none of its values, 0 to 255, is below 0, and the model's window begins at -1000" in line
    assert prepared(np.tile([-1.0, 17.0, 255.0, 90.0], 50)).warnings == ()


def test_z_scores_have_no_unit_to_doubt():
    assert prepared(np.linspace(5000, 70000, 200), intensity={"kind": "zscore"}).warnings == ()


def stack_of(values, kind, **options):
    """Slices (N, H, W) of a scan for a model that knows z-scores."""
    model = KnownModel(brightest, intensity={"kind": kind}, plane="axial", **options)
    volume = Volume(values.transpose(2, 1, 0), place())
    return PreparedStack.of(volume, Preprocessing.of(model), name="scan7")


SLICES = np.random.default_rng(0).normal(0, 10, (4, 12, 14)) + 100 * np.arange(4)[:, None, None]
WHOLE, INNER = Frame((0, 0), (1, 1), (12, 14)), Frame((2, 3), (1, 1), (5, 6))


def test_z_scores_are_of_the_whole_volume_before_it_is_cut():
    expected = (SLICES - SLICES.mean()) / SLICES.std()
    images = stack_of(SLICES, "zscore").images(np.array([1, 3]), INNER)
    np.testing.assert_allclose(images[:, 0], expected[[1, 3], 2:7, 3:9], rtol=1e-5)


def test_z_scores_of_each_image_are_of_the_slice_before_it_is_cut():
    expected = [(image - image.mean()) / image.std() for image in SLICES]
    images = stack_of(SLICES, "image_zscore").images(np.arange(4), INNER)
    np.testing.assert_allclose(images[:, 0], np.array(expected)[:, 2:7, 3:9], rtol=1e-4)
    beyond = stack_of(SLICES, "image_zscore").images(np.array([2]), Frame((-1, 0), (1, 1), (3, 14)))
    assert (beyond[0, 0, 0] == np.float32(expected[2].min())).all()  # as `prepare` pads


def test_z_scores_of_crops_are_of_what_is_cut_out():
    images = stack_of(SLICES, "image_zscore", centred_on="nodule").images(np.arange(4), INNER)
    for image, raw in zip(images[:, 0], SLICES[:, 2:7, 3:9], strict=True):
        np.testing.assert_allclose(image, (raw - raw.mean()) / raw.std(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("centred_on", [None, "nodule"])
@pytest.mark.parametrize("kind", ["zscore", "image_zscore"])
def test_z_scores_of_a_prepared_dataset_are_not_taken_again(kind, centred_on):
    model = KnownModel(brightest, intensity={"kind": kind}, plane="axial", centred_on=centred_on)
    for stored in (SLICES[1], np.full((12, 14), 7.0)):
        volume = Volume(stored.T[:, :, None].astype(np.float32), place())
        stack = PreparedStack.of(volume, Preprocessing.of(model), name="case", is_prepared=True)
        np.testing.assert_array_equal(stack.images(np.array([0]), WHOLE)[0, 0], stored.astype(np.float32))


@pytest.mark.parametrize("intensity", [WINDOW, {"kind": "zscore"}], ids=lambda rule: rule["kind"])
def test_values_that_the_network_cannot_hold_are_refused(intensity):
    preprocessing = Preprocessing.of(KnownModel(brightest, intensity=intensity))
    values = np.linspace(0, 1, 64).reshape(4, 4, 4)
    PreparedStack.of(Volume(values * 1e38, place()), preprocessing, name="scan7")
    with pytest.raises(DataError, match="scan7 has values beyond those of 32 bits; check its unit and scaling"):
        PreparedStack.of(Volume(values * 1e39, place()), preprocessing, name="scan7")
