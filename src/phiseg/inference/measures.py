"""Volumes, diameters and agreement of samples, in ml and mm or, if the pixel size is unknown, in pixels.

Shapes: S samples, n slices of h x w pixels, K classes.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import hypot
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage
from scipy.spatial.distance import pdist

from phiseg.core.errors import DataError
from phiseg.inference.prediction import Prediction
from phiseg.inference.prepared_stack import PreparedStack
from phiseg.metrics import pairwise_iou
from phiseg.metrics.diversity import mean_distinct

INTERVAL = (5.0, 95.0)
"""Percentiles of the 90 % interval."""


@dataclass(frozen=True)
class Units:
    """Units of sizes and diameters."""

    size: Literal["ml", "px", "voxels"]
    """Volume in ml, area in pixels, or volume in voxels."""
    length: Literal["mm", "px"]

    @classmethod
    def of(cls, stack: PreparedStack) -> Self:
        """Return ml and mm, or pixels and voxels if the pixel size of a scan is unknown."""
        if stack.has_spacing:
            return cls("ml", "mm")
        return cls("px" if stack.stack.grid[0] == 1 else "voxels", "px")

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> Self:
        """Return the units of a class in summary.json."""
        known = (cls("ml", "mm"), cls("px", "px"), cls("voxels", "px"))
        return next(units for units in known if units.size_key in found)

    @property
    def size_key(self) -> str:
        """Key of the size in summary.json."""
        return f"{'area' if self.size == 'px' else 'volume'}_{self.size}"

    @property
    def diameter_key(self) -> str:
        """Key of the diameter in summary.json."""
        return f"diameter_{self.length}"


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
    size: Measurement
    """Volume or area."""
    diameter: Measurement
    """Longest distance between two pixels of a connected component in one slice, plus one pixel."""
    size_if_present: Measurement | None
    """Size over the samples that contain the class; None if there are none."""
    diameter_if_present: Measurement | None
    """Diameter over the samples that contain the class; None if there are none."""
    units: Units

    @property
    def volume_ml(self) -> Measurement:
        """Volume in ml.

        Raises:
            DataError: the pixel size is unknown.
        """
        self._check_spacing()
        return self.size

    @property
    def diameter_mm(self) -> Measurement:
        """Diameter in mm.

        Raises:
            DataError: the pixel size is unknown.
        """
        self._check_spacing()
        return self.diameter

    def _check_spacing(self) -> None:
        if self.units.length != "mm":
            raise DataError("the pixel size is unknown; use `size` and `diameter`, which are in pixels")

    def to_json(self) -> dict[str, Any]:
        """Return measurements in the format of summary.json, with the units in the keys."""
        size, diameter = self.units.size_key, self.units.diameter_key
        return {
            "present": self.present,
            size: asdict(self.size),
            diameter: asdict(self.diameter),
            f"{size}_if_present": self.size_if_present and asdict(self.size_if_present),
            f"{diameter}_if_present": self.diameter_if_present and asdict(self.diameter_if_present),
        }


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

    @property
    def units(self) -> Units:
        """Units of sizes and diameters."""
        return next(iter(self.classes.values())).units


def measure(prediction: Prediction) -> Measures:
    """Return the measurements of a prediction."""
    units = Units.of(prediction.stack)
    _, *in_plane = prediction.stack.stack.spacing_mm if units.length == "mm" else (1.0, 1.0, 1.0)
    voxel = abs(np.linalg.det(prediction.volume.affine[:3, :3])) / 1000 if units.size == "ml" else 1.0
    classes = {}
    for number, name in enumerate(prediction.classes[1:], start=1):
        sizes, diameters = np.zeros(len(prediction.labels)), np.zeros(len(prediction.labels))
        for index, labels in enumerate(prediction.labels):  # one at a time to save memory
            mask = labels == number  # (n, h, w)
            sizes[index] = mask.sum() * voxel
            diameters[index] = longest_diameter(mask, (in_plane[0], in_plane[1]))
        has = sizes > 0
        classes[name] = ClassMeasures(
            present=float(has.mean()),
            size=Measurement.of(sizes),
            diameter=Measurement.of(diameters),
            size_if_present=Measurement.of(sizes[has]) if has.any() else None,
            diameter_if_present=Measurement.of(diameters[has]) if has.any() else None,
            units=units,
        )
    touched = prediction.labels.max(0) > 0
    return Measures(
        classes=classes,
        mean_gamma=float(prediction.gamma[touched].mean()) if touched.any() else 0.0,
        agreement=_agreement(prediction.labels, len(prediction.classes)),
        truncated=float(prediction.truncated.mean()),
        level_shares=level_shares(prediction),
    )


def longest_diameter(mask: NDArray[np.bool_], spacing: tuple[float, float]) -> float:
    """Return the longest distance between two pixels of a component in a slice of a mask, plus one pixel.

    Pixels that touch at a side or a corner are connected.

    Args:
        mask: (n, h, w).
        spacing: distance between rows and between columns, in any unit.
    """
    longest = 0.0
    pixel = sum(spacing) / 2
    for image in mask[mask.any((1, 2))]:
        pieces, _ = ndimage.label(image, np.ones((3, 3), dtype=bool))
        for number, place in enumerate(ndimage.find_objects(pieces), start=1):
            sides = [(side.stop - side.start - 1) * step for side, step in zip(place, spacing, strict=True)]
            if hypot(*sides) + pixel <= longest:  # even the diagonal of its box is shorter
                continue
            piece = pieces[place] == number
            rows = np.flatnonzero(piece.any(1))
            first = piece[rows].argmax(1)
            last = piece.shape[1] - 1 - piece[rows, ::-1].argmax(1)
            ends = np.concatenate([np.stack([rows, first], 1), np.stack([rows, last], 1)]) * spacing
            longest = max(longest, float(pdist(ends).max()) + pixel)
    return longest


def _agreement(labels: NDArray[np.uint8], num_classes: int) -> float:
    """Return the mean IoU of two different samples; 1 for a single sample."""
    iou = mean_distinct(pairwise_iou(*(torch.from_numpy(labels),) * 2, num_classes=num_classes))
    return 1.0 if iou is None else iou


def level_shares(prediction: Prediction) -> dict[str, float] | None:
    """Return the share of each level in the variance over all voxels; equal shares if there is no variance."""
    if prediction.level_variance is None:
        return None
    sums = prediction.level_variance.sum((1, 2, 3), dtype=np.float64)
    shares = sums / sums.sum() if sums.any() else np.full(len(sums), 1 / len(sums))
    return dict(zip(prediction.level_names, shares.tolist(), strict=True))


def to_json(measures: Measures) -> dict[str, Any]:
    """Return measurements in the format of summary.json."""
    return {
        "classes": {name: found.to_json() for name, found in measures.classes.items()},
        "mean_gamma": measures.mean_gamma,
        "agreement": measures.agreement,
        "truncated": measures.truncated,
        "level_shares": measures.level_shares,
    }
