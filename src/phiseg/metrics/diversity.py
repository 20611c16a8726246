"""Diversity of a set of segmentations: the samples, and the annotators for comparison.

Convention: d = 1 - IoU as for the GED; the mean over distinct pairs (the U-statistic), whose expected value does
not depend on the number of masks. It is 0 for identical masks. Higher is not better: samples should vary as much as
annotators do.
"""

from torch import Tensor

from phiseg.metrics.overlap import pairwise_iou


def diversity(masks: Tensor, *, num_classes: int, both_empty: float = 1.0) -> float | None:
    """Return the mean distance between distinct masks, 1/(N(N-1)) sum_{i != j} d(m_i, m_j) with d = 1 - IoU.

    Args:
        masks: integer labels (N, *spatial) of the samples or of the valid annotators.
        num_classes: K, including the background.
        both_empty: IoU of a label that neither mask contains.

    Returns:
        A number in 0..1, or None for a single mask.

    Raises:
        DataError: labels are not integers in 0..K-1, or the set is empty.

    >>> diversity(Tensor([[[0, 1]], [[1, 1]], [[0, 1]]]).long(), num_classes=2)
    0.3333333333333333
    """
    return mean_distinct(1 - pairwise_iou(masks, masks, num_classes=num_classes, both_empty=both_empty))


def mean_distinct(distances: Tensor) -> float | None:
    """Return the mean of the off-diagonal elements of a square matrix, or None if there are none."""
    count = len(distances)
    if count < 2:
        return None
    return float((distances.sum() - distances.diagonal().sum()) / (count * (count - 1)))
