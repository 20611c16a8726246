"""One segmentation out of many, of annotators or of samples: by majority, by mean, by STAPLE.

N masks, P pixels, K classes.
"""

from typing import Literal

import torch
from torch import Tensor

from phiseg.core.errors import DataError, nearest
from phiseg.metrics.overlap import checked_labels

HOW = ("majority", "mean", "staple")

_MAX_ITERATIONS = 1000
_CONVERGED = 1e-6  # largest change of a rater's performance
_TINY = 1e-300  # keeps logarithms finite


def consensus(masks: Tensor, how: Literal["majority", "mean", "staple"], *, num_classes: int) -> Tensor:
    """Return the consensus of several segmentations.

    `majority` is the label most masks have, `mean` the share of masks that have each label. `staple` weighs each
    mask by how well it agrees with the consensus, both found together by expectation maximisation (Warfield et al.,
    2004): mask j calls the true label k by l with a probability of its own, theta_j(l, k), at first 0.99999 on the
    diagonal; labels are as frequent as in the masks; pixels are independent; it ends when no theta changes by more
    than 1e-6. A minority can win: against empty masks it takes few to be believed that there is a lesion. It is
    made for a few independent raters; of many samples of one model take the majority.

    Ties go to the lowest label, so to the background first.

    Args:
        masks: integer labels (N, *spatial), of the valid annotators or of samples.
        how: `majority`, `mean` or `staple`.
        num_classes: K, the background included.

    Returns:
        (*spatial) labels in the type of `masks`; for `mean` float64 (K, *spatial), probabilities.

    Raises:
        DataError: labels are not integers in 0..K-1, there are none, or `how` is none of the three.

    >>> masks = torch.tensor([[[0, 1, 1]], [[0, 1, 0]], [[0, 0, 1]]])
    >>> consensus(masks, "majority", num_classes=2)
    tensor([[0, 1, 1]])
    >>> consensus(masks[:2], "mean", num_classes=2)[1]
    tensor([[0.0000, 1.0000, 0.5000]], dtype=torch.float64)
    """
    if how not in HOW:
        raise DataError(f"there is no consensus '{how}' ({nearest(how, HOW)})")
    masks = checked_labels("masks", masks, num_classes)
    if how == "staple":
        return _staple(masks.flatten(1)).reshape(masks.shape[1:])
    votes = torch.stack([(masks == label).sum(0) for label in range(num_classes)])  # (K, *spatial)
    return votes.double() / len(masks) if how == "mean" else votes.argmax(0).to(masks.dtype)


def _staple(masks: Tensor) -> Tensor:
    """Return the labels (P,) of masks (N, P); in logarithms, for a product over 100 samples underflows.

    Pixels with the same votes have the same consensus, so each pattern of votes is computed once.
    """
    patterns, pattern_of, pixels = masks.unique(dim=1, return_inverse=True, return_counts=True)
    labels = patterns.unique()  # a label that nobody has is nowhere
    votes = torch.stack([(patterns == label).double() for label in labels])  # (K, N, P')
    weight = pixels.double()  # (P',)
    log_prior = (votes.mean(1) @ weight / weight.sum()).log()  # (K,)
    performance = torch.full((len(labels), len(masks), len(labels)), 1e-5, dtype=votes.dtype, device=votes.device)
    performance = performance / max(1, len(labels) - 1)
    performance.diagonal(dim1=0, dim2=2).fill_(0.99999)  # theta[l, j, k] = P(mask j says l | the truth is k)
    for _ in range(_MAX_ITERATIONS):
        log_likelihood = torch.einsum("ljp,ljk->kp", votes, performance.clamp(min=_TINY).log())
        probs = (log_prior[:, None] + log_likelihood).softmax(0)  # (K, P')
        before, expected = performance, probs * weight
        performance = torch.einsum("ljp,kp->ljk", votes, expected) / expected.sum(1).clamp(min=_TINY)
        if (performance - before).abs().max() < _CONVERGED:
            break
    likeliest = (probs >= probs.amax(0) - _CONVERGED).to(torch.uint8).argmax(0)  # the lowest of equals
    chosen: Tensor = labels[likeliest][pattern_of]
    return chosen
