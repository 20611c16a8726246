"""One scan: its files brought onto one grid, and its slices cut into cases.

N slices of H x W pixels, C channels, A annotators.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from phiseg.core.errors import ConfigError, DataError
from phiseg.data.prepare.nifti_layout import Scan
from phiseg.data.prepare.option_checks import check_size, check_spacing, check_window
from phiseg.data.store import MISSING, check_classes
from phiseg.data.writer import Case
from phiseg.imaging.frame import Frame, cut
from phiseg.imaging.nifti import read_nifti, read_nifti_labels
from phiseg.imaging.volume import PLANES, Plane, Volume, coarsest_plane, difference_of_grids, to_slices

Window = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Slicing:
    """How a volume becomes images."""

    plane: Plane | Literal["auto"] = "axial"
    """"auto" takes, for each volume, the plane whose slices are farthest apart."""
    spacing: float | None = None
    """Millimetres per pixel; the volume's own by default."""
    size: tuple[int, int] | None = None
    """Height and width; by default those of the largest slice, so that nothing is cut off."""
    window: Window | None = None
    """Values that become -0.5 and 0.5; by default each volume is z-scored."""
    slices: Literal["all", "annotated"] = "all"
    """"annotated" keeps slices on which at least one rater drew something."""

    def __post_init__(self) -> None:
        if self.plane not in (*PLANES, "auto"):
            raise ConfigError(f"plane '{self.plane}' must be {', '.join(PLANES)} or auto")
        check_spacing(self.spacing)
        check_window(self.window)
        if self.size is not None:
            check_size(*self.size)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that is settled before the first volume is read."""

    slicing: Slicing
    size: tuple[int, int]
    channels: int
    dtype: np.dtype[Any]
    spacing_mm: tuple[float, float] | None
    classes: tuple[str, ...]
    merge: Mapping[int, int]
    raters: tuple[str, ...]


def cases_of_scan(scan: Scan, plan: Plan) -> list[Case]:
    """Read and cut one scan."""
    images, drawn = on_one_grid(scan, partial(read_nifti, channels=True), partial(_read_classes, plan=plan))
    plane = plane_of(plan.slicing, images[0])
    stack = to_slices(images[0], plane)
    frame = frame_of(stack, plan.slicing, plan.size)
    pixels = np.concatenate([to_slices(image, plane).values for image in images], axis=3)  # (N, H, W, C)
    if pixels.shape[3] != plan.channels:
        raise DataError(
            f"{scan.images[0]}: {pixels.shape[3]} channels, most cases have {plan.channels}; add or remove"
        )
    pixels = np.moveaxis(_stored_values(pixels, scan.images[0], plan), 3, 1)
    pixels = cut(pixels, frame, fill=_outside(plan.slicing.window, plan.dtype), interpolation="linear")
    valid = np.array([rater in drawn for rater in plan.raters])
    labels = np.full((len(pixels), len(plan.raters), *plan.size), MISSING, dtype=np.uint8)
    for annotator, rater in enumerate(plan.raters):
        if rater in drawn:
            slices = to_slices(drawn[rater], plane).values
            labels[:, annotator] = cut(slices, frame, fill=0, interpolation="nearest")
    kept = list(range(len(pixels)))
    if plan.slicing.slices == "annotated":
        kept = np.flatnonzero((labels[:, valid] > 0).any(axis=(1, 2, 3))).tolist()
        if not kept:
            raise DataError(
                f"{scan.images[0]}: no rater drew anything within the images; take all slices or larger ones"
            )
    return [
        Case(
            case=f"{scan.case}-s{index:04d}",
            patient=scan.patient,
            image=pixels[index],
            labels=labels[index],
            valid=valid,
            columns={"scan": scan.case, "plane": plane, "slice": index, **_place(stack, index, frame)},
        )
        for index in kept
    ]


def on_one_grid(
    scan: Scan, read_image: Callable[[Path], Volume], read_labels: Callable[[Path], Volume]
) -> tuple[list[Volume], dict[str, Volume]]:
    """Read a scan's files, with their axes in the order of the first image's.

    Returns:
        Images (I, J, K, C) and each rater's labels (I, J, K).

    Raises:
        DataError: a file cannot be read, or its voxels are elsewhere than those of the first image.
    """
    first = read_image(scan.images[0])

    def aligned(volume: Volume, path: Path) -> Volume:
        turned = volume.reoriented_like(first)
        if difference := difference_of_grids(first, turned or volume):
            raise DataError(
                f"{scan.images[0]} and {path} are not on one grid ({difference}); "
                "resample one onto the other (labels: nearest neighbour), or repair the header that is wrong"
            )
        return turned or volume

    images = [first, *(aligned(read_image(path), path) for path in scan.images[1:])]
    return images, {rater: aligned(read_labels(path), path) for rater, path in scan.labels.items()}


def read_merged(path: Path, *, merge: Mapping[int, int]) -> Volume:
    """Read a label file, with its labels renumbered."""
    volume = read_nifti_labels(path)
    labels = volume.values.copy()
    for old, new in merge.items():
        labels[volume.values == old] = new
    return Volume(labels, volume.affine)


def _read_classes(path: Path, *, plan: Plan) -> Volume:
    volume = read_merged(path, merge=plan.merge)
    check_classes(volume.values, plan.classes, where=str(path), fix="use --merge, as in --merge 3:0")
    return Volume(volume.values.astype(np.uint8), volume.affine)


def plane_of(slicing: Slicing, volume: Volume) -> Plane:
    """Return the plane in which a volume is sliced."""
    return coarsest_plane(volume) if slicing.plane == "auto" else slicing.plane


def frame_of(stack: Volume, slicing: Slicing, size: tuple[int, int] | None) -> Frame:
    """Return what is cut out of the middle of every slice; all of it where there is no size."""
    height, width = stack.grid[1:]
    row, column = (1.0 if slicing.spacing is None else slicing.spacing / mm for mm in stack.spacing_mm[1:])
    step = tuple(1.0 if math.isclose(s, 1, rel_tol=1e-4) else s for s in (row, column))
    whole = (math.ceil(height / step[0] - 1e-6), math.ceil(width / step[1] - 1e-6))
    return Frame.centred(((height - 1) / 2, (width - 1) / 2), size or whole, (step[0], step[1]))


def pixel_mm(stack: Volume, frame: Frame) -> tuple[float, float]:
    """Return the size of a cut-out's pixels, along its rows' and its columns' axis."""
    _, row, column = stack.spacing_mm
    return round(row * frame.step[0], 6), round(column * frame.step[1], 6)


