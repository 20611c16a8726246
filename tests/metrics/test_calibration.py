import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import naive_metrics as naive
from phiseg.core.errors import DataError
from phiseg.metrics import brier_score, expected_calibration_error, reliability


def make_case(num_classes, num_annotators, seed, size=(4, 5)):
    generator = torch.Generator().manual_seed(seed)
    probs = (2 * torch.randn(num_classes, *size, generator=generator)).softmax(0)
    probs = torch.where(torch.rand(size, generator=generator) < 0.3, (10 * probs).round() / 10, probs)  # on edges
    return probs, torch.randint(num_classes, (num_annotators, *size), generator=generator)


@settings(max_examples=40)
@given(st.sampled_from([2, 3, 5]), st.integers(1, 5), st.sampled_from([1, 3, 10]), st.integers(0, 10**6))
def test_reliability_and_ece_match_reference(num_classes, num_annotators, num_bins, seed):
    probs, annotations = make_case(num_classes, num_annotators, seed)
    table = reliability(probs, annotations, num_bins=num_bins)
    expected = naive.reliability(probs.tolist(), annotations.tolist(), num_bins)
    torch.testing.assert_close(table, torch.tensor(expected, dtype=torch.float64))
    assert expected_calibration_error(table) == pytest.approx(naive.calibration_error(expected))


def test_reliability_tables_are_additive():
    cases = [make_case(3, 4, seed) for seed in range(3)]
    together = reliability(torch.cat([p for p, _ in cases], 1), torch.cat([y for _, y in cases], 1))
    torch.testing.assert_close(sum(reliability(*case) for case in cases), together)
    mean_of_cases = sum(expected_calibration_error(reliability(*case)) for case in cases) / 3
    assert expected_calibration_error(together) < mean_of_cases  # a single image looks worse than it is


def test_ece_of_perfect_and_worst_predictions():
    half = torch.full((2, 2, 2), 0.5)
    annotations = torch.tensor([[[0, 0], [0, 0]], [[1, 1], [1, 1]]])
    assert expected_calibration_error(reliability(half, annotations)) == 0
    certain = torch.tensor([1.0, 0.0]).reshape(2, 1, 1).expand(2, 2, 2)
    assert expected_calibration_error(reliability(certain, annotations[1:])) == 1


def test_reliability_bins_include_lower_edge_and_one():
    probs = torch.tensor([0.0, 0.1, 0.9, 1.0], dtype=torch.float64).reshape(1, 1, 4)
    table = reliability(torch.cat([1 - probs, probs]), torch.zeros(1, 1, 4, dtype=torch.uint8))
    assert table[0, :, 0].tolist() == [1, 1, 0, 0, 0, 0, 0, 0, 0, 2]


@pytest.mark.parametrize(
    ("probs", "annotations", "message"),
    [
        (torch.full((2, 2, 2), 3.0), torch.zeros(1, 2, 2).long(), "outside 0..1"),
        (torch.full((2, 2, 2), torch.nan), torch.zeros(1, 2, 2).long(), "outside 0..1"),
        (torch.full((2, 2, 2), 0.5), torch.zeros(1, 2, 3).long(), "do not match"),
        (torch.full((2, 2, 2), 0.5), torch.full((1, 2, 2), 255), "missing \\(255\\)"),
    ],
)
def test_reliability_rejects_invalid_input(probs, annotations, message):
    with pytest.raises(DataError, match=message):
        reliability(probs, annotations)


def test_brier_score_is_unbiased_in_the_number_of_samples():
    """On average, two samples give the Brier score of the true mean; the naive estimate does not."""
    generator = torch.Generator().manual_seed(0)
    levels = torch.rand(20_000, 2, generator=generator)  # each sample's probability of class 1 is uniform in 0..1
    pairs = torch.stack([1 - levels, levels], dim=2).permute(1, 2, 0)  # (2, K, pixels)
    annotations = (torch.rand(1, 20_000, generator=generator) < 0.3).long()
    expected = 0.5  # the mean prediction is 1/2 for both classes: 1/4 + 1/4, whatever the annotation
    assert brier_score(pairs, annotations) == pytest.approx(expected, abs=0.01)
    plain = pairs.mean(0).gather(0, 1 - annotations).square().mean() * 2
    assert plain > expected + 0.05


def test_brier_score_of_identical_samples():
    probs = torch.tensor([0.7, 0.2, 0.1]).reshape(1, 3, 1).expand(4, 3, 1)
    annotations = torch.tensor([[0], [2]])
    expected = ((0.3**2 + 0.2**2 + 0.1**2) + (0.7**2 + 0.2**2 + 0.9**2)) / 2
    assert brier_score(probs, annotations) == pytest.approx(expected)
    with pytest.raises(DataError, match="at least 2"):
        brier_score(probs[:1], annotations)
