"""The samples and annotations of one case, with the quantities that several scores are computed from."""

from collections.abc import Sequence
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from phiseg.core.errors import DataError
from phiseg.metrics.area import AreaScores, area_scores_from
from phiseg.metrics.consensus import consensus
from phiseg.metrics.ged import EnergyDistance, energy_distance_from
from phiseg.metrics.ncc import Correlation, expected_cross_entropy, s_ncc
from phiseg.metrics.overlap import PairCounts, checked_labels, most_probable, pairwise_counts


class SampledCase:
    """One image or volume: S samples, A annotations, K classes. Every property is computed once, when first used.

    *size is (H, W) for an image and (D, H, W) for a volume.

    Args:
        labels: (S, *size) labels of the samples.
        mean_probs: (K, *size) mean of the softmax samples; None if only labels are known.
        mean_log_probs: (K, *size) mean over samples of log(probability + eps); None if it is unknown.
        annotations: (A, *size) labels of the annotators who saw the image.
        reference: (A', *size) annotations for the Dice score of the mean prediction, which is averaged over them;
            default: all annotators. If empty, Dice is undefined.
        num_classes: K; needed only without `mean_probs`.
        spacing_mm: distance between pixels along each axis; None if it is unknown.

    Raises:
        DataError: labels are not integers in 0..K-1, there is no sample or no annotation, or they differ in size.
    """

    def __init__(
        self,
        labels: Tensor,
        mean_probs: Tensor | None,
        mean_log_probs: Tensor | None,
        annotations: Tensor,
        *,
        reference: Tensor | None = None,
        num_classes: int | None = None,
        spacing_mm: Sequence[float] | None = None,
    ) -> None:
        if mean_probs is not None:
            num_classes = len(mean_probs)
        assert num_classes is not None, "pass num_classes if there are no probabilities"
        self.num_classes, self.num_samples = num_classes, len(labels)
        for name, masks in (("labels", labels), ("annotations", annotations)):
            checked_labels(name, masks, self.num_classes)
        if labels.shape[1:] != annotations.shape[1:]:
            raise DataError(
                f"labels {tuple(labels.shape)} and annotations {tuple(annotations.shape)} do not match; "
                "pass (S, *size) and (A, *size)"
            )
        self.labels = labels
        self.mean_probs = mean_probs
        self.mean_log_probs = mean_log_probs
        self.annotations = annotations
        self.reference = annotations if reference is None else reference
        self.dims = annotations.ndim - 1
        self.spacing_mm = spacing_mm

    @cached_property
    def prediction(self) -> Tensor:
        """(*size), the most probable class of the mean prediction; of the labels without probabilities."""
        if self.mean_probs is None:
            return consensus(self.labels, "majority", num_classes=self.num_classes)
        return most_probable(self.mean_probs, dim=0)

    @cached_property
    def counts(self) -> PairCounts:
        """Pixel counts of all pairs of the S + A masks, samples first."""
        masks = torch.cat([self.labels, self.annotations])  # (S + A, *size): count all pairs at once
        return pairwise_counts(masks, masks, num_classes=self.num_classes)

    @cached_property
    def iou(self) -> Tensor:
        """(S, A), the IoU of every sample with every annotation."""
        return self._all_iou[: self.num_samples, self.num_samples :]

    @cached_property
    def dice(self) -> Tensor:
        """(S, A), the Dice score of every sample with every annotation."""
        return self.counts.dice()[: self.num_samples, self.num_samples :]

    @cached_property
    def sample_distances(self) -> Tensor:
        """(S, S), 1 - IoU of two samples."""
        return 1 - self._all_iou[: self.num_samples, : self.num_samples]

    @cached_property
    def annotation_distances(self) -> Tensor:
        """(A, A), 1 - IoU of two annotations."""
        return 1 - self._all_iou[self.num_samples :, self.num_samples :]

    @cached_property
    def energy_distance(self) -> EnergyDistance:
        """The GED, its floor and its terms."""
        return energy_distance_from(1 - self.iou, self.sample_distances, self.annotation_distances)

    @cached_property
    def areas(self) -> AreaScores:
        """The scores of the samples' areas in pixels, or of their volumes in voxels."""
        areas = self.counts.first.T  # (S + A, K-1)
        return area_scores_from(areas[: self.num_samples], areas[self.num_samples :])

    @property
    def voxel_ml(self) -> float | None:
        """The size of a voxel of a volume in ml; None if it is unknown or the case is an image."""
        return None if self.spacing_mm is None or self.dims == 2 else prod(self.spacing_mm) / 1000

    @cached_property
    def mean_area(self) -> float:
        """The mean area of the annotations in pixels, or mean volume in voxels, over the foreground labels."""
        return float(self.counts.first[:, self.num_samples :].mean())

    @cached_property
    def correlation(self) -> Correlation | None:
        """S_NCC, and how many annotators have a constant error map; None without probabilities."""
        if self.mean_probs is None or self.mean_log_probs is None:
            return None
        errors = -self.mean_log_probs.gather(0, self.annotations.long())  # (A, *size): a one-hot y selects one term
        return s_ncc(expected_cross_entropy(self.mean_probs, self.mean_log_probs), errors)

    @cached_property
    def _all_iou(self) -> Tensor:
        return self.counts.iou()  # (S + A, S + A)
