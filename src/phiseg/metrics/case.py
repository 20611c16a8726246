"""All scores of one case: one row of `phiseg evaluate`."""

from collections.abc import Sequence

from torch import Tensor

from phiseg.metrics.sampled_case import SampledCase
from phiseg.metrics.score_registry import case_scores


def score_case(
    labels: Tensor,
    mean_probs: Tensor,
    mean_log_probs: Tensor,
    annotations: Tensor,
    *,
    reference: Tensor | None = None,
    spacing_mm: Sequence[float] | None = None,
) -> dict[str, float | None]:
    """Score the samples of one image or volume against its annotations.

    Args:
        labels: (S, *size) labels of the samples; *size is (H, W) or (D, H, W).
        mean_probs: (K, *size) mean of the softmax samples.
        mean_log_probs: (K, *size) mean over samples of log(probability + eps).
        annotations: (A, *size) labels of the annotators who saw the image.
        reference: (A', *size) annotations for the Dice score of the mean prediction, which is averaged over them;
            default: all annotators. If empty, Dice is undefined.
        spacing_mm: distance between pixels along each axis, for the scores in mm and ml.

    Returns:
        Every `CaseScore` of the registry for images or volumes, by name. Undefined scores are None (fewer than two
        annotators or samples, no reference, no spacing).

    Raises:
        DataError: labels are not integers in 0..K-1, there is no sample or no annotation, or they differ in size.
    """
    case = SampledCase(labels, mean_probs, mean_log_probs, annotations, reference=reference, spacing_mm=spacing_mm)
    return {score.name: score.value(case) for score in case_scores(case.dims)}
