"""Volumes, diameters and agreement of samples.

Shapes: S samples, n slices of h x w pixels, K classes.
"""

from dataclasses import asdict, dataclass
from math import hypot
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage
from scipy.spatial.distance import pdist

from phiseg.inference.prediction import Prediction
from phiseg.metrics import pairwise_iou
from phiseg.metrics.diversity import mean_distinct

INTERVAL = (5.0, 95.0)
"""Percentiles of the 90 % interval."""


@dataclass(frozen=True)
class Measurement:
    """Distribution of a quantity over samples. Samples without the class count as zero."""

    median: float
    low: float
    high: float
    samples: tuple[float, ...]

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> Self:
        """Return the median and the 90 % interval, which contains a further sample with a probability of 0.9.

        With fewer than 19 samples, it is the range from the smallest to the largest, with a lower probability.
        """
        low, high = np.percentile(values, INTERVAL, method="weibull")
        return cls(float(np.median(values)), float(low), float(high), tuple(float(f"{v:.6g}") for v in values))


@dataclass(frozen=True)
class ClassMeasures:
    """Measurements of one class."""

    present: float
    """Share of the samples that contain the class."""
    volume_ml: Measurement
    diameter_mm: Measurement
    """Longest distance between two pixels of a connected component in one slice, plus one pixel."""
    volume_ml_if_present: Measurement | None
    """Volume over the samples that contain the class; None if there are none."""
    diameter_mm_if_present: Measurement | None
    """Diameter over the samples that contain the class; None if there are none."""


@dataclass(frozen=True)
class Measures:
    """Measurements of one case."""

    classes: dict[str, ClassMeasures]
    """Measurements by class, without the background."""
    mean_gamma: float
    """Mean over the voxels that are foreground in any sample; 0 if there are none."""
    agreement: float
    """Mean IoU of two samples over the volume; 1 if all samples are empty."""
    truncated: float
    """Share of samples whose lesion touches the border of the crop, the reach or the scan and may be too small."""
    level_shares: dict[str, float] | None
    """Share of each latent level in the variance from redrawing the noise of single levels, by name, fine to
    coarse; None without a hierarchy."""


def measure(prediction: Prediction) -> Measures:
    """Return the measurements of a prediction."""
    spacing = prediction.stack.stack.spacing_mm
    voxel_ml = abs(np.linalg.det(prediction.volume.affine[:3, :3])) / 1000
    classes = {}
    for number, name in enumerate(prediction.classes[1:], start=1):
        volumes, diameters = np.zeros(len(prediction.labels)), np.zeros(len(prediction.labels))
        for index, labels in enumerate(prediction.labels):  # one at a time to save memory
            mask = labels == number  # (n, h, w)
            volumes[index] = mask.sum() * voxel_ml
            diameters[index] = longest_diameter(mask, (spacing[1], spacing[2]))
        has = volumes > 0
        classes[name] = ClassMeasures(
            present=float(has.mean()),
            volume_ml=Measurement.of(volumes),
            diameter_mm=Measurement.of(diameters),
            volume_ml_if_present=Measurement.of(volumes[has]) if has.any() else None,
            diameter_mm_if_present=Measurement.of(diameters[has]) if has.any() else None,
        )
    touched = prediction.labels.max(0) > 0
    return Measures(
        classes=classes,
        mean_gamma=float(prediction.gamma[touched].mean()) if touched.any() else 0.0,
        agreement=_agreement(prediction.labels, len(prediction.classes)),
        truncated=float(prediction.truncated.mean()),
        level_shares=_level_shares(prediction),
    )


def longest_diameter(mask: NDArray[np.bool_], spacing_mm: tuple[float, float]) -> float:
    """Return the longest distance (mm) between two pixels of a component in a slice of a mask, plus one pixel.

    Pixels that touch at a side or a corner are connected. The mask is (n, h, w).
    """
    longest = 0.0
    pixel = sum(spacing_mm) / 2
    for image in mask[mask.any((1, 2))]:
        pieces, _ = ndimage.label(image, np.ones((3, 3), dtype=bool))
        for number, place in enumerate(ndimage.find_objects(pieces), start=1):
            sides = [(side.stop - side.start - 1) * step for side, step in zip(place, spacing_mm, strict=True)]
            if hypot(*sides) + pixel <= longest:  # even the diagonal of its box is shorter
                continue
            piece = pieces[place] == number
            rows = np.flatnonzero(piece.any(1))
            first = piece[rows].argmax(1)
            last = piece.shape[1] - 1 - piece[rows, ::-1].argmax(1)
            ends = np.concatenate([np.stack([rows, first], 1), np.stack([rows, last], 1)]) * spacing_mm
            longest = max(longest, float(pdist(ends).max()) + pixel)
    return longest


def _agreement(labels: NDArray[np.uint8], num_classes: int) -> float:
    """Return the mean IoU of two different samples; 1 for a single sample."""
    iou = mean_distinct(pairwise_iou(*(torch.from_numpy(labels),) * 2, num_classes=num_classes))
    return 1.0 if iou is None else iou


def _level_shares(prediction: Prediction) -> dict[str, float] | None:
    """Return the share of each level in the variance over all voxels; equal shares if there is no variance."""
    if prediction.level_variance is None:
        return None
    sums = prediction.level_variance.sum((1, 2, 3), dtype=np.float64)
    shares = sums / sums.sum() if sums.any() else np.full(len(sums), 1 / len(sums))
    return dict(zip(prediction.level_names, shares.tolist(), strict=True))


def to_json(measures: Measures) -> dict[str, Any]:
    """Return measurements in the format of summary.json."""
    return {
        "classes": {name: asdict(found) for name, found in measures.classes.items()},
        "mean_gamma": measures.mean_gamma,
        "agreement": measures.agreement,
        "truncated": measures.truncated,
        "level_shares": measures.level_shares,
    }
