"""Scores of the challenges QUBIQ and CURVAS, which compare mean probabilities with several annotators.

Convention: label 0 is the background and is ignored, except by the calibration error; a score is the mean over the
foreground labels, although the challenges report each structure on its own. Every score belongs to one case.

A annotators, K classes, B bins, T thresholds.
"""

from collections.abc import Sequence
from math import pi, sqrt

import torch
from torch import Tensor

from phiseg.core.errors import DataError
from phiseg.metrics.area import foreground_areas
from phiseg.metrics.calibration import bin_edges
from phiseg.metrics.overlap import checked_labels, most_probable

QUBIQ_THRESHOLDS = tuple(step / 10 for step in range(1, 10))
"""0.1, 0.2, ..., 0.9."""
CURVAS_THRESHOLDS = (0.1, 0.24, 0.38, 0.52, 0.66, 0.8)
"""Six thresholds of the edition of 2025."""
ROUNDING = 1e-6
"""Probabilities that exceed a threshold by less equal it; they are means in float32."""


def soft_dice(
    probs: Tensor, annotations: Tensor, *, thresholds: Sequence[float] = QUBIQ_THRESHOLDS, both_empty: float = 1.0
) -> float:
    """Return the Dice score of thresholded probabilities and the thresholded share of annotators.

    At each threshold t, the masks are {probability > t} and {share of annotators > t}. The score is the mean over
    thresholds and foreground labels. A difference from t that is due to rounding does not count.

    Args:
        probs: mean probabilities (K, *spatial).
        annotations: integer labels (A, *spatial), valid annotators only.
        thresholds: T values between 0 and 1.
        both_empty: score of a threshold that neither map exceeds anywhere.

    Raises:
        DataError: the shapes do not match, labels are not integers in 0..K-1, or there is no threshold.

    >>> probs = torch.tensor([[[0.75, 0.25, 1.0]], [[0.25, 0.75, 0.0]]])
    >>> soft_dice(probs, torch.tensor([[[0, 1, 0]], [[1, 1, 0]]]), thresholds=(0.2, 0.4))
    0.8333333333333333
    """
    annotations = _checked(probs, annotations)
    if not thresholds:
        raise DataError("there is no threshold; pass at least one")
    scores = []
    for label in range(1, len(probs)):
        share = (annotations == label).double().mean(0)  # (*spatial)
        scores += [
            _dice(probs[label].double() > t + ROUNDING, share > t + ROUNDING, both_empty) for t in thresholds
        ]
    return sum(scores) / len(scores)


def consensus_dice(prediction: Tensor, annotations: Tensor, *, num_classes: int) -> float | None:
    """Return the Dice score of a prediction where all annotators agree; disputed pixels are ignored.

    For each foreground label, a pixel counts if all annotators gave it this label or none did. A label without a
    pixel that all gave it is undefined and not part of the mean.

    Args:
        prediction: integer labels (*spatial).
        annotations: integer labels (A, *spatial), valid annotators only.
        num_classes: K, including the background.

    Returns:
        None if no label is defined.

    Raises:
        DataError: labels are not integers in 0..K-1, or the masks differ in size.

    >>> consensus_dice(torch.tensor([[1, 1, 0, 1]]), torch.tensor([[[1, 1, 1, 0]], [[1, 0, 1, 0]]]), num_classes=2)
    0.5
    """
    prediction = checked_labels("prediction", prediction, num_classes)
    annotations = checked_labels("annotations", annotations, num_classes)
    if prediction.shape != annotations.shape[1:]:
        raise DataError(
            f"prediction {tuple(prediction.shape)} and annotations {tuple(annotations.shape)} differ in size; "
            "pass (*spatial) and (A, *spatial)"
        )
    scores = []
    for label in range(1, num_classes):
        given = annotations == label  # (A, *spatial)
        by_all, disputed = given.all(0), given.any(0) & ~given.all(0)
        if by_all.any():
            scores.append(_dice((prediction == label) & ~disputed, by_all))
    return sum(scores) / len(scores) if scores else None


