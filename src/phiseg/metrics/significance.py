"""Significance tests and confidence intervals for two methods on the same cases.

Cases of one patient are correlated, so they are not independent observations. `patient_t_test` and
`patient_interval` use patients, and repeated trainings if there are any, as the random units. `paired_t_test` is
the test of the paper and uses cases.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from phiseg.core.errors import DataError

Scores = Sequence[float | None] | Sequence[Sequence[float | None]] | NDArray[np.float64]
"""(cases,), or (trainings, cases) for several trainings; missing scores are None or NaN."""


class PairedTest(NamedTuple):
    """Result of a paired test; undefined values are None."""

    mean_difference: float | None
    """Mean of first - second over the cases; None if there are no pairs."""
    statistic: float | None
    """Student's t; None if the differences have no variance or there are fewer than two units."""
    p_value: float | None
    """Two-sided; None with fewer than two units."""
    num_pairs: int
    """Number of independent units: cases, or patients in `patient_t_test`."""


def paired_t_test(first: Sequence[float | None], second: Sequence[float | None]) -> PairedTest:
    """Run a two-sided paired t-test, as in the table of the paper.

    t = mean(d) / (std(d) / sqrt(n)) with d = first - second and n - 1 degrees of freedom. It assumes independent
    cases; use `patient_t_test` if patients have several cases. Pairs with a missing score (None or NaN) are
    skipped. If all differences are equal up to rounding, t is undefined, and p = 1 if they are zero and 0
    otherwise. With fewer than two pairs, p is undefined.

    Args:
        first: scores of one method, one per case.
        second: scores of the other method, for the same cases in the same order.

    Raises:
        DataError: the lengths differ or a score is infinite.

    >>> test = paired_t_test([0.3, 0.5, 0.4, None], [0.2, 0.2, 0.3, 0.1])
    >>> round(test.statistic, 3), round(test.p_value, 3), test.num_pairs
    (2.5, 0.13, 3)
    """
    return patient_t_test(first, second, range(len(first)))


def patient_t_test(first: Scores, second: Scores, patients: Sequence[object]) -> PairedTest:
    """Run a two-sided paired t-test with patients as the independent units.

    The null hypothesis is that the mean difference over the cases is zero. The variance of the mean is estimated by
    the delete-one-patient jackknife. Student's t has 1/sum(w²) - 1 degrees of freedom, where w is the fraction of
    cases of a patient: G - 1 for G patients with equally many cases, fewer if some patients dominate. With one case
    per patient, this is `paired_t_test`. If a method has R > 1 trainings, the variance of its R means divided by R
    is added, with R - 1 degrees of freedom; the degrees of freedom are combined by the Satterthwaite formula. The
    variance between seeds of a method with one training is unknown and not part of the p-value.

    Args:
        first: scores of one method, (cases,) or (trainings, cases); missing scores are None or NaN.
        second: scores of the other method, for the same cases in the same order.
        patients: patient of each case.

    Raises:
        DataError: the numbers of cases differ or a score is infinite.

    >>> patient_t_test([0.3, 0.5, 0.4, 0.6], [0.2, 0.2, 0.3, 0.2], ["a", "a", "b", "b"]).num_pairs
    2
    """
    tables = [_scores(first), _scores(second)]
    if tables[0].shape[1] != tables[1].shape[1]:
        counts = " scores cannot be paired with ".join(str(table.shape[1]) for table in tables)
        raise DataError(f"{counts}; score the same cases")
    found = _estimate(tables, [1, -1], patients)
    if found is None or found.num_patients < 2:
        return PairedTest(found and found.mean, None, None, found.num_patients if found else 0)
    mean, error, degrees, num_patients, rounding = found
    if error <= rounding:
        return PairedTest(mean, None, 1.0 if abs(mean) <= rounding else 0.0, num_patients)
    statistic = mean / error
    return PairedTest(mean, statistic, 2 * float(stdtr(degrees, -abs(statistic))), num_patients)


