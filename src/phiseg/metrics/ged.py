"""Generalised energy distance between a set of sampled segmentations and a set of annotations.

Convention: d = 1 - IoU of label masks, averaged over the foreground labels, with distance 0 between two empty
masks; the *squared* distance of one image; the V-statistic of the paper, which includes the pairs i = j. It
decreases with the number of samples, so values for 16 and 100 samples are not comparable. Values of `ged_unbiased`
are.

S samples, A annotators, K classes.
"""

from typing import NamedTuple

from torch import Tensor

from phiseg.core.errors import DataError
from phiseg.metrics.diversity import mean_distinct
from phiseg.metrics.overlap import pairwise_iou


class EnergyDistance(NamedTuple):
    """Squared GED of one image, its three terms, and the floor for comparison."""

    ged: float
    """GED of the paper: 2 cross - within_samples - within_annotations."""
    ged_unbiased: float | None
    """U-statistic: distinct pairs only. Its expected value is 0 for samples from the annotators' distribution if
    annotators are independent given the image, and above 0 if they correlate (`metrics.annotator_correlation`).
    None if S < 2 or A < 2."""
    ged_floor: float | None
    """Expected `ged` of samples from the annotators' distribution if annotators are independent given the image;
    `ged - ged_floor` is an upper bound of the possible improvement. None if A < 2."""
    cross: float
    """E d(s, y)."""
    within_samples: float
    """E d(s, s'), including i = j."""
    within_annotations: float
    """E d(y, y'), including i = j."""


def energy_distance(
    samples: Tensor, annotations: Tensor, *, num_classes: int, both_empty: float = 1.0
) -> EnergyDistance:
    """Return the squared GED between samples and annotations, with its terms.

    D² = 2 E d(s, y) - E d(s, s') - E d(y, y') with d = 1 - IoU. As in the paper, the square root is not taken.
    IoU is a positive definite kernel, so D² is never negative (up to rounding) for any number of classes.

    Args:
        samples: integer labels (S, *spatial), the argmax of each sample.
        annotations: integer labels (A, *spatial), valid annotators only.
        num_classes: K, including the background.
        both_empty: IoU of a label that neither mask contains.

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
    """Return `energy_distance` for precomputed distances.

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
    """Return the expected GED of the paper for a sampler of the annotators' distribution.

    It assumes that annotators are independent given the image. Annotators who saw more than the image agree more,
    and the floor cannot be reached (`metrics.annotator_correlation`).

    E[D²] = delta (1/A + 1/S), where delta is the mean distance between two distinct annotators: the pairs i = j
    with distance 0 make both within-terms too small. It is None for a single annotator. If `both_empty` is not 1,
    the distance of a mask to itself can be positive; the mean of these distances is subtracted from delta. Samples
    that copy the given annotations can fall below the floor.

    Args:
        annotations: integer labels (A, *spatial), valid annotators only.
        num_samples: S.
        num_classes: K, including the background.
        both_empty: IoU of a label that neither mask contains.

    Raises:
        DataError: labels are not integers in 0..K-1, the set is empty, or `num_samples` is not positive.

    >>> ged_floor(Tensor([[[0, 1]], [[1, 1]]]).long(), 2, num_classes=2)
    0.5
    """
    if num_samples < 1:
        raise DataError(f"num_samples = {num_samples}; pass at least one sample")
    similarity = pairwise_iou(annotations, annotations, num_classes=num_classes, both_empty=both_empty)
    return _floor(1 - similarity, num_samples)


def _floor(distances: Tensor, num_samples: int) -> float | None:
    delta = mean_distinct(distances)
    if delta is None:
        return None
    return (delta - float(distances.diagonal().mean())) * (1 / len(distances) + 1 / num_samples)