def normal_volume_crps(probs: Tensor, annotations: Tensor, *, limit: float | None = None) -> float | None:
    """Return the CRPS of a normal distribution of the annotators' volumes at the predicted volume, in voxels.

    The predicted volume v is the sum of the probabilities. The distribution has the mean m and the standard
    deviation s (divided by A) of the annotators' volumes. CRPS = s (z (2 Φ(z) - 1) + 2 φ(z) - 1/√π) with
    z = (v - m)/s, which is |v - m| for s = 0. The forecast is the annotators' distribution, not the model's:
    the spread of the samples does not count.

    Args:
        probs: mean probabilities (K, *spatial).
        annotations: integer labels (A, *spatial), valid annotators only.
        limit: integrate over m ± limit * s only, so that the score is constant for |z| > limit; at least 3. The
            distribution beyond it adds less than 1e-6 s and is ignored.

    Returns:
        None if there is a `limit` and all annotators drew the same volume of a label.

    Raises:
        DataError: the shapes do not match, labels are not integers in 0..K-1, or `limit` is below 3.

    >>> probs = torch.tensor([[[0.5, 0.5, 0.0]], [[0.5, 0.5, 1.0]]])  # volume 2
    >>> round(normal_volume_crps(probs, torch.tensor([[[0, 0, 1]], [[1, 1, 1]]])), 4)  # volumes 1 and 3
    0.2337
    >>> normal_volume_crps(probs, torch.tensor([[[0, 0, 1]]]))
    1.0
    """
    annotations = _checked(probs, annotations)
    if limit is not None and limit < 3:
        raise DataError(f"limit = {limit} must be at least 3 standard deviations")
    drawn = foreground_areas(annotations, num_classes=len(probs)).double()  # (A, K-1)
    error = probs[1:].double().flatten(1).sum(1) - drawn.mean(0)  # (K-1,)
    spread = drawn.std(0, correction=0)
    if limit is not None and not spread.all():
        return None
    z = error / spread
    if limit is not None:
        z = z.clamp(-limit, limit)
    density = (-z.square() / 2).exp() / sqrt(2 * pi)
    crps = spread * (z * (2 * torch.special.ndtr(z) - 1) + 2 * density - 1 / sqrt(pi))
    return float(crps.where(spread > 0, error.abs()).mean())


def top_label_calibration_error(probs: Tensor, annotations: Tensor, *, num_bins: int = 50) -> float:
    """Return the expected calibration error of the most probable label, averaged over the annotators.

    For each annotator, ECE = sum_b n_b/n |mean probability - share of correct labels|, where bin b contains n_b of
    the n pixels, the probability is that of the most probable label, and a label is correct if the annotator gave
    it. The background is a label like the others. Bins of equal width include their lower edge; a probability of 1
    has a bin of its own, as in torchmetrics.

    Args:
        probs: mean probabilities (K, *spatial).
        annotations: integer labels (A, *spatial), valid annotators only.
        num_bins: B.

    Raises:
        DataError: the shapes do not match, labels are not integers in 0..K-1, or there is no bin.

    >>> probs = torch.tensor([[[0.75, 0.25]], [[0.25, 0.75]]])
    >>> top_label_calibration_error(probs, torch.tensor([[[0, 1]], [[0, 0]]]))
    0.25
    """
    annotations = _checked(probs, annotations).flatten(1)  # (A, P)
    if num_bins < 1:
        raise DataError(f"num_bins = {num_bins}; pass at least one bin")
    confidence = probs.amax(0).flatten().double()  # (P,)
    place = torch.bucketize(confidence, bin_edges(num_bins).to(probs.device), right=True) - 1
    excess = confidence - (most_probable(probs, dim=0).flatten() == annotations).double()  # (A, P)
    bins = excess.new_zeros(len(annotations), num_bins + 1).index_add_(1, place, excess)
    return float(bins.abs().sum(1).mean() / len(confidence))


def _checked(probs: Tensor, annotations: Tensor) -> Tensor:
    """Return the annotations if they are labels of the classes and size of `probs`; raise a DataError otherwise."""
    if probs.shape[1:] != annotations.shape[1:]:
        raise DataError(
            f"annotations {tuple(annotations.shape)} do not match probs {tuple(probs.shape)}; "
            "pass (A, *spatial) and (K, *spatial)"
        )
    return checked_labels("annotations", annotations, len(probs))


def _dice(first: Tensor, second: Tensor, both_empty: float = 1.0) -> float:
    total = int(first.sum() + second.sum())
    return 2 * int((first & second).sum()) / total if total else both_empty