def _place(stack: Volume, index: int, frame: Frame) -> dict[str, float]:
    """Return where a cut-out lies, in its slice and in the world.

    Pixel (r, c) is at (x_mm, y_mm, z_mm) + r * row_spacing_mm * (row_x, row_y, row_z)
    + c * column_spacing_mm * (column_x, column_y, column_z).
    """
    origin_row, origin_column = frame.origin
    row_mm, column_mm = pixel_mm(stack, frame)
    corner = stack.world(np.array([index, origin_row, origin_column]))
    directions = stack.affine[:3, :3] / stack.spacing_mm
    place = {"origin_row": origin_row, "origin_column": origin_column}
    place |= {"row_spacing_mm": row_mm, "column_spacing_mm": column_mm}
    place |= {f"{axis}_mm": corner[n] for n, axis in enumerate("xyz")}
    place |= {f"row_{axis}": directions[n, 1] for n, axis in enumerate("xyz")}
    place |= {f"column_{axis}": directions[n, 2] for n, axis in enumerate("xyz")}
    return {name: round(float(value), 6) for name, value in place.items()}


def _outside(window: Window | None, dtype: np.dtype[Any]) -> float:
    """Return the value of pixels outside of the scan: the window's lower end, or the volume's mean."""
    low = window[0] if window else 0.0
    return math.floor(low) if dtype.kind == "i" else low


def _stored_values(pixels: NDArray[Any], path: Path, plan: Plan) -> NDArray[Any]:
    """Return (N, H, W, C) as it is stored: with a window unchanged, else each channel z-scored over the volume."""
    with np.errstate(all="ignore"):
        if plan.slicing.window is None:
            axes = (0, 1, 2)
            mean = pixels.mean(axis=axes, dtype=np.float64)
            deviation = pixels.std(axis=axes, dtype=np.float64)
            if not (deviation > 0).all():
                raise DataError(f"{path}: every voxel has the same value, so it has no z-score; leave it out")
            pixels = (pixels - mean) / deviation
        stored = pixels.astype(plan.dtype)
    if not np.isfinite(stored).all():
        raise DataError(f"{path} has values too large for {plan.dtype}; rescale the image or leave it out")
    return stored
