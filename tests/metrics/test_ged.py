from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import naive_metrics as naive
from phiseg.core.errors import DataError
from phiseg.metrics import energy_distance, ged_floor


def masks(count, num_classes, seed, size=(3, 3)):
    return torch.randint(num_classes, (count, *size), generator=torch.Generator().manual_seed(seed))


seeds = st.integers(0, 10**6)
counts = st.integers(1, 6)
classes = st.sampled_from([2, 3, 5])
quick = settings(max_examples=50)


@quick
@given(counts, counts, classes, st.sampled_from([0.0, 1.0]), seeds)
def test_energy_distance_matches_reference(num_samples, num_annotators, num_classes, both_empty, seed):
    samples, annotations = masks(num_samples, num_classes, seed), masks(num_annotators, num_classes, seed + 1)
    result = energy_distance(samples, annotations, num_classes=num_classes, both_empty=both_empty)
    s, y = samples.tolist(), annotations.tolist()
    setting = num_classes, both_empty
    assert result.ged == pytest.approx(naive.ged(s, y, *setting), abs=1e-12)
    assert result.cross == pytest.approx(naive.mean_distance(s, y, *setting))
    assert result.within_samples == pytest.approx(naive.mean_distance(s, s, *setting))
    assert result.within_annotations == pytest.approx(naive.mean_distance(y, y, *setting))
    if num_samples > 1 and num_annotators > 1:
        assert result.ged_unbiased == pytest.approx(naive.ged(s, y, *setting, distinct=True), abs=1e-12)
    else:
        assert result.ged_unbiased is None
    if num_annotators > 1:
        itself = sum(1 - naive.iou(a, a, *setting) for a in y) / num_annotators  # 0 if both_empty is 1
        delta = naive.mean_distance(y, y, *setting, distinct=True)
        floor = (delta - itself) * (1 / num_annotators + 1 / num_samples)
        assert result.ged_floor == pytest.approx(floor, abs=1e-12)
    else:
        assert result.ged_floor is None
    assert ged_floor(annotations, num_samples, num_classes=num_classes, both_empty=both_empty) == result.ged_floor


def test_energy_distance_hand_computed_case():
    samples = torch.tensor([[[1, 0, 0]], [[1, 1, 0]]])  # d = 1/2
    annotations = torch.tensor([[[1, 1, 0]], [[0, 1, 1]], [[0, 0, 0]]])  # d = 2/3, 1, 1
    result = energy_distance(samples, annotations, num_classes=2)
    assert result.cross == pytest.approx((1 / 2 + 1 + 1 + 0 + 2 / 3 + 1) / 6)
    assert result.within_samples == pytest.approx(2 * (1 / 2) / 4)
    assert result.within_annotations == pytest.approx(2 * (2 / 3 + 1 + 1) / 9)
    assert result.ged == pytest.approx(2 * 25 / 36 - 1 / 4 - 16 / 27)  # no square root
    assert result.ged_unbiased == pytest.approx(2 * 25 / 36 - 1 / 2 - 8 / 9)
    assert result.ged_floor == pytest.approx(8 / 9 * (1 / 3 + 1 / 2))


@pytest.mark.parametrize("both_empty", [1.0, 0.0])
@pytest.mark.parametrize(("num_samples", "num_annotators"), [(2, 2), (3, 2), (1, 3)])
def test_perfect_sampler_expected_ged_is_floor_and_unbiased_is_zero(num_samples, num_annotators, both_empty):
    # Exact expectation: all ways to draw both sets from three masks, one of them empty.
    population = torch.tensor([[[0, 0, 0]], [[1, 1, 0]], [[0, 1, 1]]])
    results = []
    for draw in product(range(3), repeat=num_samples + num_annotators):
        drawn = population[list(draw)]
        results.append(
            energy_distance(drawn[:num_samples], drawn[num_samples:], num_classes=2, both_empty=both_empty)
        )
    mean_ged = sum(result.ged for result in results) / len(results)
    assert mean_ged == pytest.approx(sum(result.ged_floor for result in results) / len(results))
    assert mean_ged > 0.1
    if num_samples > 1:
        assert sum(result.ged_unbiased for result in results) / len(results) == pytest.approx(0, abs=1e-12)


