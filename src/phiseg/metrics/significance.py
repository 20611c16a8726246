"""Is one method better than another on the same cases? Tests and intervals over patients, and the paper's t-test.

Cases of one patient are alike, so they are not independent observations. `patient_t_test` and `patient_interval`
take patients, and trainings where there are several, as the random units; `paired_t_test` takes the cases.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from phiseg.core.errors import DataError

Scores = Sequence[float | None] | Sequence[Sequence[float | None]] | NDArray[np.float64]
"""(cases,), or (trainings, cases) of several trainings; None or NaN where a score is absent."""


class PairedTest(NamedTuple):
    """The result of a paired test: None where a number does not exist."""

    mean_difference: float | None
    """Mean of first - second over the cases; None without a pair."""
    statistic: float | None
    """Student's t; None where the differences have no variance, or there are fewer than two units."""
    p_value: float | None
    """Two-sided; None with fewer than two units."""
    num_pairs: int
    """The independent units: cases, or patients in `patient_t_test`."""


def paired_t_test(first: Sequence[float | None], second: Sequence[float | None]) -> PairedTest:
    """Test whether the mean difference of paired scores is zero: two-sided, Student, as in the paper's table.

    t = mean(d) / (std(d) / sqrt(n)) with d = first - second and n - 1 degrees of freedom. It assumes independent
    cases; use `patient_t_test` where patients have several. A pair with an absent score (None or NaN) is skipped.
    If all differences are the same, up to rounding, there is no t: p = 1 if they are zero, 0 if not. With fewer
    than two pairs there is no p.

    Args:
        first: scores of one method, one per case.
        second: scores of the other, the same cases in the same order.

    Raises:
        DataError: the lengths differ or a score is infinite.

    >>> test = paired_t_test([0.3, 0.5, 0.4, None], [0.2, 0.2, 0.3, 0.1])
    >>> round(test.statistic, 3), round(test.p_value, 3), test.num_pairs
    (2.5, 0.13, 3)
    """
    return patient_t_test(first, second, range(len(first)))


def patient_t_test(first: Scores, second: Scores, patients: Sequence[object]) -> PairedTest:
    """Test whether the mean difference over the cases is zero, with patients as the independent units.

    The variance of the mean is the delete-one-patient jackknife's, and Student's t has 1/sum(w²) - 1 degrees of
    freedom, where w is a patient's share of the cases: G - 1 for G patients with equally many cases, fewer if some
    dominate. With one case per patient this is `paired_t_test`. Where a method has R > 1 trainings, the variance of
    its R means over R is added, with R - 1 degrees of freedom, and the degrees are combined after Satterthwaite.
    The variance between seeds of a method with one training is unknown and not in the p-value.

    Args:
        first: scores of one method, (cases,) or (trainings, cases); None or NaN where absent.
        second: scores of the other method, the same cases in the same order.
        patients: the patient of every case.

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

    mean ± t * error, with the error and the degrees of freedom of `patient_t_test`. It covers the mean as often as
    `level` says with six patients, where the percentile bootstrap over patients does not.

    Args:
        values: scores, (cases,) or (trainings, cases); absent ones (None or NaN) are skipped.
        patients: the patient of every case.
        level: the interval's coverage, between 0 and 1.

    Returns:
        The bounds, or None with fewer than two patients.

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
    """A mean over cases."""

    mean: float
    error: float
    """Its standard error."""
    degrees: float
    num_patients: int
    rounding: float
    """Differences up to this are rounding errors."""


def _estimate(
    tables: Sequence[NDArray[np.float64]], signs: Sequence[int], patients: Sequence[object]
) -> _Estimate | None:
    """Estimate the signed sum of the tables (trainings, cases), averaged over the trainings and the cases."""
    num_cases = tables[0].shape[1]
    if len(patients) != num_cases:
        raise DataError(f"{num_cases} scores have {len(patients)} patients; give one patient per case")
    known = np.all([~np.isnan(table).all(0) for table in tables], axis=0)
    if not known.any():
        return None
    tables = [table[:, known] for table in tables]
    values = sum(sign * np.nanmean(table, axis=0) for sign, table in zip(signs, tables, strict=True))
    number: dict[object, int] = {}
    owners = [
        number.setdefault(patient, len(number)) for patient, kept in zip(patients, known, strict=True) if kept
    ]
    counts, sums = np.bincount(owners), np.bincount(owners, weights=values)
    mean, num_patients = float(np.mean(values)), len(counts)
    rounding = 8 * np.finfo(np.float64).eps * max(float(np.nanmax(np.abs(table))) for table in tables)
    if num_patients < 2:
        return _Estimate(mean, 0.0, 1.0, num_patients, rounding)
    without = (sums.sum() - sums) / (len(values) - counts)  # the mean without each of the patients
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
    """Return the values as an array (trainings, cases) with NaN for the absent ones."""
    scores = np.array(values, dtype=np.float64)
    if scores.ndim not in (1, 2) or np.isinf(scores).any():
        raise DataError(f"scores of shape {scores.shape} must be plain lists of finite numbers; None where absent")
    return np.atleast_2d(scores)
