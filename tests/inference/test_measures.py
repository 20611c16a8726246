"""Measures of samples: ml and mm of known shapes in any geometry, and pixels if the pixel size is unknown."""

import json
from itertools import combinations_with_replacement
from math import dist, pi

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from helpers.known_models import KnownModel, brightest, depth_in_ball, place
from phiseg.core.errors import DataError
from phiseg.imaging.volume import Volume
from phiseg.inference.measures import longest_diameter, measure, to_json
from phiseg.inference.prediction import Prediction
from phiseg.inference.prepared_stack import PreparedStack
from phiseg.inference.preprocessing import Preprocessing


def prediction(
    labels,
    *,
    affine=None,
    plane="axial",
    classes=("background", "lesion"),
    gamma=None,
    variance=None,
    has_spacing=True,
):
    """A prediction of labels (S, I, J, K), on the volume's own axes."""
    labels = np.asarray(labels, dtype=np.uint8)
    affine = place() if affine is None else affine
    grid = labels.shape[1:]
    preprocessing = Preprocessing.of(KnownModel(brightest, classes=classes, plane=plane))

    def stacked(values):
        volume = Volume(values.astype(np.float64) + np.indices(grid)[0] * 1e-9, affine)  # never constant
        return PreparedStack.of(volume, preprocessing, name="scan", has_spacing=has_spacing)

    sliced = np.stack([np.rint(stacked(sample).stack.values[..., 0]).astype(np.uint8) for sample in labels])
    box = tuple(slice(0, number) for number in sliced.shape[1:])
    logs = np.zeros((len(classes), *sliced.shape[1:]), np.float32)
    logs -= 0 if gamma is None else gamma  # whatever the probabilities are, their mean is this
    return Prediction(
        stack=stacked(np.zeros(grid)),
        box=box,
        labels=sliced,
        mean_probs=np.stack([(sliced == k).mean(0) for k in range(len(classes))]).astype(np.float32),
        mean_log_probs=logs,
        level_variance=variance,
        truncated_by={},
        point=None,
        level_names=() if variance is None else tuple(f"level {n + 1}" for n in range(len(variance))),
    )


@settings(max_examples=20)
@given(
    codes=st.sampled_from(["LPS", "RAS", "ASL", "IRP"]),
    turn=st.tuples(*[st.floats(-40, 40)] * 3),
    spacing=st.tuples(*[st.floats(0.4, 4)] * 3),
    plane=st.sampled_from(["auto", "axial", "coronal", "sagittal"]),
)
def test_block_volume_is_product_of_edges(codes, turn, spacing, plane):
    labels = np.zeros((2, 6, 7, 8))
    labels[0, 1:3, 2:5, 3:7] = 1  # 2 x 3 x 4 voxels
    found = measure(prediction(labels, affine=place(codes, turn=turn, spacing=spacing), plane=plane))
    whole = 24 * spacing[0] * spacing[1] * spacing[2] / 1000
    lesion = found.classes["lesion"]
    assert lesion.volume_ml.samples == pytest.approx((whole, 0), rel=1e-5)
    assert lesion.volume_ml.median == pytest.approx(whole / 2)
    assert (lesion.volume_ml.low, lesion.volume_ml.high) == pytest.approx((0, whole))
    assert lesion.present == 0.5
    assert found.agreement == 0


def test_ball_volume_and_diameter_match_radius():
    shape, affine = (36, 30, 22), place("RAS", turn=(20, -10, 30), spacing=(0.7, 0.8, 1.1))
    middle = (affine @ [17.5, 14.5, 10.5, 1])[:3]
    inside = depth_in_ball(shape, affine, middle, 10.0) > 0
    lesion = measure(prediction([inside], affine=affine)).classes["lesion"]
    assert lesion.volume_ml.median == pytest.approx(4 / 3 * pi, rel=0.02)
    assert lesion.diameter_mm.median == pytest.approx(20, abs=0.9)
    assert lesion.present == 1


