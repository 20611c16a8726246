"""Matching of samples and annotations: Hungarian-matched IoU and best-match Dice.

S samples, A annotators, K classes.
"""

from math import lcm

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import linear_sum_assignment, linprog
from torch import Tensor

from phiseg.metrics.overlap import pairwise_dice, pairwise_iou

_MAX_REPLICAS = 500  # takes about 30 ms; the time grows with the cube


def matched_iou(samples: Tensor, annotations: Tensor, *, num_classes: int, both_empty: float = 1.0) -> float:
    """Return the Hungarian-matched IoU (HM-IoU) of Kohl et al., 2019; 1 if both sets have the same distribution.

    Both sets are repeated up to the least common multiple of their sizes. Each copy of a sample is matched with one
    copy of an annotation so that the mean IoU is maximal; that mean is returned. All samples count: matching only
    the best A samples, as Flow-SSN does for its 0.872 on LIDC, gives a different, larger value.

    Args:
        samples: integer labels (S, *spatial), the argmax of each sample.
        annotations: integer labels (A, *spatial), valid annotators only.
        num_classes: K, including the background; IoU is averaged over the foreground labels.
        both_empty: IoU of a label that neither mask contains; 0 if only one mask contains it.

    Raises:
        DataError: labels are not integers in 0..K-1, a set is empty, or the masks differ in size.

    >>> masks = Tensor([[[0, 1]], [[1, 1]], [[0, 0]]]).long()
    >>> matched_iou(masks[[0, 0, 1, 1]], masks[:2], num_classes=2)  # both annotations equally often
    1.0
    >>> matched_iou(masks[[0, 0, 0, 0]], masks[:2], num_classes=2)  # one of them is never sampled
    0.75
    """
    return matched_mean(pairwise_iou(samples, annotations, num_classes=num_classes, both_empty=both_empty))


def matched_mean(similarity: Tensor) -> float:
    """Return the maximum mean similarity of a matching in which each row has weight 1/N and each column 1/M.

    It is the optimal one-to-one matching of rows and columns repeated up to their least common multiple. If that is
    large, as for 1000 samples and 6 annotators, the equivalent transport problem is solved without copies.

    Args:
        similarity: (N, M), such as the result of `pairwise_iou`.

    >>> matched_mean(Tensor([[0.25, 0.75], [0.5, 0.5]]))
    0.625
    """
    matrix = similarity.double().cpu().numpy()
    size = lcm(*matrix.shape)
    if size > _MAX_REPLICAS:
        return _transported_mean(matrix)
    for axis in (0, 1):
        matrix = matrix.repeat(size // matrix.shape[axis], axis)  # (size, size) after both steps
    return float(matrix[linear_sum_assignment(matrix, maximize=True)].mean())


def best_dice(samples: Tensor, annotations: Tensor, *, num_classes: int, both_empty: float = 1.0) -> float:
    """Return the best-match Dice: the mean over annotations of the Dice score with the closest sample.

    It measures whether each annotation occurs among the samples, not how often, and increases with the number of
    samples. Compare it only at the same S, and together with the diversity.

    Args:
        samples: integer labels (S, *spatial), the argmax of each sample.
        annotations: integer labels (A, *spatial), valid annotators only.
        num_classes: K, including the background; Dice is averaged over the foreground labels.
        both_empty: Dice of a label that neither mask contains; 0 if only one mask contains it.

    Raises:
        DataError: labels are not integers in 0..K-1, a set is empty, or the masks differ in size.

    >>> masks = Tensor([[[0, 1]], [[1, 1]], [[0, 0]]]).long()
    >>> best_dice(masks[[0, 2]], masks[[0, 2]], num_classes=2)
    1.0
    >>> best_dice(masks[[0]], masks[[0, 2]], num_classes=2)
    0.5
    """
    return best_mean(pairwise_dice(samples, annotations, num_classes=num_classes, both_empty=both_empty))


def best_mean(similarity: Tensor) -> float:
    """Return the mean over the columns of the column maximum.

    Args:
        similarity: (N, M), such as the result of `pairwise_dice`.

    >>> best_mean(Tensor([[0.25, 0.75], [0.5, 0.5]]))
    0.625
    """
    return float(similarity.amax(0).mean())


def _transported_mean(similarity: NDArray[np.float64]) -> float:
    """Return the optimum of the transport problem with equal weights, which equals that of the matching."""
    rows, columns = similarity.shape
    leaving = sparse.kron(sparse.eye_array(rows), np.ones((1, columns)))  # (N, N M): flow out of each row
    arriving = sparse.kron(np.ones((1, rows)), sparse.eye_array(columns))  # (M, N M): flow into each column
    weights = np.concatenate([np.full(rows, 1 / rows), np.full(columns, 1 / columns)])
    flows = sparse.vstack([leaving, arriving]).tocsr()
    result = linprog(-similarity.ravel(), A_eq=flows, b_eq=weights)  # type: ignore[call-overload]  # accepts sparse
    return -float(result.fun)
