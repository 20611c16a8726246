import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from phiseg.core.errors import DataError
from phiseg.metrics import paired_t_test, patient_interval, patient_t_test

quick = settings(max_examples=50)


def student_tail(t, dof, steps=200_000):
    """P(|T| > t) by the midpoint rule on the density of Student's distribution, x = tan(u)."""
    scale = math.gamma((dof + 1) / 2) / (math.sqrt(dof * math.pi) * math.gamma(dof / 2))
    start, width = math.atan(t), (math.pi / 2 - math.atan(t)) / steps
    x = np.tan(start + (np.arange(steps) + 0.5) * width)
    return 2 * float(np.sum(scale * (1 + x**2 / dof) ** (-(dof + 1) / 2) * (1 + x**2)) * width)


@quick
@given(st.integers(2, 30), st.floats(-2, 2), st.integers(0, 10**6))
def test_paired_t_test_matches_scipy(count, shift, seed):
    first, second = np.random.default_rng(seed).normal(size=(2, count))
    result = paired_t_test(list(first + shift), list(second))
    expected = stats.ttest_rel(first + shift, second)
    assert result.statistic == pytest.approx(expected.statistic)
    assert result.p_value == pytest.approx(expected.pvalue, rel=1e-9)
    assert result.mean_difference == pytest.approx(np.mean(first + shift - second))
    assert result.num_pairs == count


def test_paired_t_test_hand_computed_case():
    first, second = [0.31, 0.25, 0.47, 0.36, 0.29], [0.28, 0.27, 0.39, 0.30, 0.25]
    differences = [a - b for a, b in zip(first, second, strict=True)]
    mean = sum(differences) / 5
    t = mean / math.sqrt(sum((d - mean) ** 2 for d in differences) / 4 / 5)
    result = paired_t_test(first, second)
    assert result.mean_difference == pytest.approx(mean)
    assert result.statistic == pytest.approx(t)
    assert result.p_value == pytest.approx(student_tail(t, 4), rel=1e-6)
    assert 0.05 < result.p_value < 0.1


def test_paired_t_test_is_antisymmetric():
    first, second = [0.3, 0.5, 0.4], [0.2, 0.1, 0.3]
    one, two = paired_t_test(first, second), paired_t_test(second, first)
    assert two.mean_difference == pytest.approx(-one.mean_difference)
    assert two.statistic == pytest.approx(-one.statistic)
    assert two.p_value == pytest.approx(one.p_value)


def test_paired_t_test_skips_missing_scores():
    full = paired_t_test([0.3, 0.5, 0.4], [0.2, 0.1, 0.3])
    holes = paired_t_test([0.3, None, 0.5, math.nan, 0.4, 0.9], [0.2, 0.7, 0.1, 0.4, 0.3, None])
    assert holes == full
    assert holes.num_pairs == 3


def test_paired_t_test_of_equal_scores():
    assert paired_t_test([0.3, 0.5, 0.4], [0.3, 0.5, 0.4]) == (0, None, 1, 3)
    assert paired_t_test([0.0, 0.0], [0.0, 0.0]) == (0, None, 1, 2)


def test_paired_t_test_of_constant_difference():
    result = paired_t_test([0.3, 0.5, 0.4], [0.2, 0.4, 0.3])  # differences are equal up to rounding
    assert result == (pytest.approx(0.1), None, 0, 3)


def test_paired_t_test_ignores_rounding():
    scores = [0.3, 0.5, 0.4, 0.7]
    result = paired_t_test([math.nextafter(score, 1) for score in scores], scores)
    assert result.p_value == 1


def test_paired_t_test_needs_two_pairs():
    assert paired_t_test([], []) == (None, None, None, 0)
    assert paired_t_test([None], [0.5]) == (None, None, None, 0)
    assert paired_t_test([0.5], [0.25]) == (0.25, None, None, 1)


def clustered(rng, counts, correlation, num_sets=1):
    """Return standard normal scores (sets, cases) that correlate within a patient, and the patients."""
    owners = np.repeat(np.arange(len(counts)), counts)
    shared = rng.normal(size=(num_sets, len(counts)))[:, owners]
    scores = np.sqrt(correlation) * shared + np.sqrt(1 - correlation) * rng.normal(size=(num_sets, len(owners)))
    return scores, owners.tolist()


def rejections(counts, level, test, *, repeats=1500):
    """Return the rejection rate (p < level) for two equal methods."""
    rng = np.random.default_rng(5)
    p_values = []
    for _ in range(repeats):
        (first, second), owners = clustered(rng, counts, 0.3, 2)
        p_values.append(test(first, second, owners).p_value)
    return np.mean(np.array(p_values) < level)


def within_chance(rate, level, repeats):
    return abs(rate - level) < 3.3 * math.sqrt(level * (1 - level) / repeats)


