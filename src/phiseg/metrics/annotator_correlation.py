"""Residual correlation: agreement between annotators that the probabilities of a model do not explain.

A model can reach the floor of the GED, and an unbiased GED of 0, only if annotators are independent given the input
of the network. Annotators who saw more than that, such as the whole scan, are not. Let mu be the kernel mean
embedding of a distribution of masks, with IoU as the kernel. For samples from q(s | x),

    E unbiased GED = |mu_q - mu_P|² + (delta_x - delta),    P = p(y | x)

where delta is the expected distance of two annotations of one case, and delta_x that of two annotations drawn
independently given x. The first term is the error of the model. The second is 0 only for independent annotators,
and no model that sees only x can remove it. If any two annotators share a draw from P with probability rho and are
independent otherwise,

    Cov(y_a, y_b | x) = rho p (1 - p) in every pixel,    delta = (1 - rho) delta_x,

so rho follows from the pixels, and the second term is delta rho / (1 - rho). rho given x cannot be observed,
because every image occurs once. It is therefore estimated given the model's probability of the pixel, which carries
less information than x. If rho is the same for all images, the estimate is an upper bound of the irreducible part:
no calibration of the probabilities can remove it, but a model that uses x better, or sees more of the scan, might.
All pixels have the same weight, so large lesions dominate rho. If annotators correlate mostly for small lesions,
the estimate is too small, because the GED of a small lesion counts as much as that of a large one.

A annotators, K classes, B bins.
"""

import torch
from torch import Tensor

from phiseg.core.errors import DataError
from phiseg.metrics.calibration import bin_edges
from phiseg.metrics.overlap import checked_labels

NUM_BINS = 100
"""Narrow bins: the probability is nearly constant within each."""


def agreement_table(mean_probs: Tensor, annotations: Tensor, *, num_bins: int = NUM_BINS) -> Tensor:
    """Return how often one and two annotators mark a pixel, binned by the model's probability. Sum over images.

    Args:
        mean_probs: mean of the softmax samples (K, *spatial).
        annotations: integer labels (A, *spatial), valid annotators only.
        num_bins: B.

    Returns:
        A float64 table (K-1, B, 3). For each foreground label and probability bin, it has the number of pixels, and
        the sums of the fraction of annotators and of the fraction of pairs of distinct annotators who gave them
        that label. All zeros with a single annotator.

    Raises:
        DataError: the shapes do not match, or labels are not integers in 0..K-1.

    >>> probs = torch.tensor([[[0.75, 0.5]], [[0.25, 0.5]]])
    >>> agreement_table(probs, torch.tensor([[[0, 1]], [[0, 1]]]), num_bins=2)
    tensor([[[1., 0., 0.],
             [1., 1., 1.]]], dtype=torch.float64)
    """
    num_classes, count = len(mean_probs), len(annotations)
    annotations = checked_labels("annotations", annotations, num_classes)
    if annotations.shape[1:] != mean_probs.shape[1:]:
        raise DataError(
            f"annotations {tuple(annotations.shape)} do not match mean_probs {tuple(mean_probs.shape)}; "
            "pass (A, *spatial) and (K, *spatial)"
        )
    table = torch.zeros(num_classes - 1, num_bins, 3, dtype=torch.float64, device=mean_probs.device)
    if count < 2:
        return table
    edges = bin_edges(num_bins).to(mean_probs.device)
    for label in range(1, num_classes):
        marks = (annotations == label).flatten(1).sum(0).double()  # (P,) annotators who gave the label
        place = torch.bucketize(mean_probs[label].flatten().double(), edges[1:-1], right=True)
        pairs = marks * (marks - 1) / (count * (count - 1))
        table[label - 1].index_add_(0, place, torch.stack([torch.ones_like(marks), marks / count, pairs], dim=1))
    return table


def residual_correlation(table: Tensor) -> float | None:
    """Return the correlation rho of two annotators given the model's probability, from summed tables.

    If annotators mark a fraction v of the pixels of a bin and pairs of annotators a fraction w, the covariance is
    w - v² and the variance v - v². rho is the sum of the covariances divided by the sum of the variances, over the
    pixels of all bins and foreground labels. None if annotators never differ within a bin.

    Args:
        table: (K-1, B, 3), summed over all images.

    >>> residual_correlation(torch.tensor([[[100.0, 50.0, 30.0]]]))
    0.2
    """
    pixels, votes, pairs = table.double().flatten(0, 1).unbind(-1)
    explained = votes.square() / pixels.clamp_min(1)
    variance = float((votes - explained).sum())
    return float((pairs - explained).sum()) / variance if variance > 1e-9 else None


def correlated_excess(correlation: float, diversity_annotators: float) -> float:
    """Return the unbiased GED of a perfect sampler of p(y | x) for correlated annotators, delta rho / (1 - rho).

    Args:
        correlation: rho from `residual_correlation`; negative values count as 0.
        diversity_annotators: delta, the mean distance between two distinct annotators.

    >>> round(correlated_excess(0.2, 0.4), 3)
    0.1
    """
    rho = min(max(correlation, 0.0), 1 - 1e-6)
    return diversity_annotators * rho / (1 - rho)
