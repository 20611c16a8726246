"""What samples say in millilitres and millimetres.

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

from phiseg.inference.volumes import Prediction
from phiseg.metrics import pairwise_iou
from phiseg.metrics.diversity import mean_distinct

INTERVAL = (5.0, 95.0)
"""Percentiles of the samples: a 90 % interval."""


@dataclass(frozen=True)
class Spread:
    """A quantity over samples; one in which the class is absent counts as zero."""

    median: float
    low: float
    high: float
    samples: tuple[float, ...]

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> Self:
        """Return the median and the 90 % interval: what a further sample falls into in 9 of 10 cases.

        With fewer than 19 samples that is from the smallest to the largest, which promises less.
        """
        low, high = np.percentile(values, INTERVAL, method="weibull")
        return cls(float(np.median(values)), float(low), float(high), tuple(float(f"{v:.6g}") for v in values))


@dataclass(frozen=True)
class ClassMeasures:
    """What the samples say about one class."""

    present: float
    """Share of the samples that have it."""
    volume_ml: Spread
    diameter_mm: Spread
    """Longest distance between two pixels of one piece in one slice, plus one pixel."""
    volume_ml_if_present: Spread | None
    """Over the samples that have it only; None where none has."""
    diameter_mm_if_present: Spread | None
    """Likewise."""


@dataclass(frozen=True)
class Measures:
    """What the samples of one case say."""

    classes: dict[str, ClassMeasures]
    """Of every class but the background."""
    mean_gamma: float
    """Over the voxels that any sample gives to a class; 0 where none does."""
    agreement: float
    """Mean IoU of two samples, over the volume; 1 where all have nothing."""
    truncated: float
    """Share of the samples whose lesion extends to the end of the crop, the reach or the scan: maybe too small."""
    level_shares: dict[str, float] | None
    """Of what redrawing the noise of each latent level by itself changes, each level's share, by its name, fine to
    coarse; None without a hierarchy."""


def measure(prediction: Prediction) -> Measures:
    """Measure the samples of a prediction."""
    spacing = prediction.stack.stack.spacing_mm
    voxel_ml = abs(np.linalg.det(prediction.volume.affine[:3, :3])) / 1000
    classes = {}
    for number, name in enumerate(prediction.classes[1:], start=1):
        volumes, diameters = np.zeros(len(prediction.labels)), np.zeros(len(prediction.labels))
        for index, labels in enumerate(prediction.labels):  # one at a time: all together are large
            mask = labels == number  # (n, h, w)
            volumes[index] = mask.sum() * voxel_ml
            diameters[index] = longest_diameter(mask, (spacing[1], spacing[2]))
        has = volumes > 0
        classes[name] = ClassMeasures(
            present=float(has.mean()),
            volume_ml=Spread.of(volumes),
            diameter_mm=Spread.of(diameters),
            volume_ml_if_present=Spread.of(volumes[has]) if has.any() else None,
            diameter_mm_if_present=Spread.of(diameters[has]) if has.any() else None,
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
    """Return the longest distance (mm) between two pixels of one piece in a slice of a mask, plus one pixel.

    Pixels that touch at a side or a corner are of one piece. The mask is (n, h, w).
    """
    longest = 0.0
    pixel = sum(spacing_mm) / 2
    for image in mask[mask.any((1, 2))]:
        pieces, _ = ndimage.label(image, np.ones((3, 3), dtype=bool))
        for number, place in enumerate(ndimage.find_objects(pieces), start=1):
            sides = [(side.stop - side.start - 1) * step for side, step in zip(place, spacing_mm, strict=True)]
            if hypot(*sides) + pixel <= longest:  # not even its corners are that far apart
                continue
            piece = pieces[place] == number
            rows = np.flatnonzero(piece.any(1))
            first = piece[rows].argmax(1)
            last = piece.shape[1] - 1 - piece[rows, ::-1].argmax(1)
            ends = np.concatenate([np.stack([rows, first], 1), np.stack([rows, last], 1)]) * spacing_mm
            longest = max(longest, float(pdist(ends).max()) + pixel)
    return longest


def _agreement(labels: NDArray[np.uint8], num_classes: int) -> float:
    """Return the mean IoU of two different samples; 1 for a single one."""
    iou = mean_distinct(pairwise_iou(*(torch.from_numpy(labels),) * 2, num_classes=num_classes))
    return 1.0 if iou is None else iou


def _level_shares(prediction: Prediction) -> dict[str, float] | None:
    """Return each level's share of the variance over all voxels; equal ones where nothing varies."""
    if prediction.level_variance is None:
        return None
    sums = prediction.level_variance.sum((1, 2, 3), dtype=np.float64)
    shares = sums / sums.sum() if sums.any() else np.full(len(sums), 1 / len(sums))
    return dict(zip(prediction.level_names, shares.tolist(), strict=True))


def to_json(measures: Measures) -> dict[str, Any]:
    """Return measures as they stand in summary.json."""
    return {
        "classes": {name: asdict(found) for name, found in measures.classes.items()},
        "mean_gamma": measures.mean_gamma,
        "agreement": measures.agreement,
        "truncated": measures.truncated,
        "level_shares": measures.level_shares,
    }
