"""Volumes: voxels with their position in world coordinates, and slices in the three anatomical planes.

I x J x K voxels along the axes of the volume, N slices of H x W pixels, C channels. World coordinates are
millimetres towards Right, Anterior and Superior (RAS), as in NIfTI.
"""

from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from nibabel.orientations import apply_orientation, axcodes2ornt, inv_ornt_aff, io_orientation, ornt_transform
from numpy.typing import NDArray

Plane = Literal["axial", "coronal", "sagittal"]

PLANES: dict[Plane, str] = {"axial": "SPL", "coronal": "PIL", "sagittal": "LIP"}
"""Directions of slices, rows and columns in each plane, in radiological display convention."""

LPS_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])
"""Matrix from the world coordinates of DICOM and ITK to those of NIfTI; it is its own inverse."""


@dataclass(frozen=True)
class Volume:
    """Voxel values with their affine."""

    values: NDArray[Any]
    """(I, J, K) or (I, J, K, C)."""
    affine: NDArray[np.float64]
    """(4, 4) matrix from voxel (i, j, k, 1) to world coordinates."""
    box: tuple[slice, slice, slice] = (slice(None), slice(None), slice(None))
    """Part of each axis with voxels that may differ from 0. Writers need not read the others."""

    @property
    def grid(self) -> tuple[int, ...]:
        """Number of voxels along each axis."""
        return self.values.shape[:3]

    @property
    def spacing_mm(self) -> tuple[float, float, float]:
        """Voxel spacing along each axis in millimetres."""
        i, j, k = (float(step) for step in np.linalg.norm(self.affine[:3, :3], axis=0))
        return i, j, k

    def world(self, voxels: NDArray[Any]) -> NDArray[np.float64]:
        """Return the world coordinates (..., 3) in millimetres of voxel coordinates (..., 3)."""
        places: NDArray[np.float64] = voxels @ self.affine[:3, :3].T + self.affine[:3, 3]
        return places

    def reoriented(self, codes: str = "LPS") -> Self:
        """Return the volume with its axes permuted and flipped to be closest to `codes`.

        Voxels are not resampled: an oblique volume keeps its planes.
        """
        return self._with_orientation(ornt_transform(io_orientation(self.affine), axcodes2ornt(codes)))

    def reoriented_like(self, other: "Volume") -> Self | None:
        """Return the volume with its axes permuted and flipped to match those of `other`.

        None if the directions differ so much that the axes cannot be assigned to each other.
        """
        orientation = io_orientation(np.linalg.inv(other.affine) @ self.affine)
        return None if np.isnan(orientation).any() else self._with_orientation(orientation)

    def _with_orientation(self, orientation: NDArray[Any]) -> Self:
        values = apply_orientation(self.values, orientation)
        return type(self)(values, self.affine @ inv_ornt_aff(orientation, self.grid))


def affine_towards(codes: str) -> NDArray[np.float64]:
    """Return the affine of a volume with 1 mm voxels and axes towards `codes`, such as LPS.

    >>> affine_towards("LPS").diagonal()
    array([-1., -1.,  1.,  1.])
    """
    affine = np.eye(4)
    affine[:3, :3] = 0
    for axis, code in enumerate(codes):
        affine["LRPAIS".index(code) // 2, axis] = 1 if code in "RAS" else -1
    return affine


def coarsest_plane(volume: Volume) -> Plane:
    """Return the acquisition plane: the plane of a single slice, otherwise the one with the largest slice distance.

    Ties go to axial.
    """
    stacks = {plane: to_slices(volume, plane) for plane in PLANES}
    single = [plane for plane, stack in stacks.items() if stack.grid[0] == 1]
    if len(single) == 1:  # the thickness of a single slice is arbitrary
        return single[0]
    distance = {plane: stack.spacing_mm[0] for plane, stack in stacks.items()}
    return next(plane for plane in PLANES if distance[plane] > 0.999 * max(distance.values()))


def to_slices(volume: Volume, plane: Plane) -> Volume:
    """Return the volume as a stack of slices in radiological convention.

    The top is anterior in axial slices and superior in the other planes. The left is the patient's right, or
    anterior in sagittal slices. Slices are ordered towards Superior, Posterior or Left.

    Returns:
        Values (N, H, W) or (N, H, W, C), with the affine from (slice, row, column) to world coordinates.
    """
    return volume.reoriented(PLANES[plane])


def from_slices(slices: NDArray[Any], plane: Plane, *, like: Volume) -> Volume:
    """Return a stack of slices as a volume on the grid of the original volume; inverse of `to_slices`.

    Args:
        slices: (N, H, W) or (N, H, W, C), on the pixels of `to_slices(like, plane)`.
        plane: plane of the slices.
        like: volume with the target grid.
    """
    back = ornt_transform(axcodes2ornt(PLANES[plane]), io_orientation(like.affine))
    volume = Volume(apply_orientation(slices, back), like.affine)
    assert volume.grid == like.grid, f"slices {slices.shape} do not match a volume of {like.grid}"
    return volume


def difference_of_grids(first: Volume, second: Volume) -> str | None:
    """Describe how two grids differ, or return None if their corners agree within a tenth of a voxel."""
    if first.grid != second.grid:
        return f"{' x '.join(map(str, first.grid))} against {' x '.join(map(str, second.grid))} voxels"
    corners = np.stack(np.meshgrid(*((0, n - 1) for n in first.grid)), axis=-1)
    distance = float(np.linalg.norm(first.world(corners) - second.world(corners), axis=-1).max())
    return None if distance <= 0.1 * min(first.spacing_mm) else f"voxels up to {distance:.3g} mm apart"
