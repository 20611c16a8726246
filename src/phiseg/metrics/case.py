"""The scores of one case: what `phiseg evaluate` writes a row of, and what validation averages."""

from torch import Tensor

from phiseg.metrics.ged import energy_distance
from phiseg.metrics.ncc import expected_cross_entropy, s_ncc
from phiseg.metrics.overlap import dice

SCORES = ("ged", "ged_unbiased", "ged_floor", "s_ncc", "dice")
"""The names of the scores; what else `score_case` returns explains them."""


def score_case(
    labels: Tensor,
    mean_probs: Tensor,
    mean_log_probs: Tensor,
    annotations: Tensor,
    *,
    reference: Tensor | None = None,
) -> dict[str, float | None]:
    """Score the samples of one image against its annotators.

    Args:
        labels: (S, H, W) hard samples.
        mean_probs: (K, H, W) mean of the softmax samples.
        mean_log_probs: (K, H, W) mean over samples of log(probability + eps).
        annotations: (A, H, W) labels of the annotators who saw the image.
        reference: (A', H, W) annotations that the mean prediction's Dice is taken against and averaged over;
            all annotators if not given, undefined if there is none.

    Returns:
        `ged`, `ged_unbiased`, `ged_floor`, `s_ncc`, `dice`, the three terms of the GED, and how many annotators
        had a constant map in S_NCC. None where a score is undefined (fewer than two annotators or samples, no
        reference).
    """
    num_classes = len(mean_probs)
    distance = energy_distance(labels, annotations, num_classes=num_classes)
    errors = -mean_log_probs.gather(0, annotations.long())  # (A, H, W): one-hot y picks one term of the sum
    correlation = s_ncc(expected_cross_entropy(mean_probs, mean_log_probs), errors)
    prediction = mean_probs.argmax(0)
    targets = annotations if reference is None else reference
    return {
        "ged": distance.ged,
        "ged_unbiased": distance.ged_unbiased,
        "ged_floor": distance.ged_floor,
        "s_ncc": correlation.value,
        "dice": float(dice(prediction, targets, num_classes=num_classes).mean()) if len(targets) else None,
        "ged_cross": distance.cross,
        "ged_within_samples": distance.within_samples,
        "ged_within_annotations": distance.within_annotations,
        "num_annotators": len(annotations),
        "s_ncc_constant": correlation.num_constant,
    }
