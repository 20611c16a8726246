"""Pictures of a case: the image itself, or three views of a volume."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from phiseg.data.store import Dataset

PLANES = {
    "axial": ("axial", "coronal", "sagittal"),
    "coronal": ("coronal", "axial", "sagittal"),
    "sagittal": ("sagittal", "axial", "coronal"),
}
"""Planes of the views of a volume across its slices, rows and columns, by the plane of the slices."""


class PlaneView(NamedTuple):
    """A picture of a case: the image itself, or one slice of a volume in one plane."""

    row: int
    axis: int | None = None
    """Axis that the slice is perpendicular to; None for an image."""
    position: int = 0
    """Number of the slice along the axis."""

    def of(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the picture (..., height, width) of an array (..., *size)."""
        return array if self.axis is None else array.take(self.position, self.axis - 3)

    def spacing_mm(self, dataset: Dataset) -> tuple[float, float] | None:
        """Return the spacing (vertical, horizontal) of the pixels in mm, or None if it is unknown."""
        if self.axis is None:
            return dataset.spacing_mm(self.row)
        if (spacing := dataset.voxel_spacing_mm(self.row)) is None:
            return None
        vertical, horizontal = (mm for axis, mm in enumerate(spacing) if axis != self.axis)
        return vertical, horizontal

    def aspect(self, dataset: Dataset) -> float:
        """Return the ratio of the height and the width of a pixel."""
        vertical, horizontal = self.spacing_mm(dataset) or (1.0, 1.0)
        return vertical / horizontal

    def plane(self, dataset: Dataset) -> str:
        """Return the name of the plane, empty for an image."""
        if self.axis is None:
            return ""
        return PLANES.get(dataset.info.plane or "", ("xy plane", "xz plane", "yz plane"))[self.axis]


def plane_views(dataset: Dataset, row: int) -> list[PlaneView]:
    """Return the pictures of a case: slices of a volume where its annotators drew most, or in the middle."""
    if dataset.dims == 2:
        return [PlaneView(row)]
    drawn = (dataset.annotations(row) > 0).sum(0)  # (D, H, W)
    counts = [drawn.sum(tuple({0, 1, 2} - {axis})) for axis in range(3)]
    return [
        PlaneView(row, axis, int(np.argmax(count)) if count.any() else len(count) // 2)
        for axis, count in enumerate(counts)
    ]
