import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from phiseg.core.errors import DataError
from phiseg.metrics import bootstrap_interval, paired_t_test, significance

quick = settings(deadline=None, max_examples=50)


def student_tail(t, dof, steps=200_000):
    """P(|T| > t) by the midpoint rule on the density of Student's distribution, x = tan(u)."""
    scale = math.gamma((dof + 1) / 2) / (math.sqrt(dof * math.pi) * math.gamma(dof / 2))
    start, width = math.atan(t), (math.pi / 2 - math.atan(t)) / steps
    x = np.tan(start + (np.arange(steps) + 0.5) * width)
    return 2 * float(np.sum(scale * (1 + x**2 / dof) ** (-(dof + 1) / 2) * (1 + x**2)) * width)


@quick
@given(st.integers(2, 30), st.floats(-2, 2), st.integers(0, 10**6))
def test_it_is_the_paired_two_sided_t_test(count, shift, seed):
    first, second = np.random.default_rng(seed).normal(size=(2, count))
    result = paired_t_test(list(first + shift), list(second))
    expected = stats.ttest_rel(first + shift, second)
    assert result.statistic == pytest.approx(expected.statistic)
    assert result.p_value == pytest.approx(expected.pvalue, rel=1e-9)
    assert result.mean_difference == pytest.approx(np.mean(first + shift - second))
    assert result.num_pairs == count


def test_a_case_from_the_definition():
    first, second = [0.31, 0.25, 0.47, 0.36, 0.29], [0.28, 0.27, 0.39, 0.30, 0.25]
    differences = [a - b for a, b in zip(first, second, strict=True)]
    mean = sum(differences) / 5
    t = mean / math.sqrt(sum((d - mean) ** 2 for d in differences) / 4 / 5)
    result = paired_t_test(first, second)
    assert result.mean_difference == pytest.approx(mean)
    assert result.statistic == pytest.approx(t)
    assert result.p_value == pytest.approx(student_tail(t, 4), rel=1e-6)
    assert 0.05 < result.p_value < 0.1


def test_swapping_the_methods_only_turns_the_sign():
    first, second = [0.3, 0.5, 0.4], [0.2, 0.1, 0.3]
    one, two = paired_t_test(first, second), paired_t_test(second, first)
    assert two.mean_difference == pytest.approx(-one.mean_difference)
    assert two.statistic == pytest.approx(-one.statistic)
    assert two.p_value == pytest.approx(one.p_value)


def test_pairs_with_an_absent_score_are_left_out():
    full = paired_t_test([0.3, 0.5, 0.4], [0.2, 0.1, 0.3])
    holes = paired_t_test([0.3, None, 0.5, math.nan, 0.4, 0.9], [0.2, 0.7, 0.1, 0.4, 0.3, None])
    assert holes == full
    assert holes.num_pairs == 3


def test_equal_methods_do_not_differ():
    assert paired_t_test([0.3, 0.5, 0.4], [0.3, 0.5, 0.4]) == (0, None, 1, 3)
    assert paired_t_test([0.0, 0.0], [0.0, 0.0]) == (0, None, 1, 2)


def test_methods_that_differ_by_a_constant_certainly_differ():
    result = paired_t_test([0.3, 0.5, 0.4], [0.2, 0.4, 0.3])  # differences equal only up to rounding
    assert result == (pytest.approx(0.1), None, 0, 3)


def test_methods_that_differ_by_rounding_only_do_not_differ():
    scores = [0.3, 0.5, 0.4, 0.7]
    result = paired_t_test([math.nextafter(score, 1) for score in scores], scores)
    assert result.p_value == 1


def test_fewer_than_two_pairs_have_no_p_value():
    assert paired_t_test([], []) == (None, None, None, 0)
    assert paired_t_test([None], [0.5]) == (None, None, None, 0)
    assert paired_t_test([0.5], [0.25]) == (0.25, None, None, 1)


@pytest.mark.parametrize("level", [0.5, 0.8, 0.9])
def test_the_bootstrap_agrees_with_all_possible_resamples(level):
    values = [0.1, 0.2, 0.6, 0.7]
    every_mean = [sum(draw) / 4 for draw in product(values, repeat=4)]
    expected = np.quantile(every_mean, [(1 - level) / 2, (1 + level) / 2])
    assert bootstrap_interval(values, level=level, num_resamples=50_000) == pytest.approx(expected, abs=0.013)


def test_the_bootstrap_of_many_values_is_the_normal_interval():
    values = np.random.default_rng(0).normal(3, 2, size=500)
    low, high = bootstrap_interval(list(values), num_resamples=4000)
    error = values.std() / math.sqrt(500)
    assert (low, high) == pytest.approx(
        (values.mean() - 1.96 * error, values.mean() + 1.96 * error), abs=0.15 * error
    )


def test_the_bootstrap_depends_on_its_seed_and_on_nothing_else(monkeypatch):
    values = list(np.random.default_rng(0).normal(size=50))
    interval = bootstrap_interval(values, seed=3)
    np.random.default_rng().normal()
    assert bootstrap_interval(values, seed=3) == interval
    assert bootstrap_interval(values, seed=4) != interval
    monkeypatch.setattr(significance, "_VALUES_PER_CHUNK", 120)  # two resamples at a time
    assert bootstrap_interval(values, seed=3) == interval
    monkeypatch.setattr(significance, "_VALUES_PER_CHUNK", 1)  # a resample is never split
    assert bootstrap_interval(values, seed=3) == interval


def test_absent_values_are_not_resampled():
    values = [0.1, 0.4, 0.3]
    assert bootstrap_interval([0.1, None, 0.4, math.nan, 0.3]) == bootstrap_interval(values)
    assert bootstrap_interval([0.7]) == (0.7, 0.7)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: paired_t_test([1.0, 2.0], [1.0]), "same cases"),
        (lambda: paired_t_test([1.0, math.inf], [1.0, 2.0]), "finite"),
        (lambda: bootstrap_interval([]), "at least one"),
        (lambda: bootstrap_interval([None]), "at least one"),
        (lambda: bootstrap_interval([1.0, -math.inf]), "finite"),
        (lambda: bootstrap_interval([1.0], level=95), "between 0 and 1"),
        (lambda: bootstrap_interval([1.0], num_resamples=0), "at least 1"),
    ],
)
def test_a_wrong_input_is_told_with_its_cure(call, message):
    with pytest.raises(DataError, match=message):
        call()