def test_floor_matches_monte_carlo_with_three_classes():
    generator = torch.Generator().manual_seed(0)
    differences, unbiased, geds = [], [], []
    for _ in range(600):
        drawn = (torch.rand(12, 4, 4, generator=generator) * 3).long()
        result = energy_distance(drawn[:8], drawn[8:], num_classes=3)
        geds.append(result.ged)
        differences.append(result.ged - result.ged_floor)
        unbiased.append(result.ged_unbiased)
    for values in (torch.tensor(differences), torch.tensor(unbiased)):
        assert abs(values.mean()) < 4 * values.std() / len(values) ** 0.5
    assert torch.tensor(geds).mean() > 0.1  # the paper's statistic is far from 0 for this perfect sampler


@quick
@given(counts, counts, classes, st.sampled_from([0.0, 0.5, 1.0]), seeds)
def test_ged_is_never_negative(num_samples, num_annotators, num_classes, both_empty, seed):
    # IoU is a positive definite kernel for sets, and so is its mean over labels: GED is a squared MMD.
    samples, annotations = masks(num_samples, num_classes, seed), masks(num_annotators, num_classes, seed + 1)
    assert energy_distance(samples, annotations, num_classes=num_classes, both_empty=both_empty).ged >= -1e-12


@quick
@given(st.integers(1, 6), classes, seeds)
def test_ged_is_zero_for_equal_multisets(count, num_classes, seed):
    samples = masks(count, num_classes, seed)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    result = energy_distance(samples, samples[order], num_classes=num_classes)
    assert result.ged == pytest.approx(0, abs=1e-12)
    assert energy_distance(samples, samples.repeat(3, 1, 1), num_classes=num_classes).ged == pytest.approx(
        0, abs=1e-12
    )


@quick
@given(st.integers(2, 6), st.integers(2, 6), classes, seeds)
def test_ged_is_symmetric_and_invariant_to_order(num_samples, num_annotators, num_classes, seed):
    samples, annotations = masks(num_samples, num_classes, seed), masks(num_annotators, num_classes, seed + 1)
    result = energy_distance(samples, annotations, num_classes=num_classes)
    order = torch.randperm(num_samples, generator=torch.Generator().manual_seed(seed))
    assert energy_distance(samples[order], annotations, num_classes=num_classes) == pytest.approx(result)
    swapped = energy_distance(annotations, samples, num_classes=num_classes)
    assert swapped.ged == pytest.approx(result.ged, abs=1e-12)
    assert swapped.ged_unbiased == pytest.approx(result.ged_unbiased, abs=1e-12)
    assert swapped.within_samples == pytest.approx(result.within_annotations)


@quick
@given(counts, counts, classes, st.integers(2, 4), seeds)
def test_ged_is_invariant_to_repeated_samples(num_samples, num_annotators, num_classes, times, seed):
    samples, annotations = masks(num_samples, num_classes, seed), masks(num_annotators, num_classes, seed + 1)
    once = energy_distance(samples, annotations, num_classes=num_classes)
    repeated = energy_distance(samples.repeat(times, 1, 1), annotations, num_classes=num_classes)
    assert repeated.ged == pytest.approx(once.ged, abs=1e-12)


def test_energy_distance_fields_are_floats():
    result = energy_distance(masks(3, 2, seed=0), masks(2, 2, seed=1), num_classes=2)
    assert {type(value) for value in result} == {float}


def test_ged_floor_is_zero_for_identical_annotations():
    assert ged_floor(torch.ones(4, 2, 2, dtype=torch.long), 10, num_classes=2) == 0
    assert ged_floor(torch.zeros(4, 2, 2, dtype=torch.long), 10, num_classes=2) == 0


def test_energy_distance_rejects_invalid_input():
    good = masks(2, 2, seed=0)
    with pytest.raises(DataError, match="argmax"):
        energy_distance(good.float(), good, num_classes=2)
    with pytest.raises(DataError, match="exclude annotators marked as missing"):
        energy_distance(good, torch.full_like(good, 255), num_classes=2)
    with pytest.raises(DataError, match="of equal size"):
        energy_distance(good, good[:, :2], num_classes=2)
    with pytest.raises(DataError, match="at least one"):
        energy_distance(good, good[:0], num_classes=2)
    with pytest.raises(DataError, match="at least one sample"):
        ged_floor(good, 0, num_classes=2)