@settings(max_examples=60)
@given(
    mask=arrays(bool, st.tuples(st.integers(1, 3), st.integers(1, 7), st.integers(1, 7))),
    spacing=st.tuples(st.floats(0.2, 5), st.floats(0.2, 5)),
)
def test_diameter_is_longest_pixel_distance_in_component(mask, spacing):
    lengths = [0.0]
    for image in mask:
        for piece in pieces(image):
            pixels = [(row * spacing[0], column * spacing[1]) for row, column in piece]
            pairs = combinations_with_replacement(pixels, 2)
            lengths += [dist(one, other) + (spacing[0] + spacing[1]) / 2 for one, other in pairs]
    assert longest_diameter(mask, spacing) == pytest.approx(max(lengths))


def pieces(image):
    """Sets of pixels that touch at a side or a corner, grown one by one."""
    left = {tuple(pixel) for pixel in np.argwhere(image)}
    while left:
        piece, edge = set(), [left.pop()]
        while edge:
            row, column = edge.pop()
            piece.add((row, column))
            near = {pixel for pixel in left if max(abs(pixel[0] - row), abs(pixel[1] - column)) == 1}
            left -= near
            edge += near
        yield piece


def test_classes_are_measured_apart():
    labels = np.zeros((4, 5, 5, 3))
    labels[:, 0, 0, 0] = 1
    labels[1:, 2:4, 2:4, 1] = 2
    found = measure(prediction(labels, classes=("background", "a", "b"), affine=place(spacing=(2, 2, 5))))
    assert list(found.classes) == ["a", "b"]
    assert (found.classes["a"].present, found.classes["b"].present) == (1, 0.75)
    assert found.classes["a"].volume_ml.samples == pytest.approx((0.02,) * 4)
    assert found.classes["b"].volume_ml.samples == pytest.approx((0, 0.08, 0.08, 0.08))
    assert found.classes["b"].diameter_mm.median == pytest.approx(2 * 2**0.5 + 2)
    # three pairs with b in one of the two only: (1 + 0) / 2; three in agreement
    assert found.agreement == pytest.approx((3 * 0.5 + 3 * 1) / 6)


@pytest.mark.parametrize(("number", "outside"), [(16, 0), (39, 1), (99, 4)])
def test_interval_contains_nine_of_ten_further_samples(number, outside):
    """It is equally likely to come anywhere in the order of the others: 1 / (number + 1) for each gap."""
    labels = np.zeros((number, 100, 1, 1))
    for sample in range(number):
        labels[sample, : sample + 1] = 1
    volume = measure(prediction(labels)).classes["lesion"].volume_ml
    assert volume.low == pytest.approx((1 + outside) / 1000)
    assert volume.high == pytest.approx((number - outside) / 1000)
    inside = (number - 1 - 2 * outside) / (number + 1)
    assert inside == pytest.approx(0.9, abs=0.02)


def test_measures_if_present_use_only_those_samples():
    labels = np.zeros((5, 6, 6, 2))
    for sample, edge in enumerate((1, 2, 3)):
        labels[sample, :edge, 0, 0] = 1  # 1, 2 and 3 voxels in a row; two samples without any
    found = measure(prediction(labels, affine=place(spacing=(10, 10, 10)))).classes["lesion"]
    assert found.volume_ml.samples == pytest.approx((1, 2, 3, 0, 0))
    assert found.volume_ml.median == pytest.approx(1)
    assert found.size_if_present.samples == pytest.approx((1, 2, 3))
    assert found.size_if_present.median == pytest.approx(2)
    assert (found.size_if_present.low, found.size_if_present.high) == pytest.approx((1, 3))
    assert found.diameter_if_present.samples == pytest.approx((10, 20, 30))