@pytest.mark.parametrize("counts", [[25] * 14, [1, 1, 2, 3, 3, 4, 5, 8, 10, 12, 30, 40]], ids=["equal", "unequal"])
def test_patient_t_test_holds_its_level_on_clustered_cases(counts):
    for level in (0.01, 0.05):
        rate = rejections(counts, level, patient_t_test)
        assert rate < level + 3.3 * math.sqrt(level * (1 - level) / 1500)
    if len(set(counts)) == 1:
        assert within_chance(rejections(counts, 0.05, patient_t_test), 0.05, 1500)


def test_paired_t_test_rejects_too_often_on_clustered_cases():
    assert rejections([25] * 14, 0.01, lambda first, second, _: paired_t_test(first, second), repeats=300) > 0.25


def test_patient_t_test_of_equal_patients_is_t_test_of_means():
    (first, second), owners = clustered(np.random.default_rng(1), [4] * 9, 0.5, 2)
    means = (first - second + 0.2).reshape(9, 4).mean(1)
    expected = stats.ttest_1samp(means, 0)
    result = patient_t_test(first + 0.2, second, owners)
    assert (result.statistic, result.p_value) == pytest.approx((expected.statistic, expected.pvalue))
    assert result.num_pairs == 9


def test_patient_t_test_weights_patients_by_their_cases():
    first, patients = [0.5, 0.1, 0.1, 0.1], ["a", "b", "b", "c"]
    result = patient_t_test(first, [0.0] * 4, patients)
    means = [np.mean([0.1, 0.1, 0.1]), np.mean([0.5, 0.1]), np.mean([0.5, 0.1, 0.1])]  # one patient deleted
    error = math.sqrt(2 / 3 * sum((mean - np.mean(means)) ** 2 for mean in means))
    degrees = 1 / (0.25**2 + 0.5**2 + 0.25**2) - 1
    assert result.mean_difference == pytest.approx(0.2)
    assert result.p_value == pytest.approx(student_tail(0.2 / error, degrees), rel=1e-3)


def with_seeds(rng, num_trainings, seed_spread):
    """Return two equal methods (trainings, cases) whose trainings are better or worse as a whole."""
    difficulty, owners = clustered(rng, [5] * 12, 0.4)
    shape = (2, num_trainings, len(owners))
    return difficulty + seed_spread * rng.normal(size=(*shape[:2], 1)) + 0.3 * rng.normal(size=shape), owners


def test_patient_t_test_includes_variance_between_seeds():
    rng, repeats = np.random.default_rng(3), 1500
    with_all, averaged = [], []
    for _ in range(repeats):
        (first, second), owners = with_seeds(rng, 3, 0.3)
        with_all.append(patient_t_test(first, second, owners).p_value)
        averaged.append(patient_t_test(first.mean(0), second.mean(0), owners).p_value)
    assert np.mean(np.array(averaged) < 0.05) > 0.3  # variance between seeds appears as a difference
    assert np.mean(np.array(with_all) < 0.05) < 0.05 + 3.3 * math.sqrt(0.05 * 0.95 / repeats)


@pytest.mark.parametrize("num_trainings", [1, 4])
def test_patient_interval_has_nominal_coverage(num_trainings):
    rng, repeats, inside = np.random.default_rng(4), 1500, 0
    for _ in range(repeats):
        scores, owners = clustered(rng, [25] * 14, 0.3)
        scores = np.repeat(scores, num_trainings, axis=0)
        if num_trainings > 1:
            scores = scores + rng.normal(0, 0.5, size=(num_trainings, 1))
        low, high = patient_interval(scores, owners)
        inside += low < 0 < high
    assert within_chance(inside / repeats, 0.95, repeats)


def test_patient_interval_with_one_case_per_patient_is_student_t():
    values = [0.1, 0.4, 0.3, 0.8]
    expected = stats.t.interval(0.9, 3, np.mean(values), stats.sem(values))
    assert patient_interval(values, "abcd", level=0.9) == pytest.approx(expected)


def test_patient_tests_skip_missing_values():
    values, patients = [0.1, None, 0.4, math.nan, 0.3], ["a", "b", "b", "c", "d"]
    assert patient_interval(values, patients) == patient_interval([0.1, 0.4, 0.3], ["a", "b", "d"])
    assert patient_interval([0.7, 0.8, None], ["a", "a", "b"]) is None
    assert patient_interval([None], ["a"]) is None
    several = [[0.1, None], [0.3, 0.5]]
    assert patient_t_test(several, [0.2, 0.5], ["a", "b"]).mean_difference == pytest.approx(0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: paired_t_test([1.0, 2.0], [1.0]), "same cases"),
        (lambda: paired_t_test([1.0, math.inf], [1.0, 2.0]), "finite"),
        (lambda: patient_t_test([1.0, 2.0], [1.0, 2.0], ["a"]), "one patient per case"),
        (lambda: patient_interval([1.0, -math.inf], ["a", "b"]), "finite"),
        (lambda: patient_interval([1.0], ["a"], level=95), "between 0 and 1"),
    ],
)
def test_significance_rejects_invalid_input(call, message):
    with pytest.raises(DataError, match=message):
        call()
