"""Generalised energy distance between a set of sampled segmentations and a set of annotations.

Convention: d = 1 - IoU of hard masks, the mean over the foreground labels, two empty masks at distance 0; the
*squared* distance, per image; the V-statistic of the paper, which counts every pair, i = j included. It falls
as samples are added, so numbers at 16 and at 100 samples cannot be compared; `ged_unbiased` can.

S samples, A annotators, K classes.
"""

from typing import NamedTuple

from torch import Tensor

from phiseg.core.errors import DataError
from phiseg.metrics.diversity import mean_distinct
from phiseg.metrics.overlap import pairwise_iou


class EnergyDistance(NamedTuple):
    """The squared GED of one image, its three terms, and what to read it against."""

    ged: float
    """The paper's: 2 cross - within_samples - within_annotations."""
    ged_unbiased: float | None
    """The U-statistic, distinct pairs only. Its mean is 0 for samples from the annotators' distribution if
    annotators are independent given the image, above 0 if they correlate (`metrics.correlation`).
    None if S < 2 or A < 2."""
    ged_floor: float | None
    """What `ged` is on average for samples from the annotators' distribution, if annotators are independent given
    the image; `ged - ged_floor` is an upper bound of what a model could gain. None if A < 2."""
    cross: float
    """E d(s, y)."""
    within_samples: float
    """E d(s, s'), i = j included."""
    within_annotations: float
    """E d(y, y'), i = j included."""


def energy_distance(
    samples: Tensor, annotations: Tensor, *, num_classes: int, both_empty: float = 1.0
) -> EnergyDistance:
    """Compare the distribution of samples with that of annotations.

    D² = 2 E d(s, y) - E d(s, s') - E d(y, y') with d = 1 - IoU, squared as in the paper, never its root.
    IoU is a positive definite kernel, so D² is not negative (but for rounding), whatever the number of classes.

    Args:
        samples: integer labels (S, *spatial), the argmax of each sample.
        annotations: integer labels (A, *spatial), valid annotators only.
        num_classes: K, the background included.
        both_empty: IoU of a label that neither mask has.

    Raises:
        DataError: labels are not integers in 0..K-1, a set is empty, or the masks differ in size.

    >>> annotations = Tensor([[[0, 1]], [[1, 1]]]).long()
    >>> energy_distance(annotations, annotations, num_classes=2).ged
    0.0
    >>> tuple(energy_distance(annotations[:1], annotations, num_classes=2))
    (0.25, None, 0.75, 0.25, 0.0, 0.25)
    """

    def distance(first: Tensor, second: Tensor) -> Tensor:
        return 1 - pairwise_iou(first, second, num_classes=num_classes, both_empty=both_empty)

    return energy_distance_from(
        distance(samples, annotations), distance(samples, samples), distance(annotations, annotations)
    )


def energy_distance_from(d_cross: Tensor, d_samples: Tensor, d_annotations: Tensor) -> EnergyDistance:
    """Return what `energy_distance` does, of distances that are known already.

    Args:
        d_cross: d(s, y), (S, A).
        d_samples: d(s, s'), (S, S).
        d_annotations: d(y, y'), (A, A).

    >>> energy_distance_from(Tensor([[0.5]]), Tensor([[0.0]]), Tensor([[0.0]])).ged
    1.0
    """
    cross, within_samples, within_annotations = (float(d.mean()) for d in (d_cross, d_samples, d_annotations))
    spread, delta = mean_distinct(d_samples), mean_distinct(d_annotations)
    return EnergyDistance(
        ged=2 * cross - within_samples - within_annotations,
        ged_unbiased=None if spread is None or delta is None else 2 * cross - spread - delta,
        ged_floor=_floor(d_annotations, len(d_samples)),
        cross=cross,
        within_samples=within_samples,
        within_annotations=within_annotations,
    )


def ged_floor(annotations: Tensor, num_samples: int, *, num_classes: int, both_empty: float = 1.0) -> float | None:
    """Return the mean of the paper's GED for a sampler that draws from the annotators' own distribution.

    It holds if annotators are independent given the image. Those who saw more than the image agree more, and the
    floor cannot be reached (`metrics.correlation`).

    E[D²] = delta (1/A + 1/S) with delta the mean distance of two distinct annotators: the pairs i = j, at
    distance 0, make both within-terms too small. It is None with one annotator, who cannot disagree. If
    `both_empty` is not 1, a mask can be at a distance from itself, and the mean of those is taken off delta.
    Samples that copy these very annotations can fall below the floor: they know more than the distribution.

    Args:
        annotations: integer labels (A, *spatial), valid annotators only.
        num_samples: S.
        num_classes: K, the background included.
        both_empty: IoU of a label that neither mask has.

    Raises:
        DataError: labels are not integers in 0..K-1, the set is empty, or `num_samples` is not positive.

    >>> ged_floor(Tensor([[[0, 1]], [[1, 1]]]).long(), 2, num_classes=2)
    0.5
    """
    if num_samples < 1:
        raise DataError(f"num_samples = {num_samples}; the floor is that of at least one sample")
    similarity = pairwise_iou(annotations, annotations, num_classes=num_classes, both_empty=both_empty)
    return _floor(1 - similarity, num_samples)


def _floor(distances: Tensor, num_samples: int) -> float | None:
    delta = mean_distinct(distances)
    if delta is None:
        return None
    return (delta - float(distances.diagonal().mean())) * (1 / len(distances) + 1 / num_samples)
