"""Reference implementations of the scores of challenges: NumPy arrays, loops over pixels, sums for integrals."""

import math

import numpy as np

QUBIQ = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
CURVAS = np.linspace(0.1, 0.8, 6)


def shares(masks, num_classes):
    """The share of masks (N, *size) with each label, (K, *size)."""
    return np.array([np.mean(np.array(masks) == label, axis=0) for label in range(num_classes)])


def soft_dice(probs, annotations, thresholds):
    drawn, scores = shares(annotations, len(probs)), []
    for label in range(1, len(probs)):
        for threshold in thresholds:
            shared = total = 0
            for p, q in zip(probs[label].flat, drawn[label].flat, strict=True):
                shared += p > threshold and q > threshold
                total += int(p > threshold) + int(q > threshold)
            scores.append(2 * shared / total if total else 1)
    return np.mean(scores)


def consensus_dice(prediction, annotations, num_classes):
    scores = []
    for label in range(1, num_classes):
        shared = predicted = agreed = 0
        for place in np.ndindex(prediction.shape):
            votes = [int(mask[place]) == label for mask in annotations]
            if len(set(votes)) == 1:  # the annotators agree
                shared += votes[0] and prediction[place] == label
                predicted += int(prediction[place] == label)
                agreed += votes[0]
        if agreed:
            scores.append(2 * shared / (predicted + agreed))
    return np.mean(scores) if scores else None


def normal_crps(mean, deviation, value, *, limit=12, tabulated=False, steps=100_000):
    """The integral of (F(x) - [x >= value])² over `limit` deviations, by the midpoint rule.

    `tabulated`: F is 0 below its 1 % quantile and 1 above its 99 % quantile, as in the code of CURVAS.
    """
    z = (np.arange(steps) + 0.5) / steps * 2 * limit - limit
    distribution = np.array([math.erfc(-one / math.sqrt(2)) / 2 for one in z])
    if tabulated:
        distribution = np.where(distribution < 0.01, 0, np.where(distribution > 0.99, 1, distribution))
    step = mean + deviation * z >= value
    return deviation * 2 * limit * np.mean((distribution - step) ** 2)


def volume_crps(probs, annotations, *, limit=None):
    scores = []
    for label in range(1, len(probs)):
        volumes = [np.sum(np.array(mask) == label) for mask in annotations]
        mean, value = np.mean(volumes), np.sum(probs[label])
        deviation = math.sqrt(np.mean([(volume - mean) ** 2 for volume in volumes]))
        if deviation:
            reach = limit or max(12, abs(value - mean) / deviation + 3)
            scores.append(normal_crps(mean, deviation, value, limit=reach))
        elif limit:
            return None
        else:
            scores.append(abs(value - mean))
    return np.mean(scores)


def calibration_error(probs, annotations, num_bins=50):
    errors = []
    for mask in annotations:
        bins = {}
        for place in np.ndindex(mask.shape):
            pixel = probs[(slice(None), *place)]
            label = int(np.argmax(pixel))
            number = next(n for n in range(num_bins, -1, -1) if pixel[label] >= n / num_bins)
            bins.setdefault(number, []).append((pixel[label], int(mask[place]) == label))
        parts = [len(b) * abs(np.mean([p for p, _ in b]) - np.mean([c for _, c in b])) for b in bins.values()]
        errors.append(sum(parts) / mask.size)
    return np.mean(errors)
