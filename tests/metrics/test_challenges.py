"""Scores of QUBIQ and CURVAS against loops over pixels and numerical integrals."""

import math

import numpy as np
import pytest
import torch

from helpers import naive_challenges as naive
from phiseg.core.errors import DataError
from phiseg.metrics import consensus_dice, normal_volume_crps, soft_dice, top_label_calibration_error
from phiseg.metrics.challenges import CURVAS_THRESHOLDS, QUBIQ_THRESHOLDS

SIZES = [(4, 5), (2, 3, 4)]


def drawn(num_classes, num_annotators, size, seed=0):
    """Probabilities (K, *size) and annotations (A, *size) that follow them."""
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.full(num_classes, 0.5), size)
    labels = [(rng.random((*size, 1)) > probs.cumsum(-1)[..., :-1]).sum(-1) for _ in range(num_annotators)]
    return np.moveaxis(probs, -1, 0), np.array(labels)


def tensors(*arrays):
    return [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("num_classes", [2, 4])
@pytest.mark.parametrize("num_annotators", [1, 3, 5])
def test_scores_match_loops(num_classes, num_annotators, size):
    probs, annotations = drawn(num_classes, num_annotators, size)
    given = tensors(probs, annotations)
    assert soft_dice(*given) == pytest.approx(naive.soft_dice(probs, annotations, naive.QUBIQ))
    found = soft_dice(*given, thresholds=CURVAS_THRESHOLDS)
    assert found == pytest.approx(naive.soft_dice(probs, annotations, naive.CURVAS))
    prediction = probs.argmax(0)
    expected = naive.consensus_dice(prediction, annotations, num_classes)
    found = consensus_dice(*tensors(prediction, annotations), num_classes=num_classes)
    assert found == (expected if expected is None else pytest.approx(expected))
    assert normal_volume_crps(*given) == pytest.approx(naive.volume_crps(probs, annotations), abs=2e-3)
    assert top_label_calibration_error(*given) == pytest.approx(naive.calibration_error(probs, annotations))
    found = top_label_calibration_error(*given, num_bins=3)
    assert found == pytest.approx(naive.calibration_error(probs, annotations, 3))


def test_thresholds_are_those_of_the_challenges():
    assert list(QUBIQ_THRESHOLDS) == naive.QUBIQ
    assert pytest.approx(naive.CURVAS) == CURVAS_THRESHOLDS
    assert CURVAS_THRESHOLDS[-1] == naive.CURVAS[-1]  # 4 of 5 annotators must not exceed 0.8


def test_soft_dice_is_one_for_the_share_of_annotators():
    _, annotations = drawn(3, 5, (6, 6))
    probs = torch.from_numpy(naive.shares(annotations, 3))
    assert soft_dice(probs, torch.from_numpy(annotations)) == 1
    assert soft_dice(1 - probs, torch.from_numpy(annotations)) < 0.7


@pytest.mark.parametrize("num_annotators", range(1, 13))
@pytest.mark.parametrize("thresholds", [QUBIQ_THRESHOLDS, CURVAS_THRESHOLDS])
def test_soft_dice_is_one_for_the_share_in_single_precision(num_annotators, thresholds):
    outlined = torch.arange(num_annotators + 1)  # pixel n is outlined by n annotators
    annotations = (torch.arange(num_annotators)[:, None] < outlined).long()[:, None]
    share = (outlined.float() / num_annotators)[None]
    assert soft_dice(torch.stack([1 - share, share]), annotations, thresholds=thresholds) == 1


def test_soft_dice_threshold_is_exceeded():
    annotations = torch.tensor([[[1]], [[1]], [[1]], [[1]], [[0]]])  # a share of 0.8
    probs = torch.tensor([[[0.1]], [[0.9]]])
    assert soft_dice(probs, annotations, thresholds=[0.8]) == 0
    assert soft_dice(probs, annotations, thresholds=[0.79]) == 1


def test_soft_dice_of_empty_masks():
    probs, empty = torch.tensor([[[0.75, 1]], [[0.25, 0]]]), torch.zeros(3, 1, 2, dtype=torch.uint8)
    assert soft_dice(probs, empty) == pytest.approx(7 / 9)  # 0.25 exceeds two thresholds
    assert soft_dice(probs, empty, both_empty=0) == 0


def test_consensus_dice_ignores_disputed_pixels():
    annotations = torch.tensor([[[1, 1, 0, 0]], [[1, 0, 0, 0]]])
    for disputed in (0, 1):
        assert consensus_dice(torch.tensor([[1, disputed, 0, 0]]), annotations, num_classes=2) == 1
    assert consensus_dice(torch.tensor([[1, 1, 1, 0]]), annotations, num_classes=2) == pytest.approx(2 / 3)


def test_consensus_dice_without_consensus():
    annotations = torch.tensor([[[1, 2]], [[0, 2]]])
    assert consensus_dice(torch.tensor([[1, 2]]), annotations, num_classes=3) == 1  # label 1 does not count
    assert consensus_dice(torch.tensor([[1, 0]]), annotations[:, :, :1].repeat(1, 1, 2), num_classes=3) is None


@pytest.mark.parametrize("z", [-7, -2.9, 0, 0.5, 2.6, 3.5])
def test_normal_volume_crps_matches_integrals(z):
    annotations = torch.zeros(2, 1, 1000, dtype=torch.uint8)
    annotations[0, 0, :480] = annotations[1, 0, :520] = 1  # mean 500, deviation 20
    foreground = torch.full((1, 1, 1000), (500 + 20 * z) / 1000, dtype=torch.float64)
    probs = torch.cat([1 - foreground, foreground])
    value = 500 + 20 * z
    assert normal_volume_crps(probs, annotations) == pytest.approx(naive.normal_crps(500, 20, value), abs=5e-3)
    limited = normal_volume_crps(probs, annotations, limit=3)
    assert limited == pytest.approx(naive.normal_crps(500, 20, value, limit=3), abs=2e-3)
    assert limited == pytest.approx(naive.normal_crps(500, 20, value, limit=3, tabulated=True), abs=0.007 * 20)


def test_normal_volume_crps_limit_makes_large_errors_equal():
    annotations = torch.tensor([[[1, 0, 0, 0]], [[1, 1, 0, 0]]]).repeat(1, 1, 10)  # volumes 10 and 20
    maps = [torch.full((2, 1, 40), level) for level in (0.85, 1.0)]
    limited = [normal_volume_crps(one, annotations, limit=3) for one in maps]
    assert limited[0] == limited[1] == pytest.approx(5 * (3 - 1 / math.sqrt(math.pi)), rel=1e-3)
    first, second = (normal_volume_crps(one, annotations) for one in maps)
    assert second - first == pytest.approx(6, abs=1e-3)


def test_normal_volume_crps_of_equal_volumes():
    one = torch.tensor([[[0, 1, 1]]])
    probs = torch.tensor([[[0.5, 0.5, 0.5]], [[0.5, 0.5, 0.5]]])
    assert normal_volume_crps(probs, one) == 0.5
    assert normal_volume_crps(probs, one.repeat(3, 1, 1)) == 0.5
    assert normal_volume_crps(probs, torch.zeros_like(one)) == 1.5
    assert normal_volume_crps(probs, one, limit=3) is None


def test_calibration_error_of_certain_predictions_is_the_share_of_errors():
    probs = torch.tensor([[[1.0, 0.0, 1.0, 1.0]], [[0.0, 1.0, 0.0, 0.0]]])
    annotations = torch.tensor([[[0, 1, 0, 0]], [[0, 0, 0, 0]], [[1, 0, 0, 0]]])
    assert top_label_calibration_error(probs, annotations) == pytest.approx((0 + 1 / 4 + 2 / 4) / 3)
    assert top_label_calibration_error(probs, annotations[:1]) == 0


def test_calibration_error_separates_probability_one():
    probs = torch.tensor([[[1.0, 0.99]], [[0.0, 0.01]]], dtype=torch.float64)
    found = top_label_calibration_error(probs, torch.tensor([[[1, 0]]]))
    assert found == pytest.approx((1 + 0.01) / 2)  # in one bin: |0.995 - 0.5|


def test_calibration_error_does_not_cancel_between_annotators():
    probs = torch.full((2, 1, 1), 0.5)
    assert top_label_calibration_error(probs, torch.tensor([[[0]], [[1]]])) == 0.5


def test_unsuitable_input_is_rejected():
    probs, labels = torch.full((2, 1, 3), 0.5), torch.zeros(2, 1, 3, dtype=torch.uint8)
    for score in (soft_dice, normal_volume_crps, top_label_calibration_error):
        with pytest.raises(DataError, match="do not match"):
            score(probs, labels[..., :2])
        with pytest.raises(DataError, match="outside"):
            score(probs, labels + 2)
    with pytest.raises(DataError, match="differ in size"):
        consensus_dice(labels[0, :, :2], labels, num_classes=2)
    with pytest.raises(DataError, match="no threshold"):
        soft_dice(probs, labels, thresholds=())
    with pytest.raises(DataError, match="at least 3"):
        normal_volume_crps(probs, labels, limit=2)
    with pytest.raises(DataError, match="num_bins"):
        top_label_calibration_error(probs, labels, num_bins=0)
