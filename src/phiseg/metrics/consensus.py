"""Consensus of several segmentations, of annotators or samples: majority vote, mean and STAPLE.

N masks, P pixels, K classes.
"""

from typing import Literal

import torch
from torch import Tensor

from phiseg.core.errors import DataError, nearest
from phiseg.metrics.overlap import checked_labels

HOW = ("majority", "mean", "staple")

_MAX_ITERATIONS = 1000
_CONVERGED = 1e-6  # maximum change of an annotator's performance
_TINY = 1e-300  # keeps logarithms finite


def consensus(masks: Tensor, how: Literal["majority", "mean", "staple"], *, num_classes: int) -> Tensor:
    """Return the consensus of several segmentations.

    `majority` is the most frequent label, `mean` the fraction of masks with each label. `staple` weights each mask
    by its agreement with the consensus and estimates both by expectation maximisation (Warfield et al., 2004). Mask
    j assigns label l to a pixel of true label k with probability theta_j(l, k), initially 0.99999 on the diagonal.
    The prior is the frequency of the labels in the masks, and pixels are independent. The iteration stops when no
    theta changes by more than 1e-6. A minority can win: if most masks are empty, a few lesion masks can outweigh
    them. STAPLE is meant for a few independent annotators; for many samples of one model, use the majority.

    Ties go to the lowest label, so the background comes first.

    Args:
        masks: integer labels (N, *spatial) of valid annotators or of samples.
        how: `majority`, `mean` or `staple`.
        num_classes: K, including the background.

    Returns:
        Labels (*spatial) with the dtype of `masks`; for `mean`, probabilities, float64 (K, *spatial).

    Raises:
        DataError: labels are not integers in 0..K-1, the set is empty, or `how` is unknown.

    >>> masks = torch.tensor([[[0, 1, 1]], [[0, 1, 0]], [[0, 0, 1]]])
    >>> consensus(masks, "majority", num_classes=2)
    tensor([[0, 1, 1]])
    >>> consensus(masks[:2], "mean", num_classes=2)[1]
    tensor([[0.0000, 1.0000, 0.5000]], dtype=torch.float64)
    """
    if how not in HOW:
        raise DataError(f"unknown consensus method '{how}' ({nearest(how, HOW)})")
    masks = checked_labels("masks", masks, num_classes)
    if how == "staple":
        return _staple(masks.flatten(1)).reshape(masks.shape[1:])
    votes = torch.stack([(masks == label).sum(0) for label in range(num_classes)])  # (K, *spatial)
    return votes.double() / len(masks) if how == "mean" else votes.argmax(0).to(masks.dtype)


def _staple(masks: Tensor) -> Tensor:
    """Return the STAPLE labels (P,) of masks (N, P), computed with logarithms to avoid underflow.

    Pixels with the same votes have the same consensus, so each pattern of votes is computed once.
    """
    patterns, pattern_of, pixels = masks.unique(dim=1, return_inverse=True, return_counts=True)
    labels = patterns.unique()  # labels that occur in no mask are excluded
    votes = torch.stack([(patterns == label).double() for label in labels])  # (K, N, P')
    weight = pixels.double()  # (P',)
    log_prior = (votes.mean(1) @ weight / weight.sum()).log()  # (K,)
    performance = torch.full((len(labels), len(masks), len(labels)), 1e-5, dtype=votes.dtype, device=votes.device)
    performance = performance / max(1, len(labels) - 1)
    performance.diagonal(dim1=0, dim2=2).fill_(0.99999)  # theta[l, j, k] = P(mask j has l | the truth is k)
    for _ in range(_MAX_ITERATIONS):
        log_likelihood = torch.einsum("ljp,ljk->kp", votes, performance.clamp(min=_TINY).log())
        probs = (log_prior[:, None] + log_likelihood).softmax(0)  # (K, P')
        before, expected = performance, probs * weight
        performance = torch.einsum("ljp,kp->ljk", votes, expected) / expected.sum(1).clamp(min=_TINY)
        if (performance - before).abs().max() < _CONVERGED:
            break
    likeliest = (probs >= probs.amax(0) - _CONVERGED).to(torch.uint8).argmax(0)  # ties: the lowest label
    chosen: Tensor = labels[likeliest][pattern_of]
    return chosen
