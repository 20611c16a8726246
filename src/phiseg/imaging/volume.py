"""Volumes: voxels with their place in the world, and the slices that they are looked at in.

I x J x K voxels along a volume's own axes, N slices of H x W pixels, C channels. The world is in millimetres
towards Right, Anterior and Superior, as in NIfTI.
"""

from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from nibabel.orientations import apply_orientation, axcodes2ornt, inv_ornt_aff, io_orientation, ornt_transform
from numpy.typing import NDArray

Plane = Literal["axial", "coronal", "sagittal"]

PLANES: dict[Plane, str] = {"axial": "SPL", "coronal": "PIL", "sagittal": "LIP"}
"""Where slices, rows and columns go in each plane, so that a slice looks as on a radiologist's screen."""


@dataclass(frozen=True)
class Volume:
    """Voxels and where they are."""

    values: NDArray[Any]
    """(I, J, K) or (I, J, K, C)."""
    affine: NDArray[np.float64]
    """(4, 4), from voxel (i, j, k, 1) to the world."""

    @property
    def grid(self) -> tuple[int, ...]:
        """Number of voxels along each of the three axes."""
        return self.values.shape[:3]

    @property
    def spacing_mm(self) -> tuple[float, float, float]:
        """Millimetres from voxel to voxel along each axis."""
        i, j, k = (float(step) for step in np.linalg.norm(self.affine[:3, :3], axis=0))
        return i, j, k

    def world(self, voxels: NDArray[Any]) -> NDArray[np.float64]:
        """Return where voxels are: (..., 3) places along the axes to (..., 3) millimetres."""
        places: NDArray[np.float64] = voxels @ self.affine[:3, :3].T + self.affine[:3, 3]
        return places

    def reoriented(self, codes: str = "LPS") -> Self:
        """Return the same voxels, with axes that go towards `codes` as closely as their own directions allow.

        Nothing is resampled: an oblique volume keeps its own planes.
        """
        return self._turned(ornt_transform(io_orientation(self.affine), axcodes2ornt(codes)))

    def reoriented_like(self, other: "Volume") -> Self | None:
        """Return the same voxels, with axes in the order and the directions of those of `other`.

        None where their directions differ so much that none of its axes belongs to one of the other's.
        """
        orientation = io_orientation(np.linalg.inv(other.affine) @ self.affine)
        return None if np.isnan(orientation).any() else self._turned(orientation)

    def _turned(self, orientation: NDArray[Any]) -> Self:
        turned = apply_orientation(self.values, orientation)
        return type(self)(turned, self.affine @ inv_ornt_aff(orientation, self.grid))


def affine_towards(codes: str) -> NDArray[np.float64]:
    """Return the affine of voxels of 1 mm whose axes go towards `codes`, such as LPS.

    >>> affine_towards("LPS").diagonal()
    array([-1., -1.,  1.,  1.])
    """
    affine = np.eye(4)
    affine[:3, :3] = 0
    for axis, code in enumerate(codes):
        affine["LRPAIS".index(code) // 2, axis] = 1 if code in "RAS" else -1
    return affine


def coarsest_plane(volume: Volume) -> Plane:
    """Return the plane that was scanned: that of a single slice, else the one whose slices are farthest apart.

    Axial where there is none.
    """
    stacks = {plane: to_slices(volume, plane) for plane in PLANES}
    single = [plane for plane, stack in stacks.items() if stack.grid[0] == 1]
    if len(single) == 1:  # the thickness of a picture means nothing
        return single[0]
    distance = {plane: stack.spacing_mm[0] for plane, stack in stacks.items()}
    return next(plane for plane in PLANES if distance[plane] > 0.999 * max(distance.values()))


def to_slices(volume: Volume, plane: Plane) -> Volume:
    """Return the volume as a stack of images.

    An axial slice has anterior at the top, the others have the head there; the patient's right is at the left, and
    in a sagittal slice anterior is. The order of the slices is towards Superior, Posterior or Left.

    Returns:
        Values (N, H, W) or (N, H, W, C), with the affine from (slice, row, column) to the world.
    """
    return volume.reoriented(PLANES[plane])


def from_slices(slices: NDArray[Any], plane: Plane, *, like: Volume) -> Volume:
    """Put a stack of images back onto the grid of the volume they were made of, to the voxel.

    Args:
        slices: (N, H, W) or (N, H, W, C), with the pixels of `to_slices(like, plane)`.
        plane: the plane of the slices.
        like: the volume whose grid is wanted.
    """
    back = ornt_transform(axcodes2ornt(PLANES[plane]), io_orientation(like.affine))
    volume = Volume(apply_orientation(slices, back), like.affine)
    assert volume.grid == like.grid, f"slices {slices.shape} do not fit a volume of {like.grid}"
    return volume


def difference_of_grids(first: Volume, second: Volume) -> str | None:
    """Say how the grids of two volumes differ, or None when corners lie within a tenth of a voxel of each other."""
    if first.grid != second.grid:
        return f"{' x '.join(map(str, first.grid))} against {' x '.join(map(str, second.grid))} voxels"
    corners = np.stack(np.meshgrid(*((0, n - 1) for n in first.grid)), axis=-1)
    distance = float(np.linalg.norm(first.world(corners) - second.world(corners), axis=-1).max())
    return None if distance <= 0.1 * min(first.spacing_mm) else f"voxels up to {distance:.3g} mm apart"
