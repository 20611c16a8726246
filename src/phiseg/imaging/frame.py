"""Frames: cut-outs of a slice with their own position, spacing and size, taken out and put back.

H x W pixels of the slice, h x w pixels of the cut-out; places are (row, column), in pixels of the slice.
"""

from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import SimpleITK
from numpy.typing import NDArray

Interpolation = Literal["linear", "nearest"]


@dataclass(frozen=True)
class Frame:
    """Pixel (r, c) of the cut-out lies at `origin + step * (r, c)` of the slice."""

    origin: tuple[float, float]
    step: tuple[float, float]
    size: tuple[int, int]

    @classmethod
    def centred(
        cls, centre: tuple[float, float], size: tuple[int, int], step: tuple[float, float] = (1.0, 1.0)
    ) -> Self:
        """Return the frame with its middle at `centre`; where the step is 1, its pixels are those of the slice."""
        corner = [c - s * (n - 1) / 2 for c, s, n in zip(centre, step, size, strict=True)]
        row, column = (float(np.floor(o)) if s == 1 else o for o, s in zip(corner, step, strict=True))
        return cls((row, column), step, size)

    def inverse(self, size: tuple[int, int]) -> Self:
        """Return the frame that puts the cut-out back onto a slice of `size` pixels."""
        row, column = (-o / s for o, s in zip(self.origin, self.step, strict=True))
        return type(self)((row, column), (1 / self.step[0], 1 / self.step[1]), size)

    @property
    def copies_pixels(self) -> bool:
        """Whether every pixel of the cut-out is one of the slice, or lies outside of it."""
        return self.step == (1.0, 1.0) and all(float(place).is_integer() for place in self.origin)


def cut(image: NDArray[Any], frame: Frame, *, fill: float = 0, interpolation: Interpolation) -> NDArray[Any]:
    """Cut the frame out of one or many slices, (..., H, W) to (..., h, w) of the same type.

    Args:
        image: slices.
        frame: what to cut out.
        fill: value of pixels that lie outside of the slice.
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
    """Return the part of an axis of the cut-out that lies on the slice, and that part of the slice."""
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
