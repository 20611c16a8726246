"""Reference implementations of the metrics: plain loops over pairs, labels and pixels, without torch."""

import math
from fractions import Fraction
from itertools import permutations, product


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
    """Cross-entropy of two class distributions at one pixel."""
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


def diversity(masks, num_classes, both_empty=1.0):
    return mean_distance(masks, masks, num_classes, both_empty, distinct=True)


def matched_iou(samples, annotations, num_classes, both_empty=1.0):
    """Maximum over all matchings of the copies."""
    size = math.lcm(len(samples), len(annotations))
    first = [sample for sample in samples for _ in range(size // len(samples))]
    second = [annotation for annotation in annotations for _ in range(size // len(annotations))]
    scores = [[iou(a, b, num_classes, both_empty) for b in second] for a in first]
    return max(
        sum(scores[row][column] for row, column in enumerate(order)) / size for order in permutations(range(size))
    )


def best_dice(samples, annotations, num_classes, both_empty=1.0):
    best = [max(dice(sample, y, num_classes, both_empty) for sample in samples) for y in annotations]
    return sum(best) / len(best)


def area(mask, label):
    return sum(pixel == label for row in mask for pixel in row)


def quantile(values, share):
    """Linear interpolation between the order statistics, in exact fractions."""
    values, place = sorted(values), share * (len(values) - 1)
    below = math.floor(place)
    above = min(below + 1, len(values) - 1)
    return values[below] + (place - below) * (values[above] - values[below])


def area_crps(samples, annotations, num_classes):
    scores = []
    for label in range(1, num_classes):
        areas = [area(sample, label) for sample in samples]
        pairs = [abs(a - b) for i, a in enumerate(areas) for j, b in enumerate(areas) if i != j]
        for annotation in annotations:
            error = sum(abs(a - area(annotation, label)) for a in areas) / len(areas)
            scores.append(error - sum(pairs) / len(pairs) / 2)
    return sum(scores) / len(scores)


def area_interval(samples, annotations, num_classes, level=Fraction(9, 10)):
    """Return coverage and mean width of the central interval."""
    covered, widths = [], []
    for label in range(1, num_classes):
        areas = [Fraction(area(sample, label)) for sample in samples]
        low, high = quantile(areas, (1 - level) / 2), quantile(areas, (1 + level) / 2)
        widths.append(high - low)
        covered += [low <= area(annotation, label) <= high for annotation in annotations]
    return sum(covered) / len(covered), float(sum(widths) / len(widths))


def reliability(mean_probs, annotations, num_bins=10):
    """mean_probs[k][h][w] -> table[k-1][bin] = [pixels, sum of probabilities, sum of fractions of annotators]."""
    table = [[[0, 0.0, 0.0] for _ in range(num_bins)] for _ in mean_probs[1:]]
    for label, probs in enumerate(mean_probs[1:], start=1):
        for h, row in enumerate(probs):
            for w, prob in enumerate(row):
                place = max(number for number in range(num_bins) if number / num_bins <= prob)
                votes = sum(annotation[h][w] == label for annotation in annotations)
                cell = table[label - 1][place]
                cell[0] += 1
                cell[1] += prob
                cell[2] += votes / len(annotations)
    return table


def calibration_error(table):
    errors = []
    for bins in table:
        total = sum(pixels for pixels, _, _ in bins)
        errors.append(sum(abs(p / n - v / n) * n / total for n, p, v in bins if n))
    return sum(errors) / len(errors)


def majority(masks, num_classes):
    """Most frequent label of each pixel; ties go to the lowest."""
    result = [[0] * len(masks[0][0]) for _ in masks[0]]
    for h, row in enumerate(result):
        for w in range(len(row)):
            votes = [mask[h][w] for mask in masks]
            row[w] = max(range(num_classes), key=lambda label: (votes.count(label), -label))
    return result


def staple(masks, num_iterations=300):
    """Warfield's binary EM: foreground probability of each pixel, [pixel]; with products instead of logarithms."""
    masks = [[pixel for row in mask for pixel in row] for mask in masks]
    raters, pixels = range(len(masks)), range(len(masks[0]))
    prior = sum(map(sum, masks)) / (len(masks) * len(masks[0]))
    sensitivity, specificity = [0.99999 for _ in raters], [0.99999 for _ in raters]
    for _ in range(num_iterations):
        weights = []
        for i in pixels:
            yes, no = prior, 1 - prior
            for j in raters:
                yes *= sensitivity[j] if masks[j][i] else 1 - sensitivity[j]
                no *= 1 - specificity[j] if masks[j][i] else specificity[j]
            weights.append(yes / (yes + no))
        foreground, background = sum(weights), sum(1 - w for w in weights)
        sensitivity = [sum(weights[i] for i in pixels if masks[j][i]) / foreground for j in raters]
        specificity = [sum(1 - weights[i] for i in pixels if not masks[j][i]) / background for j in raters]
    return weights


def surface(mask, label):
    """The places of the pixels of a label that have a neighbour along an axis without it, or none in the image.

    `mask` is an array of any number of dimensions.
    """
    places = set()
    for place, value in _pixels(mask):
        for axis in range(len(place)):
            for step in (-1, 1):
                other = tuple(at + step * (axis == number) for number, at in enumerate(place))
                inside = all(0 <= at < side for at, side in zip(other, mask.shape, strict=True))
                if value == label and not (inside and mask[other] == label):
                    places.add(place)
    return places


def _pixels(mask):
    return [(place, mask[place]) for place in product(*map(range, mask.shape))]


def surface_distance(prediction, annotations, num_classes, spacing, empty=None):
    """Mean over labels and annotators of the mean distance of all surface pixels to the other surface."""
    found = []
    for annotation in annotations:
        for label in range(1, num_classes):
            one, two = surface(prediction, label), surface(annotation, label)
            if not (one and two):
                found += [] if empty is None else [empty]
                continue
            nearest = [
                min(
                    math.dist(*([at * mm for at, mm in zip(p, spacing, strict=True)] for p in (a, b)))
                    for b in others
                )
                for these, others in ((one, two), (two, one))
                for a in these
            ]
            found.append(sum(nearest) / len(nearest))
    return sum(found) / len(found) if found else None
