"""Is one method better than another on the same cases? The paper's paired t-test, and bootstrap intervals."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

from phiseg.core.errors import DataError
from phiseg.core.random import derive_seed

_VALUES_PER_CHUNK = 2**20  # resampled values held at a time, 8 MB of them


class PairedTest(NamedTuple):
    """The result of a paired test: None where a number does not exist."""

    mean_difference: float | None
    """Mean of first - second; None without a pair."""
    statistic: float | None
    """Student's t; None where the differences have no variance, or there are fewer than two."""
    p_value: float | None
    """Two-sided; None with fewer than two pairs."""
    num_pairs: int


def paired_t_test(first: Sequence[float | None], second: Sequence[float | None]) -> PairedTest:
    """Test whether the mean difference of paired scores is zero: two-sided, Student, as in the paper's table.

    t = mean(d) / (std(d) / sqrt(n)) with d = first - second and n - 1 degrees of freedom. A pair with a score
    that is absent (None or NaN) is left out. If all differences are the same, up to rounding, there is no t:
    p = 1 if they are zero, 0 if not. With fewer than two pairs there is no p.

    Args:
        first: scores of one method, one a case.
        second: scores of the other, the same cases in the same order.

    Raises:
        DataError: the lengths differ or a score is infinite.

    >>> test = paired_t_test([0.3, 0.5, 0.4, None], [0.2, 0.2, 0.3, 0.1])
    >>> round(test.statistic, 3), round(test.p_value, 3), test.num_pairs
    (2.5, 0.13, 3)
    """
    if len(first) != len(second):
        raise DataError(f"{len(first)} scores cannot be paired with {len(second)}; score the same cases")
    scores = np.stack([_scores(first), _scores(second)])  # (2, n)
    scores = scores[:, ~np.isnan(scores).any(0)]
    differences = scores[0] - scores[1]
    count = len(differences)
    if count == 0:
        return PairedTest(None, None, None, 0)
    mean = float(differences.mean())
    if count == 1:
        return PairedTest(mean, None, None, 1)
    rounding = 8 * np.finfo(np.float64).eps * np.abs(scores).max()
    if np.ptp(differences) <= rounding:
        return PairedTest(mean, None, 1.0 if abs(mean) <= rounding else 0.0, count)
    statistic = mean / float(differences.std(ddof=1) / np.sqrt(count))
    return PairedTest(mean, statistic, 2 * float(stdtr(count - 1, -abs(statistic))), count)


def bootstrap_interval(
    values: Sequence[float | None], *, level: float = 0.95, num_resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Return the percentile bootstrap interval of the mean.

    The (1 - level)/2 and (1 + level)/2 quantiles of the means of `num_resamples` draws of n values with
    replacement. It is bounded in memory; the same seed gives the same interval.

    Args:
        values: one score a case; absent ones (None or NaN) are left out.
        level: the interval's coverage, between 0 and 1.
        num_resamples: how many means are drawn.
        seed: of the draws.

    Raises:
        DataError: no value is left, a value is infinite, or `level` or `num_resamples` make no sense.

    >>> bootstrap_interval([0.5, 0.5, None])
    (0.5, 0.5)
    """
    present = _scores(values)
    present = present[~np.isnan(present)]
    if len(present) == 0:
        raise DataError("no value to resample; pass at least one score that is not None or NaN")
    if not 0 < level < 1 or num_resamples < 1:
        raise DataError(f"level = {level} must be between 0 and 1, num_resamples = {num_resamples} at least 1")
    generator = np.random.default_rng(derive_seed(seed, "bootstrap"))
    means = np.empty(num_resamples)
    rows = max(1, _VALUES_PER_CHUNK // len(present))
    for start in range(0, num_resamples, rows):
        chunk = means[start : start + rows]
        chunk[:] = present[generator.integers(len(present), size=(len(chunk), len(present)))].mean(1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _scores(values: Sequence[float | None]) -> NDArray[np.float64]:
    """Return the values as an array with NaN for the absent ones."""
    scores = np.array(values, dtype=np.float64)
    if scores.ndim != 1 or np.isinf(scores).any():
        raise DataError(f"scores of shape {scores.shape} must be a plain list of finite numbers; None where absent")
    return scores
