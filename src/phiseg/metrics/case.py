"""All scores of one case: one row of `phiseg evaluate`."""

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
    voxel_ml: float | None = None,
) -> dict[str, float | None]:
    """Score the samples of one image or volume against its annotations.

    Args:
        labels: (S, *size) labels of the samples; *size is (H, W) or (D, H, W).
        mean_probs: (K, *size) mean of the softmax samples.
        mean_log_probs: (K, *size) mean over samples of log(probability + eps).
        annotations: (A, *size) labels of the annotators who saw the image.
        reference: (A', *size) annotations for the Dice score of the mean prediction, which is averaged over them;
            default: all annotators. If empty, Dice is undefined.
        voxel_ml: volume of a voxel in ml, for the scores in ml.

    Returns:
        Every `CaseScore` of the registry for images or volumes, by name. Undefined scores are None (fewer than two
        annotators or samples, no reference).

    Raises:
        DataError: labels are not integers in 0..K-1, there is no sample or no annotation, or they differ in size.
    """
    case = SampledCase(labels, mean_probs, mean_log_probs, annotations, reference=reference, voxel_ml=voxel_ml)
    return {score.name: score.value(case) for score in case_scores(case.dims)}
