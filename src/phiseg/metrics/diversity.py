"""How much a set of segmentations varies: that of the samples, and that of the annotators to read it against.

Convention: d = 1 - IoU as for the GED; the mean over distinct pairs (the U-statistic), so that it does not depend
on how many masks there are. 0 where all are the same. More is not better: samples should vary as annotators do.
"""

from torch import Tensor

from phiseg.metrics.overlap import pairwise_iou


def diversity(masks: Tensor, *, num_classes: int, both_empty: float = 1.0) -> float | None:
    """Return the mean distance of two distinct masks, 1/(N(N-1)) sum_{i != j} d(m_i, m_j) with d = 1 - IoU.

    Args:
        masks: integer labels (N, *spatial), of the samples or of the valid annotators.
        num_classes: K, the background included.
        both_empty: IoU of a label that neither mask has.

    Returns:
        A number in 0..1, or None for a single mask.

    Raises:
        DataError: labels are not integers in 0..K-1, or the set is empty.

    >>> diversity(Tensor([[[0, 1]], [[1, 1]], [[0, 1]]]).long(), num_classes=2)
    0.3333333333333333
    """
    return mean_distinct(1 - pairwise_iou(masks, masks, num_classes=num_classes, both_empty=both_empty))


def mean_distinct(distances: Tensor) -> float | None:
    """Return the mean of a square matrix over i != j, or None where no such pair exists."""
    count = len(distances)
    if count < 2:
        return None
    return float((distances.sum() - distances.diagonal().sum()) / (count * (count - 1)))
