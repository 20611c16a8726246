from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import naive_metrics as naive
from phiseg.core.errors import DataError
from phiseg.metrics import area_scores, foreground_areas


def masks(count, num_classes, seed, size=(4, 5)):
    return torch.randint(num_classes, (count, *size), generator=torch.Generator().manual_seed(seed))


def squares(*areas, pixels=100):
    """Masks of the given areas."""
    return (torch.arange(pixels) < torch.tensor(areas)[:, None]).reshape(len(areas), 1, pixels)


@settings(max_examples=50)
@given(
    st.sampled_from([1, 2, 5, 11, 21, 41]),  # with 21 and 41 samples, the 5 % quantile is one of the samples
    st.integers(1, 5),
    st.sampled_from([2, 3, 5]),
    st.sampled_from([Fraction(9, 10), Fraction(1, 2), Fraction(2, 3)]),
    st.integers(0, 10**6),
)
def test_area_scores_match_reference(num_samples, num_annotators, num_classes, level, seed):
    samples, annotations = masks(num_samples, num_classes, seed), masks(num_annotators, num_classes, seed + 1)
    found = area_scores(samples, annotations, num_classes=num_classes, level=float(level))
    s, y = samples.tolist(), annotations.tolist()
    coverage, width = naive.area_interval(s, y, num_classes, level)
    assert found.coverage == pytest.approx(coverage)
    assert found.width == pytest.approx(width)
    if num_samples > 1:
        assert found.crps == pytest.approx(naive.area_crps(s, y, num_classes))
    else:
        assert found.crps is None


def test_foreground_areas_counts_each_label():
    found = masks(3, 4, seed=0)
    expected = [[naive.area(mask, label) for label in (1, 2, 3)] for mask in found.tolist()]
    assert foreground_areas(found, num_classes=4).tolist() == expected


def test_coverage_includes_interval_ends():
    samples = squares(*range(0, 84, 4))  # 21 areas: the 5 % and 95 % quantiles are 4 and 76
    assert area_scores(samples, squares(4, 76), num_classes=2)[1:] == (1, 72)
    assert area_scores(samples, squares(3, 77), num_classes=2).coverage == 0


def test_area_scores_hand_computed_case():
    found = area_scores(squares(10, 20), squares(10, 40), num_classes=2)
    assert found.crps == pytest.approx((5 + 25) / 2 - 10 / 2)
    assert found.coverage == 0  # from 10.5 to 19.5
    assert found.width == pytest.approx(9)


def test_crps_of_deterministic_sampler_is_absolute_error():
    found = area_scores(squares(30).expand(9, -1, -1), squares(30, 40), num_classes=2)
    assert found == (5, 0.5, 0)


def test_perfect_sampler_has_nominal_coverage_and_unbiased_crps():
    generator = torch.Generator().manual_seed(0)
    scores = {}
    for num_samples in (4, 20):
        rows = []
        for _ in range(800):
            drawn = torch.randint(0, 5000, (num_samples + 1,), generator=generator).tolist()
            masks = squares(*drawn, pixels=5000)
            rows.append(area_scores(masks[:-1], masks[-1:], num_classes=2))
        coverage = sum(row.coverage for row in rows) / len(rows)
        assert coverage == pytest.approx(0.9 * (num_samples - 1) / (num_samples + 1), abs=0.04)
        scores[num_samples] = sum(row.crps for row in rows) / len(rows)
    assert scores[4] == pytest.approx(5000 / 6, rel=0.08)  # E|X - X'| / 2 of a uniform area
    assert scores[20] == pytest.approx(5000 / 6, rel=0.08)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: area_scores(squares(1), squares(1), num_classes=2, level=90), "between 0 and 1"),
        (lambda: area_scores(squares(1), squares(1, pixels=50), num_classes=2), "differ in size"),
        (lambda: area_scores(squares(1), torch.full((1, 1, 100), 255), num_classes=2), "missing \\(255\\)"),
        (lambda: area_scores(squares(1)[:0], squares(1), num_classes=2), "no mask"),
    ],
)
def test_area_scores_reject_invalid_input(call, message):
    with pytest.raises(DataError, match=message):
        call()