@pytest.mark.parametrize(("depth", "key"), [(1, "area_px"), (2, "volume_voxels")])
def test_sizes_are_counts_if_the_pixel_size_is_unknown(depth, key):
    labels = np.zeros((3, 8, 6, depth))
    labels[0, 1:6, 2, 0] = 1  # 5 pixels in a row
    labels[1, 1:4, 1:5, :] = 1  # 3 x 4 pixels in every slice
    found = measure(prediction(labels, affine=place(spacing=(0.5, 0.7, 2)), has_spacing=False))
    lesion = to_json(found)["classes"]["lesion"]
    assert set(lesion) == {"present", key, "diameter_px", f"{key}_if_present", "diameter_px_if_present"}
    assert lesion[key]["samples"] == (5, 12 * depth, 0)
    assert lesion[f"{key}_if_present"]["samples"] == (5, 12 * depth)
    assert lesion["diameter_px"]["samples"] == pytest.approx((5, 13**0.5 + 1, 0), rel=1e-5)
    with pytest.raises(DataError, match="the pixel size is unknown; use `size`"):
        found.classes["lesion"].volume_ml  # noqa: B018
    with pytest.raises(DataError, match="the pixel size is unknown"):
        found.classes["lesion"].diameter_mm  # noqa: B018


def test_measures_if_present_are_null_without_samples():
    found = to_json(measure(prediction(np.zeros((3, 4, 4, 2)))))["classes"]["lesion"]
    assert found["volume_ml"]["median"] == 0
    assert found["volume_ml_if_present"] is None
    assert found["diameter_mm_if_present"] is None


def test_tiny_volumes_keep_their_digits():
    labels = np.zeros((2, 3, 3, 2))
    labels[0, 1, 1, 1] = 1
    found = measure(prediction(labels, affine=place(spacing=(0.1, 0.1, 0.2)))).classes["lesion"]
    assert found.volume_ml.samples == pytest.approx((2e-6, 0))


@settings(max_examples=20)
@given(labels=arrays(np.uint8, (3, 3, 2, 2), elements=st.integers(0, 1)))
def test_agreement_is_mean_pairwise_iou(labels):
    scores = []
    for one, other in ((0, 1), (0, 2), (1, 2)):
        both, either = labels[one] & labels[other], labels[one] | labels[other]
        scores.append(both.sum() / either.sum() if either.any() else 1.0)
    assert measure(prediction(labels)).agreement == pytest.approx(np.mean(scores))


def test_single_sample_has_full_agreement():
    assert measure(prediction(np.ones((1, 3, 3, 2)))).agreement == 1


def test_gamma_is_averaged_over_foreground():
    labels = np.zeros((2, 4, 3, 2))  # columns, rows, slices
    labels[0, 1, 2, 0] = labels[1, 3, 0, 1] = 1
    gamma = np.arange(24, dtype=np.float32).reshape(2, 3, 4)  # slices, rows, columns
    assert measure(prediction(labels, gamma=gamma)).mean_gamma == (gamma[0, 2, 1] + gamma[1, 0, 3]) / 2
    assert measure(prediction(0 * labels, gamma=gamma)).mean_gamma == 0


def test_level_shares_are_shares_of_summed_variance():
    variance = np.zeros((3, 2, 3, 4), np.float32)
    variance[0, 0, 0, 0], variance[2, 1] = 6, 0.5
    labels = np.zeros((2, 4, 3, 2))
    assert measure(prediction(labels, variance=variance)).level_shares == {
        "level 1": 0.5,
        "level 2": 0,
        "level 3": 0.5,
    }
    assert measure(prediction(labels, variance=0 * variance)).level_shares == pytest.approx(
        dict.fromkeys(("level 1", "level 2", "level 3"), 1 / 3)
    )
    assert measure(prediction(labels)).level_shares is None


def test_measures_can_be_written_as_json():
    found = measure(prediction(np.ones((2, 3, 3, 2))))
    restored = json.loads(json.dumps(to_json(found), allow_nan=False))
    assert restored["agreement"] == 1
    volume = restored["classes"]["lesion"]["volume_ml"]
    assert volume.pop("samples") == [0.018, 0.018]
    assert volume == pytest.approx({"median": 0.018, "low": 0.018, "high": 0.018})