def patient_interval(
    values: Scores, patients: Sequence[object], *, level: float = 0.95
) -> tuple[float, float] | None:
    """Return the confidence interval of the mean over the cases, with patients as the independent units.

    mean ± t * error, with the error and the degrees of freedom of `patient_t_test`. The coverage is close to
    `level` with as few as six patients, unlike that of the percentile bootstrap over patients.

    Args:
        values: scores, (cases,) or (trainings, cases); missing scores (None or NaN) are skipped.
        patients: patient of each case.
        level: coverage of the interval, between 0 and 1.

    Returns:
        The lower and upper bound, or None with fewer than two patients.

    Raises:
        DataError: a value is infinite, the patients do not match the cases, or `level` is not between 0 and 1.

    >>> [round(bound, 3) for bound in patient_interval([0.4, 0.6, 0.5, 0.7], ["a", "a", "b", "c"])]
    [0.242, 0.858]
    """
    if not 0 < level < 1:
        raise DataError(f"level = {level} must be between 0 and 1")
    found = _estimate([_scores(values)], [1], patients)
    if found is None or found.num_patients < 2:
        return None
    half = found.error * float(stdtrit(found.degrees, (1 + level) / 2))
    return found.mean - half, found.mean + half


class _Estimate(NamedTuple):
    """Mean over cases with its standard error."""

    mean: float
    error: float
    """Standard error of the mean."""
    degrees: float
    num_patients: int
    rounding: float
    """Differences up to this value are rounding errors."""


def _estimate(
    tables: Sequence[NDArray[np.float64]], signs: Sequence[int], patients: Sequence[object]
) -> _Estimate | None:
    """Estimate the signed sum of the tables (trainings, cases), averaged over the trainings and the cases."""
    num_cases = tables[0].shape[1]
    if len(patients) != num_cases:
        raise DataError(f"{num_cases} scores, but {len(patients)} patients; pass one patient per case")
    known = np.all([~np.isnan(table).all(0) for table in tables], axis=0)
    if not known.any():
        return None
    tables = [table[:, known] for table in tables]
    values = sum(sign * np.nanmean(table, axis=0) for sign, table in zip(signs, tables, strict=True))
    number: dict[object, int] = {}
    owners = [
        number.setdefault(patient, len(number))
        for patient, is_known in zip(patients, known, strict=True)
        if is_known
    ]
    counts, sums = np.bincount(owners), np.bincount(owners, weights=values)
    mean, num_patients = float(np.mean(values)), len(counts)
    rounding = 8 * np.finfo(np.float64).eps * max(float(np.nanmax(np.abs(table))) for table in tables)
    if num_patients < 2:
        return _Estimate(mean, 0.0, 1.0, num_patients, rounding)
    without = (sums.sum() - sums) / (len(values) - counts)  # mean without each patient
    shares = counts / len(values)
    parts = [((num_patients - 1) * float(without.var()), max(1.0, 1 / float(np.sum(shares**2)) - 1))]
    for table in tables:
        table = table[~np.isnan(table).all(1)]
        if (trainings := len(table)) > 1:
            parts.append((float(np.nanmean(table, axis=1).var(ddof=1)) / trainings, trainings - 1))
    variance = sum(part for part, _ in parts)
    spread = sum(part**2 / degrees for part, degrees in parts)
    degrees = variance**2 / spread if spread else 1.0
    return _Estimate(mean, variance**0.5, degrees, num_patients, rounding)


def _scores(values: Scores) -> NDArray[np.float64]:
    """Return the values as an array (trainings, cases) with NaN for missing scores."""
    scores = np.array(values, dtype=np.float64)
    if scores.ndim not in (1, 2) or np.isinf(scores).any():
        raise DataError(f"scores of shape {scores.shape} must be lists of finite numbers, with None for missing")
    return np.atleast_2d(scores)
