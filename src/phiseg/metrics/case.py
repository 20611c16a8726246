"""All scores of one case: one row of `phiseg evaluate`, and the values that validation averages."""

import torch
from torch import Tensor

from phiseg.metrics.area import area_scores_from
from phiseg.metrics.diversity import mean_distinct
from phiseg.metrics.ged import energy_distance_from
from phiseg.metrics.matching import best_mean, matched_mean
from phiseg.metrics.ncc import expected_cross_entropy, s_ncc
from phiseg.metrics.overlap import check_pairs, checked_labels, dice, most_probable, pairwise_counts

SCORES = ("ged", "ged_unbiased", "ged_floor", "s_ncc", "dice")
"""The names of the paper's scores and of what they are read against."""
FURTHER_SCORES = (
    *("hm_iou", "best_dice", "diversity", "diversity_annotators"),
    *("area_crps", "area_coverage", "area_width"),
)
"""The names of the scores beyond the paper; what else `score_case` returns explains the first ones."""


def score_case(
    labels: Tensor,
    mean_probs: Tensor,
    mean_log_probs: Tensor,
    annotations: Tensor,
    *,
    reference: Tensor | None = None,
) -> dict[str, float | None]:
    """Score the samples of one image against its annotations.

    Args:
        labels: (S, H, W) labels of the samples.
        mean_probs: (K, H, W) mean of the softmax samples.
        mean_log_probs: (K, H, W) mean over samples of log(probability + eps).
        annotations: (A, H, W) labels of the annotators who saw the image.
        reference: (A', H, W) annotations for the Dice score of the mean prediction, which is averaged over them;
            default: all annotators. If empty, Dice is undefined.

    Returns:
        `SCORES`, `FURTHER_SCORES`, the three terms of the GED, and the number of annotators with a constant error
        map in S_NCC. Undefined scores are None (fewer than two annotators or samples, no reference).

    Raises:
        DataError: labels are not integers in 0..K-1, there is no sample or no annotation, or they differ in size.
    """
    num_classes, num_samples = len(mean_probs), len(labels)
    for name, masks in (("labels", labels), ("annotations", annotations)):
        checked_labels(name, masks, num_classes)
    check_pairs("labels", labels[0], "annotations", annotations[0])
    masks = torch.cat([labels, annotations])  # (S + A, H, W): count all pairs at once
    counts = pairwise_counts(masks, masks, num_classes=num_classes)
    iou, areas = counts.iou(), counts.first.T  # (S + A, S + A), (S + A, K-1)
    iou_cross = iou[:num_samples, num_samples:]  # (S, A)
    d_samples, d_annotations = 1 - iou[:num_samples, :num_samples], 1 - iou[num_samples:, num_samples:]
    distance = energy_distance_from(1 - iou_cross, d_samples, d_annotations)
    area = area_scores_from(areas[:num_samples], areas[num_samples:])
    errors = -mean_log_probs.gather(0, annotations.long())  # (A, H, W): a one-hot y selects one term of the sum
    correlation = s_ncc(expected_cross_entropy(mean_probs, mean_log_probs), errors)
    prediction = most_probable(mean_probs, dim=0)
    targets = annotations if reference is None else reference
    several = len(annotations) > 1  # a single annotation is not a distribution
    return {
        "ged": distance.ged if several else None,
        "ged_unbiased": distance.ged_unbiased,
        "ged_floor": distance.ged_floor,
        "s_ncc": correlation.value if several else None,
        "dice": float(dice(prediction, targets, num_classes=num_classes).mean()) if len(targets) else None,
        "hm_iou": matched_mean(iou_cross),
        "best_dice": best_mean(counts.dice()[:num_samples, num_samples:]),
        "diversity": mean_distinct(d_samples),
        "diversity_annotators": mean_distinct(d_annotations),
        "area_crps": area.crps,
        "area_coverage": area.coverage,
        "area_width": area.width,
        "ged_cross": distance.cross,
        "ged_within_samples": distance.within_samples,
        "ged_within_annotations": distance.within_annotations,
        "num_annotators": len(annotations),
        "s_ncc_constant": correlation.num_constant,
    }
