"""The metrics straight from their definitions: loops over pairs, labels and pixels, no torch, no vectorising."""

import math


def _sizes(first, second, label):
    first, second = [p for row in first for p in row], [p for row in second for p in row]
    shared = union = total = 0
    for a, b in zip(first, second, strict=True):
        shared += a == label and b == label
        union += a == label or b == label
        total += (a == label) + (b == label)
    return shared, union, total


def iou(first, second, num_classes, both_empty=1.0):
    scores = []
    for label in range(1, num_classes):
        shared, union, _ = _sizes(first, second, label)
        scores.append(shared / union if union else both_empty)
    return sum(scores) / len(scores)


def dice(first, second, num_classes, both_empty=1.0):
    scores = []
    for label in range(1, num_classes):
        shared, _, total = _sizes(first, second, label)
        scores.append(2 * shared / total if total else both_empty)
    return sum(scores) / len(scores)


def mean_distance(first, second, num_classes, both_empty=1.0, *, distinct=False):
    """Mean of 1 - IoU over all pairs; with `distinct` over i != j."""
    distances = [
        1 - iou(a, b, num_classes, both_empty)
        for i, a in enumerate(first)
        for j, b in enumerate(second)
        if not (distinct and i == j)
    ]
    return sum(distances) / len(distances)


def ged(samples, annotations, num_classes, both_empty=1.0, *, distinct=False):
    return (
        2 * mean_distance(samples, annotations, num_classes, both_empty)
        - mean_distance(samples, samples, num_classes, both_empty, distinct=distinct)
        - mean_distance(annotations, annotations, num_classes, both_empty, distinct=distinct)
    )


def cross_entropy(target, sample):
    """CE of two distributions over classes, at one pixel."""
    return -sum(t * math.log(s + 1e-8) for t, s in zip(target, sample, strict=True))


def gamma(probs):
    """probs[s][k][h][w] -> gamma[h][w]: the mean over samples of CE(mean sample, sample)."""
    num_samples, num_classes = len(probs), len(probs[0])
    result = [[0.0] * len(probs[0][0][0]) for _ in probs[0][0]]
    for h, row in enumerate(result):
        for w in range(len(row)):
            pixels = [[probs[s][k][h][w] for k in range(num_classes)] for s in range(num_samples)]
            mean = [sum(values) / num_samples for values in zip(*pixels, strict=True)]
            row[w] = sum(cross_entropy(mean, pixel) for pixel in pixels) / num_samples
    return result


def error(probs, annotation):
    """The mean over samples of CE(one-hot annotation, sample), [h][w]."""
    num_samples, num_classes = len(probs), len(probs[0])
    result = [[0.0] * len(annotation[0]) for _ in annotation]
    for h, row in enumerate(result):
        for w in range(len(row)):
            one_hot = [float(annotation[h][w] == k) for k in range(num_classes)]
            for s in range(num_samples):
                row[w] += cross_entropy(one_hot, [probs[s][k][h][w] for k in range(num_classes)]) / num_samples
    return result


def pearson(first, second):
    first, second = [p for row in first for p in row], [p for row in second for p in row]
    mean_a, mean_b = math.fsum(first) / len(first), math.fsum(second) / len(second)
    covariance = math.fsum((a - mean_a) * (b - mean_b) for a, b in zip(first, second, strict=True))
    variance_a, variance_b = (math.fsum((v - m) ** 2 for v in x) for x, m in ((first, mean_a), (second, mean_b)))
    return covariance / math.sqrt(variance_a * variance_b)
