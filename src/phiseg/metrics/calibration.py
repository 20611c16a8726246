"""Calibration of the mean prediction: reliability tables, expected calibration error (ECE) and Brier score.

Convention: the probability is that of the mean prediction, and the frequency is the fraction of annotators who gave
the pixel that label; one-vs-rest for each foreground label; bins of equal width that include their lower edge, and
the last bin includes 1; *all* pixels count. Certain background dominates the first bin and makes the error small:
compare it only between methods on the same images, and inspect the reliability diagram.

A single image has too few annotators to estimate a frequency. Tables are therefore summed over images, and the
error is that of the whole dataset, never a mean over images.

A annotators, K classes, B bins.
"""

import torch
from torch import Tensor

from phiseg.core.errors import DataError
from phiseg.metrics.overlap import checked_labels

NUM_BINS = 10


def reliability(mean_probs: Tensor, annotations: Tensor, *, num_bins: int = NUM_BINS) -> Tensor:
    """Return the reliability table of one image; sum the tables of several images.

    Args:
        mean_probs: mean of the softmax samples (K, *spatial).
        annotations: integer labels (A, *spatial), valid annotators only.
        num_bins: B.

    Returns:
        A float64 table (K-1, B, 3). For each foreground label and probability bin, it has the number of pixels, the
        sum of their probabilities, and the sum of the fractions of annotators who gave them that label.

    Raises:
        DataError: the shapes do not match, or the values are not probabilities and labels in 0..K-1.

    >>> probs = torch.tensor([[[0.75, 0.5]], [[0.25, 0.5]]])
    >>> reliability(probs, torch.tensor([[[0, 1]], [[0, 1]]]), num_bins=2)
    tensor([[[1.0000, 0.2500, 0.0000],
             [1.0000, 0.5000, 1.0000]]], dtype=torch.float64)
    """
    num_classes = len(mean_probs)
    annotations = checked_labels("annotations", annotations, num_classes)
    if num_bins < 1 or annotations.shape[1:] != mean_probs.shape[1:]:
        raise DataError(
            f"annotations {tuple(annotations.shape)} do not match mean_probs {tuple(mean_probs.shape)} with "
            f"{num_bins} bins; pass (A, *spatial), (K, *spatial) and at least one bin"
        )
    low, high = mean_probs.aminmax()
    if not (low >= 0 and high <= 1 + 1e-3):  # also rejects NaN; the margin allows for rounding
        raise DataError("mean_probs contains values outside 0..1; pass the mean of softmax samples, not of logits")
    edges = bin_edges(num_bins).to(mean_probs.device)
    tables = []
    for label in range(1, num_classes):
        probs = mean_probs[label].flatten().double()  # (P,)
        votes = (annotations == label).flatten(1).double().mean(0)  # (P,)
        place = torch.bucketize(probs, edges[1:-1], right=True)
        terms = torch.stack([torch.ones_like(probs), probs, votes], dim=1)  # (P, 3)
        tables.append(terms.new_zeros(num_bins, 3).index_add_(0, place, terms))
    return torch.stack(tables)


def brier_score(probs: Tensor, annotations: Tensor) -> float:
    """Return an unbiased estimate of the Brier score of the mean over infinitely many samples.

    E_y sum_k (p_k - [y = k])² = sum_k p_k² - 2 E_y p_y + 1, where p is the mean prediction. p_k² is estimated by
    the mean product of two *distinct* samples, so the expected value does not depend on the number of samples. The
    cross-entropy of a mean over few samples does depend on it: its bias grows with the sharpness of the samples.

    Args:
        probs: softmax samples (S, K, *spatial), S at least 2.
        annotations: integer labels (A, *spatial), valid annotators only.

    Raises:
        DataError: there are fewer than two samples, or labels are not integers in 0..K-1.

    >>> brier_score(torch.tensor([[[0.75], [0.25]], [[0.25], [0.75]]]), torch.tensor([[0]]))
    0.375
    """
    num_samples = len(probs)
    if num_samples < 2:
        raise DataError(f"num_samples = {num_samples}; the Brier score needs at least 2 samples")
    labels = checked_labels("annotations", annotations, probs.shape[1]).long()
    total = probs.sum(0)  # (K, *spatial)
    pairs = (total.square() - probs.square().sum(0)) / (num_samples * (num_samples - 1))
    return float((pairs.sum(0) - 2 * (total / num_samples).gather(0, labels) + 1).mean())


def bin_edges(num_bins: int = NUM_BINS) -> Tensor:
    """Return the bin edges 0, 1/B, ..., 1 as float64 (B+1,).

    >>> bin_edges(2).tolist()
    [0.0, 0.5, 1.0]
    """
    return torch.arange(num_bins + 1, dtype=torch.float64) / num_bins


def expected_calibration_error(table: Tensor) -> float:
    """Return the expected calibration error of a reliability table, averaged over the foreground labels.

    ECE = sum_b n_b/n |mean probability - frequency|, where bin b contains n_b of the n pixels.

    Args:
        table: (K-1, B, 3), summed over all images.

    >>> expected_calibration_error(torch.tensor([[[1.0, 0.25, 0.0], [3.0, 2.25, 3.0]]]))
    0.25
    """
    pixels, probs, votes = table.double().unbind(-1)  # (K-1, B)
    return float(((probs - votes).abs().sum(1) / pixels.sum(1)).mean())
