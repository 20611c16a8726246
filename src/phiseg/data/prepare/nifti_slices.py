"""Read one scan on a common grid and turn its slices, or the whole volume, into cases.

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
from phiseg.data.classes import check_classes
from phiseg.data.manifest import MISSING
from phiseg.data.prepare.found_files import AnnotatedImage
from phiseg.data.prepare.option_checks import check_size, check_spacing, check_window
from phiseg.data.spacing import HORIZONTAL, SLICES, VERTICAL
from phiseg.data.writer import Case
from phiseg.imaging.frame import Frame, crop
from phiseg.imaging.nifti_files import read_nifti, read_nifti_labels
from phiseg.imaging.volume import PLANES, Plane, Volume, coarsest_plane, difference_of_grids, to_slices

Window = tuple[float, float]

MAX_CHANNELS = 16
"""Number of slices up to which an image with labels of one slice is read as channels."""


@dataclass(frozen=True, kw_only=True)
class Slicing:
    """Slicing options."""

    plane: Plane | Literal["auto"] = "axial"
    """Plane of the slices; "auto" uses the plane with the widest slice spacing of each volume."""
    spacing: float | None = None
    """Pixel spacing in mm; None keeps the spacing of each volume."""
    size: tuple[int, int] | None = None
    """Height and width; None uses the size of the largest slice, so that nothing is cropped."""
    window: Window | None = None
    """Values that are mapped to -0.5 and 0.5; None z-scores each volume."""
    slices: Literal["all", "annotated"] = "all"
    """Slices to use; "annotated" keeps slices with a non-empty mask of at least one annotator."""
    volumes: bool = False
    """Each scan is one case, a volume, instead of one case for each slice."""

    def __post_init__(self) -> None:
        if self.plane not in (*PLANES, "auto"):
            raise ConfigError(f"unknown plane '{self.plane}'; use {', '.join(PLANES)} or auto")
        if self.volumes and self.slices == "annotated":
            raise ConfigError(
                "--volumes with --slices annotated would end volumes where the annotations end, which is not known "
                "for a new scan; use --slices all"
            )
        if self.volumes and self.plane == "auto":
            raise ConfigError("--volumes needs one plane for all scans; use --plane axial, coronal or sagittal")
        check_spacing(self.spacing)
        check_window(self.window)
        if self.size is not None:
            check_size(*self.size)


@dataclass(frozen=True, kw_only=True)
class SlicingPlan:
    """Properties of the dataset, determined before the volumes are read."""

    slicing: Slicing
    size: tuple[int, int]
    channels: int
    dtype: np.dtype[Any]
    spacing_mm: tuple[float, float] | None
    classes: tuple[str, ...]
    merge: Mapping[int, int]
    annotators: tuple[str, ...]


def cases_of_scan(scan: AnnotatedImage, plan: SlicingPlan) -> list[Case]:
    """Read one scan and return its slices, or the whole volume."""
    images, drawn = on_one_grid(scan, partial(read_nifti, channels=True), partial(_read_classes, plan=plan))
    plane = plane_of(plan.slicing, images[0])
    stack = to_slices(images[0], plane)
    frame = frame_of(stack, plan.slicing, plan.size)
    pixels = np.concatenate([to_slices(image, plane).values for image in images], axis=3)  # (N, H, W, C)
    if pixels.shape[3] != plan.channels:
        raise DataError(
            f"{scan.images[0]} has {pixels.shape[3]} channels, but most cases have {plan.channels}; "
            "add or remove channels"
        )
    pixels = np.moveaxis(_stored_values(pixels, scan.images[0], plan), 3, 1)
    pixels = crop(pixels, frame, fill=_outside(plan.slicing.window, plan.dtype), interpolation="linear")
    valid = np.array([annotator in drawn for annotator in plan.annotators])
    labels = np.full((len(pixels), len(plan.annotators), *plan.size), MISSING, dtype=np.uint8)
    for index, annotator in enumerate(plan.annotators):
        if annotator in drawn:
            slices = to_slices(drawn[annotator], plane).values
            labels[:, index] = crop(slices, frame, fill=0, interpolation="nearest")
    if plan.slicing.volumes:
        place = {**_place(stack, 0, frame), SLICES: round(float(stack.spacing_mm[0]), 6)}
        return [
            Case(
                case=scan.case,
                patient=scan.patient,
                image=pixels.swapaxes(0, 1),  # (C, N, H, W)
                labels=labels.swapaxes(0, 1),  # (A, N, H, W)
                valid=valid,
                columns={"scan": scan.case, "plane": plane, **place},
            )
        ]
    kept = list(range(len(pixels)))
    if plan.slicing.slices == "annotated":
        kept = np.flatnonzero((labels[:, valid] > 0).any(axis=(1, 2, 3))).tolist()
        if not kept:
            raise DataError(
                f"{scan.images[0]}: all masks are empty within the images; use --slices all or a larger --size"
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
    scan: AnnotatedImage, read_image: Callable[[Path], Volume], read_labels: Callable[[Path], Volume]
) -> tuple[list[Volume], dict[str, Volume]]:
    """Read the files of a scan, with the axes in the order of the first image.

    If the labels have one slice, the third axis of images with several slices holds channels, up to `MAX_CHANNELS`.

    Returns:
        Images (I, J, K, C) and the labels (I, J, K) of each annotator.

    Raises:
        DataError: a file cannot be read, or is not on the grid of the first image.
    """
    images = [read_image(path) for path in scan.images]
    labels = {annotator: read_labels(path) for annotator, path in scan.labels.items()}
    if all(_is_slice_of(volume, images[0]) for volume in labels.values()):
        images = [_slice_with_channels(image) for image in images]
    first = images[0]

    def aligned(volume: Volume, path: Path) -> Volume:
        turned = volume.reoriented_like(first)
        if difference := difference_of_grids(first, turned or volume):
            raise DataError(
                f"{scan.images[0]} and {path} are not on the same grid ({difference}); "
                "resample one to the other (labels: nearest neighbour), or fix the incorrect header"
            )
        return turned or volume

    images[1:] = [aligned(image, path) for image, path in zip(images[1:], scan.images[1:], strict=True)]
    return images, {annotator: aligned(volume, scan.labels[annotator]) for annotator, volume in labels.items()}


def _is_slice_of(labels: Volume, image: Volume) -> bool:
    """Return whether the labels have one slice, with the rows and columns of an image of a few slices."""
    return labels.grid == (*image.grid[:2], 1) and 1 < image.grid[2] <= MAX_CHANNELS


def _slice_with_channels(image: Volume) -> Volume:
    """Return an image (I, J, K, 1) as one slice (I, J, 1, K); an image with channels is unchanged."""
    return Volume(image.values.swapaxes(2, 3), image.affine) if image.values.shape[3] == 1 else image


def read_merged(path: Path, *, merge: Mapping[int, int]) -> Volume:
    """Read a label file and renumber its labels."""
    volume = read_nifti_labels(path)
    labels = volume.values.copy()
    for old, new in merge.items():
        labels[volume.values == old] = new
    return Volume(labels, volume.affine)


def _read_classes(path: Path, *, plan: SlicingPlan) -> Volume:
    volume = read_merged(path, merge=plan.merge)
    check_classes(volume.values, plan.classes, where=str(path), fix="use --merge, as in --merge 3:0")
    return Volume(volume.values.astype(np.uint8), volume.affine)


def plane_of(slicing: Slicing, volume: Volume) -> Plane:
    """Return the plane of the slices of a volume."""
    return coarsest_plane(volume) if slicing.plane == "auto" else slicing.plane


def frame_of(stack: Volume, slicing: Slicing, size: tuple[int, int] | None) -> Frame:
    """Return the centred crop of every slice, or the whole slice if there is no size."""
    height, width = stack.grid[1:]
    row, column = (1.0 if slicing.spacing is None else slicing.spacing / mm for mm in stack.spacing_mm[1:])
    step = tuple(1.0 if math.isclose(s, 1, rel_tol=1e-4) else s for s in (row, column))
    whole = (math.ceil(height / step[0] - 1e-6), math.ceil(width / step[1] - 1e-6))
    return Frame.centred(((height - 1) / 2, (width - 1) / 2), size or whole, (step[0], step[1]))


def pixel_mm(stack: Volume, frame: Frame) -> tuple[float, float]:
    """Return the pixel spacing of a crop (vertical, horizontal) in mm."""
    _, row, column = stack.spacing_mm
    return round(row * frame.step[0], 6), round(column * frame.step[1], 6)


def _place(stack: Volume, index: int, frame: Frame) -> dict[str, float]:
    """Return the position of a crop in its slice and in world coordinates.

    Pixel (r, c) is at (x_mm, y_mm, z_mm) + r * row_spacing_mm * (row_x, row_y, row_z)
    + c * column_spacing_mm * (column_x, column_y, column_z).
    """
    origin_row, origin_column = frame.origin
    row_mm, column_mm = pixel_mm(stack, frame)
    corner = stack.world(np.array([index, origin_row, origin_column]))
    directions = stack.affine[:3, :3] / stack.spacing_mm
    place = {"origin_row": origin_row, "origin_column": origin_column}
    place |= {VERTICAL: row_mm, HORIZONTAL: column_mm}
    place |= {f"{axis}_mm": corner[n] for n, axis in enumerate("xyz")}
    place |= {f"row_{axis}": directions[n, 1] for n, axis in enumerate("xyz")}
    place |= {f"column_{axis}": directions[n, 2] for n, axis in enumerate("xyz")}
    return {name: round(float(value), 6) for name, value in place.items()}


def _outside(window: Window | None, dtype: np.dtype[Any]) -> float:
    """Return the value of pixels outside the scan: the lower end of the window, or the mean of the volume."""
    low = window[0] if window else 0.0
    return math.floor(low) if dtype.kind == "i" else low


def _stored_values(pixels: NDArray[Any], path: Path, plan: SlicingPlan) -> NDArray[Any]:
    """Return the values to store (N, H, W, C): unchanged with a window, otherwise each channel z-scored."""
    with np.errstate(all="ignore"):
        if plan.slicing.window is None:
            axes = (0, 1, 2)
            mean = pixels.mean(axis=axes, dtype=np.float64)
            deviation = pixels.std(axis=axes, dtype=np.float64)
            if not (deviation > 0).all():
                raise DataError(f"{path}: all voxels have the same value, so there is no z-score; remove the case")
            pixels = (pixels - mean) / deviation
        stored = pixels.astype(plan.dtype)
    if not np.isfinite(stored).all():
        raise DataError(f"{path} has values too large for {plan.dtype}; rescale the image or remove it")
    return stored
