"""Do annotators agree more with each other than a model's probabilities explain? Their residual correlation.

The floor of the GED, and 0 for the unbiased GED, can be reached only if annotators are independent given what the
network sees. Annotators who saw more, such as the whole scan, are not. Let u be what they share beyond the image x,
and mu the kernel mean embedding of a distribution of masks (IoU is the kernel). For samples from q(s | x)

    E unbiased GED = |mu_q - mu_P|² + (delta_x - delta),    P = p(y | x)

with delta the expected distance of two annotations of one case, and delta_x that of two annotations drawn
independently given x. The first term is the model's error. The second is 0 only for independent annotators, and no
model that sees x alone can remove it. If any two annotators share a draw from P with probability rho and are
independent otherwise,

    Cov(y_a, y_b | x) = rho p (1 - p) in every pixel,    delta = (1 - rho) delta_x,

so rho follows from the pixels, and the second term is delta rho / (1 - rho). Given x, rho cannot be observed, since
every image is seen once. It is estimated given the model's own probability, which knows less than x. So it is an
upper bound of what is irreducible: what no function of the model's probabilities could remove, but a model that
uses x better, or sees more of the scan, might.

A annotators, K classes, B bins.
"""

import torch
from torch import Tensor

from phiseg.core.errors import DataError
from phiseg.metrics.calibration import bin_edges
from phiseg.metrics.overlap import checked_labels

NUM_BINS = 100
"""Narrow, so that the probability hardly varies within a bin."""


def agreement_table(mean_probs: Tensor, annotations: Tensor, *, num_bins: int = NUM_BINS) -> Tensor:
    """Return how often one and two annotators mark a pixel, by the model's probability; add up those of images.

    Args:
        mean_probs: mean of the softmax samples (K, *spatial).
        annotations: integer labels (A, *spatial), valid annotators only.
        num_bins: B.

    Returns:
        float64 (K-1, B, 3): for each foreground label and bin of its probability the number of pixels, and the sums
        of the share of annotators and of the share of pairs of distinct annotators who gave them that label. All 0
        with one annotator.

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
    """Return the correlation rho of two annotators given the model's probability, from a sum of tables.

    In a bin where annotators mark the share v of the pixels and pairs of them the share w, the covariance is w - v²
    and the variance v - v². rho is the sum of the covariances over that of the variances, over the pixels of all
    bins and foreground labels. None where annotators never differ within a bin.

    Args:
        table: (K-1, B, 3), the sum of those of all images.

    >>> residual_correlation(torch.tensor([[[100.0, 50.0, 30.0]]]))
    0.2
    """
    pixels, votes, pairs = table.double().flatten(0, 1).unbind(-1)
    explained = votes.square() / pixels.clamp_min(1)
    variance = float((votes - explained).sum())
    return float((pairs - explained).sum()) / variance if variance > 1e-9 else None


def correlated_excess(correlation: float, diversity_annotators: float) -> float:
    """Return the unbiased GED of a sampler of p(y | x) where annotators correlate, delta rho / (1 - rho).

    Args:
        correlation: rho, of `residual_correlation`; a negative one counts as 0.
        diversity_annotators: delta, the mean distance of two distinct annotators.

    >>> round(correlated_excess(0.2, 0.4), 3)
    0.1
    """
    rho = min(max(correlation, 0.0), 1 - 1e-6)
    return diversity_annotators * rho / (1 - rho)
