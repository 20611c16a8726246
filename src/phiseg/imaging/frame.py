"""Frames: crops of a slice with their own position, spacing and size, and the inverse operation.

The slice has H x W pixels and the crop h x w pixels; positions are (row, column) in pixels of the slice.
"""

from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import SimpleITK
from numpy.typing import NDArray

Interpolation = Literal["linear", "nearest"]


@dataclass(frozen=True)
class Frame:
    """Geometry of a crop: its pixel (r, c) lies at `origin + step * (r, c)` in the slice."""

    origin: tuple[float, float]
    step: tuple[float, float]
    size: tuple[int, int]

    @classmethod
    def centred(
        cls, centre: tuple[float, float], size: tuple[int, int], step: tuple[float, float] = (1.0, 1.0)
    ) -> Self:
        """Return a frame centred at `centre`; with a step of 1, it is aligned with the pixels of the slice."""
        corner = [c - s * (n - 1) / 2 for c, s, n in zip(centre, step, size, strict=True)]
        row, column = (float(np.floor(o)) if s == 1 else o for o, s in zip(corner, step, strict=True))
        return cls((row, column), step, size)

    def inverse(self, size: tuple[int, int]) -> Self:
        """Return the frame that maps the crop back to a slice of `size` pixels."""
        row, column = (-o / s for o, s in zip(self.origin, self.step, strict=True))
        return type(self)((row, column), (1 / self.step[0], 1 / self.step[1]), size)

    @property
    def copies_pixels(self) -> bool:
        """Whether each pixel of the crop is a pixel of the slice or lies outside it."""
        return self.step == (1.0, 1.0) and all(float(place).is_integer() for place in self.origin)


def crop(image: NDArray[Any], frame: Frame, *, fill: float = 0, interpolation: Interpolation) -> NDArray[Any]:
    """Crop one or more slices, (..., H, W) -> (..., h, w) with the same dtype.

    Args:
        image: slices.
        frame: geometry of the crop.
        fill: value of pixels outside the slice.
        interpolation: "linear" for images (integers are rounded), "nearest" for labels.
    """
    out = np.full((*image.shape[:-2], *frame.size), fill, dtype=image.dtype)
    if frame.copies_pixels:
        inside, source = zip(*map(_overlap, frame.origin, frame.size, image.shape[-2:]), strict=True)
        out[(..., *inside)] = image[(..., *source)]
        return out
    for index in np.ndindex(image.shape[:-2]):
        out[index] = _resample(image[index], frame, fill, interpolation)
    return out


def _overlap(origin: float, size: int, length: int) -> tuple[slice, slice]:
    """Return the overlap of crop and slice along one axis, as a range of the crop and of the slice."""
    start, stop = max(0, int(origin)), min(length, int(origin) + size)
    stop = max(start, stop)
    return slice(start - int(origin), stop - int(origin)), slice(start, stop)


def _resample(image: NDArray[Any], frame: Frame, fill: float, interpolation: Interpolation) -> NDArray[Any]:
    kind = {"linear": SimpleITK.sitkLinear, "nearest": SimpleITK.sitkNearestNeighbor}[interpolation]
    values = image.astype(np.float64) if interpolation == "linear" else np.asarray(image)
    resampled = SimpleITK.GetArrayFromImage(
        SimpleITK.Resample(
            SimpleITK.GetImageFromArray(values),
            frame.size[::-1],
            SimpleITK.Transform(),
            kind,
            frame.origin[::-1],
            frame.step[::-1],
            (1.0, 0.0, 0.0, 1.0),
            fill,
        )
    )
    return np.rint(resampled) if interpolation == "linear" and image.dtype.kind in "iu" else resampled
