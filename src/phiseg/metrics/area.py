"""Foreground area, or volume: accuracy and calibration of the areas of the samples.

Convention: areas are numbers of pixels, or of voxels in a volume, one per foreground label; a score is the mean
over the foreground labels and the annotators of an image. An empty mask has area 0 and is included.

S samples, A annotators, K classes.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from phiseg.core.errors import DataError
from phiseg.metrics.overlap import checked_labels

_ROUNDING = 1e-6  # tolerance in pixels for interpolated quantiles


class AreaScores(NamedTuple):
    """Scores of the distribution of sample areas against the annotated areas."""

    crps: float | None
    """Fair continuous ranked probability score in pixels. Lower is better; None if S < 2."""
    coverage: float
    """Fraction of annotations whose area lies in the central interval of the samples, ends included."""
    width: float
    """Mean width of this interval, in pixels."""


def area_scores(samples: Tensor, annotations: Tensor, *, num_classes: int, level: float = 0.9) -> AreaScores:
    """Return the CRPS and the interval coverage of the sample areas.

    CRPS = E|X - y| - 1/2 E|X - X'|, where X are the sample areas and y is an annotated area. E|X - X'| is over
    distinct pairs (the fair CRPS): its expected value does not depend on S, and the score can be negative. It is
    in pixels: a CRPS relative to the annotated area would not be a proper score, and would be undefined for an
    empty annotation.

    The interval lies between the (1 - level)/2 and (1 + level)/2 quantiles with linear interpolation. A perfect
    sampler covers level (S - 1)/(S + 1) of the annotations, 0.882 for 100 samples, or more if areas are often tied.
    Wide intervals have high coverage, so compare the width as well.

    Args:
        samples: integer labels (S, *spatial), the argmax of each sample.
        annotations: integer labels (A, *spatial), valid annotators only.
        num_classes: K, including the background.
        level: nominal coverage of the interval, between 0 and 1.

    Raises:
        DataError: labels are not integers in 0..K-1, a set is empty, the masks differ in size, or `level` is not
            between 0 and 1.

    >>> samples = torch.tensor([[[0, 0, 0]], [[0, 0, 1]], [[0, 1, 1]]])  # areas 0, 1, 2
    >>> area_scores(samples, torch.tensor([[[0, 1, 0]], [[1, 1, 1]]]), num_classes=2, level=0.5)
    AreaScores(crps=0.6666666666666666, coverage=0.5, width=1.0)
    """
    if samples.shape[1:] != annotations.shape[1:]:
        raise DataError(
            f"samples {tuple(samples.shape)} and annotations {tuple(annotations.shape)} differ in size; "
            "pass (S, *spatial) and (A, *spatial)"
        )
    drawn = foreground_areas(samples, num_classes=num_classes)
    observed = foreground_areas(annotations, num_classes=num_classes)
    return area_scores_from(drawn, observed, level=level)


def area_scores_from(drawn: Tensor, observed: Tensor, *, level: float = 0.9) -> AreaScores:
    """Return `area_scores` for precomputed areas.

    Args:
        drawn: areas of the samples (S, K-1).
        observed: areas of the annotations (A, K-1).
        level: nominal coverage of the interval, between 0 and 1.

    >>> area_scores_from(torch.tensor([[0], [1], [2]]), torch.tensor([[1], [3]]), level=0.5).width
    1.0
    """
    if not 0 < level < 1:
        raise DataError(f"level = {level} must be between 0 and 1")
    drawn, observed = drawn.double(), observed.double()
    bounds = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=drawn.dtype, device=drawn.device)
    low, high = drawn.quantile(bounds, dim=0)  # (K-1,) each
    covered = (observed >= low - _ROUNDING) & (observed <= high + _ROUNDING)
    error = (drawn[:, None] - observed).abs().mean()  # (S, A, K-1): all pairs and labels
    spread = _mean_difference(drawn)
    return AreaScores(
        crps=None if spread is None else float(error - spread / 2),
        coverage=float(covered.double().mean()),
        width=float((high - low).mean()),
    )


def foreground_areas(masks: Tensor, *, num_classes: int) -> Tensor:
    """Return the number of pixels of each foreground label in each mask.

    Args:
        masks: integer labels (N, *spatial).
        num_classes: K, including the background.

    Returns:
        int64 (N, K-1).

    Raises:
        DataError: labels are not integers in 0..K-1, or the set is empty.

    >>> foreground_areas(torch.tensor([[[0, 1], [2, 1]]]), num_classes=3)
    tensor([[2, 1]])
    """
    masks = checked_labels("masks", masks, num_classes).flatten(1)  # (N, P)
    return torch.stack([(masks == label).sum(1) for label in range(1, num_classes)], dim=1)


def _mean_difference(values: Tensor) -> Tensor | None:
    """Return the mean of |x_i - x_j| over i != j and over the columns of (S, K-1) in O(S log S)."""
    count = len(values)
    if count < 2:
        return None
    ranks = torch.arange(count, dtype=values.dtype, device=values.device)
    weights = 2 * ranks - (count - 1)  # the i-th smallest is the larger value in i pairs
    sums = weights @ values.sort(0).values  # (K-1,): sum over i < j
    return 2 * sums.mean() / (count * (count - 1))
