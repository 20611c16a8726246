"""A DICOM series as a volume: the slices of one scan, which must be complete and evenly spaced.

I columns, J rows and K slices. Positions are millimetres in DICOM's LPS space until the affine turns them into RAS.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from phiseg.core.errors import DataError
from phiseg.imaging.dicom import DicomFolder, Series, SliceHeader, read_folder, read_values
from phiseg.imaging.volume import Volume

_LPS_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])
_SAME_DIRECTION = 1e-3
"""How far the components of two unit vectors may be apart: 0.06 degrees."""
_SAME_SPACING = 1e-3
"""How far pixel spacings may be apart, as a share."""
_SAME_PLACE_MM = 0.01
"""How near to each other two slices lie at one position."""
_MAX_OFF_LINE = 0.1
"""How far a slice may lie from its place on an even line, as a share of the slices' distance."""
_MAX_TILT_DEGREES = 0.5
_MAX_WOBBLE = 0.1
"""How far a slice may be shifted sideways without a tilt, in pixels."""


@dataclass(frozen=True)
class DicomSeries:
    """One scan, and the files that it came from."""

    volume: Volume
    """(I, J, K) float32 in the series' unit (Hounsfield units for CT): columns, rows, slices by ascending depth."""
    files: tuple[Path, ...]
    """K, in the order of the slices."""
    modality: str
    uid: str
    """Series instance UID."""
    warnings: tuple[str, ...]
    """What the user should know, though the volume is sound."""


def read_series(folder: Path, *, series_uid: str | None = None) -> DicomSeries:
    """Read the scan that lies in a folder.

    Only files directly inside of it count; those that are no DICOM are passed over. One that cannot be read is a
    warning if the slices are complete without it.

    Args:
        folder: of the slices, one file each.
        series_uid: which series to read; without it, there may be one only.

    Raises:
        DataError: there is no such series, or several; a slice is missing, doubled, tilted, of another geometry
            than the others, or has no readable pixels.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} is no folder; give the folder that holds the slices of a DICOM series")
    found = read_folder(
        [
            path
            for path in folder.iterdir()
            if path.is_file() and not path.name.startswith(".") and path.name != "DICOMDIR"
        ]
    )
    series = _choose(found, folder, series_uid)
    warnings = list(found.problems)

    _check_same_geometry(series.slices, folder)
    normal = _normal(series.slices[0])
    slices = sorted(series.slices, key=lambda header: float(normal @ header.position))
    positions = np.array([header.position for header in slices])
    if len(slices) > 1:
        _check_doubles(slices, positions @ normal, folder)
        _check_tilt(slices[0], positions, normal, folder)
        _check_distances(slices, positions @ normal, folder, found.problems)
        step = (positions[-1] - positions[0]) / (len(slices) - 1)
    else:
        thickness = slices[0].thickness_mm
        if thickness is None:
            warnings.append(f"{slices[0].path} is a single slice of unknown thickness; 1 mm is assumed")
        step = normal * (thickness or 1.0)

    volume = Volume(_read_stack(slices), _affine(slices[0], step))
    files = tuple(header.path for header in slices)
    return DicomSeries(volume, files, series.modality, series.uid, tuple(warnings))


def _choose(found: DicomFolder, folder: Path, series_uid: str | None) -> Series:
    if not found.series:
        reason = f" that can be read: {found.problems[0]}" if found.problems else ""
        raise DataError(f"{folder} holds no DICOM file{reason or '; give the folder that holds the slices'}")
    chosen = [one for one in found.series if (one.slices if series_uid is None else one.uid == series_uid)]
    if series_uid is not None and not chosen:
        raise DataError(f"{folder} holds no series {series_uid}; it holds {_list(found.series)}")
    if len(chosen) > 1:
        raise DataError(
            f"{folder} holds {len(chosen)} series: {_list(chosen)}; choose one by its UID (--series), or give each "
            "a folder"
        )
    if not chosen or not chosen[0].slices:
        reason = f" ({found.problems[0]})" if found.problems else ""
        raise DataError(
            f"{folder} holds no slices with a position in space, but {_list(chosen or found.series)}{reason}; "
            "give a CT, MR or PET series of one file per slice (convert multi-frame files first)"
        )
    return chosen[0]


def _check_same_geometry(slices: tuple[SliceHeader, ...], folder: Path) -> None:
    first = slices[0]
    for other in slices[1:]:
        directions = np.subtract((other.along_row, other.along_column), (first.along_row, first.along_column))
        if np.abs(directions).max() > _SAME_DIRECTION:
            raise DataError(
                f"{folder} holds slices of different orientation: {first.path.name} and {other.path.name}; "
                "move those that are not part of the scan (such as a scout) elsewhere"
            )
        if not np.allclose(other.spacing_mm, first.spacing_mm, rtol=_SAME_SPACING, atol=0):
            raise DataError(
                f"{folder} holds slices of different pixel spacing: {_times(first.spacing_mm)} mm in "
                f"{first.path.name}, {_times(other.spacing_mm)} mm in {other.path.name}; give each scan a folder"
            )


def _check_doubles(slices: list[SliceHeader], depths: NDArray[np.float64], folder: Path) -> None:
    doubled = np.flatnonzero(np.diff(depths) <= _SAME_PLACE_MM)
    if doubled.size:
        one, two = slices[doubled[0]], slices[doubled[0] + 1]
        raise DataError(
            f"{folder} holds {_count(len(slices))} at {len(slices) - doubled.size} positions: {one.path.name} and "
            f"{two.path.name} both lie at {depths[doubled[0]]:.2f} mm; keep one phase, echo or copy of each"
        )


def _check_tilt(
    first: SliceHeader, positions: NDArray[np.float64], normal: NDArray[np.float64], folder: Path
) -> None:
    """Refuse slices that do not lie above one another: their pixels form no grid of right angles."""
    way = positions - positions[0]  # (K, 3)
    along = way @ normal
    sideways = np.linalg.norm(way - np.outer(along, normal), axis=1)
    allowed = np.tan(np.radians(_MAX_TILT_DEGREES)) * along + _MAX_WOBBLE * min(first.spacing_mm)
    worst = int(np.argmax(sideways - allowed))
    if sideways[worst] > allowed[worst]:
        angle = np.degrees(np.arctan2(sideways[worst], along[worst]))
        raise DataError(
            f"{folder} holds a tilted scan: its slices are shifted sideways by {sideways[worst]:.1f} mm over "
            f"{along[worst]:.1f} mm ({angle:.1f} degrees; gantry tilt); resample it to a grid of right angles first"
        )


def _check_distances(
    slices: list[SliceHeader], depths: NDArray[np.float64], folder: Path, problems: tuple[str, ...]
) -> None:
    """Refuse slices that are not where an even line through all of them puts them.

    Single distances say less: positions that were rounded to 0.1 mm are 0.6 and 0.7 mm apart for 0.625 mm.
    """
    numbers = np.arange(len(depths))
    distance, start = np.polyfit(numbers, depths, 1)
    if np.abs(depths - (start + distance * numbers)).max() <= _MAX_OFF_LINE * distance:
        return
    distances = np.diff(depths)
    usual = float(np.sort(distances)[(len(distances) - 1) // 2])  # the lower median: one that occurs
    missing = np.maximum(np.rint(distances / usual).astype(int) - 1, 0)
    gap = int(np.argmax(np.abs(distances - usual)))
    one, two = slices[gap], slices[gap + 1]
    place = (
        f"{one.path.name} at {depths[gap]:.2f} mm and {two.path.name} at {depths[gap + 1]:.2f} mm "
        f"are {distances[gap]:.3f} mm apart, others {usual:.3f} mm"
    )
    unread = f"; these could not be read: {' | '.join(problems)}" if problems else ""
    if missing[gap] == 0:
        raise DataError(
            f"{folder} holds unevenly spaced slices: {place}; resample them to even distances first{unread}"
        )
    raise DataError(
        f"{folder} seems to lack {_count(int(missing[gap]))}: {place} "
        f"({_count(int(missing.sum()))} missing in all); fetch the whole series again{unread}"
    )


def _read_stack(slices: list[SliceHeader]) -> NDArray[np.float32]:
    """Read the values, (I, J, K), one slice at a time."""
    first = read_values(slices[0].path)
    stack = np.empty((len(slices), *first.shape), dtype=np.float32)  # (K, J, I), as they lie in the files
    stack[0] = first
    for values, (before, header) in zip(stack[1:], pairwise(slices), strict=True):
        read = read_values(header.path)
        if read.shape != values.shape:
            raise DataError(
                f"{header.path} has {_times(read.shape)} pixels, but {before.path.name} {_times(values.shape)}; "
                "move those that are not part of the scan elsewhere"
            )
        values[:] = read
    return stack.transpose(2, 1, 0)


def _affine(first: SliceHeader, step: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the (4, 4) matrix from (column, row, slice, 1) to RAS millimetres."""
    between_rows, between_columns = first.spacing_mm
    lps = np.eye(4)
    lps[:3, 0] = np.multiply(first.along_row, between_columns)
    lps[:3, 1] = np.multiply(first.along_column, between_rows)
    lps[:3, 2] = step
    lps[:3, 3] = first.position
    affine: NDArray[np.float64] = _LPS_TO_RAS @ lps
    return affine


def _normal(header: SliceHeader) -> NDArray[np.float64]:
    normal = np.cross(header.along_row, header.along_column)
    unit: NDArray[np.float64] = normal / np.linalg.norm(normal)
    return unit


def _list(series: Sequence[Series]) -> str:
    return ", ".join(f"{one.uid} ({one.modality or 'no modality'}, {_count(len(one.slices))})" for one in series)


def _times(numbers: tuple[float, ...]) -> str:
    return " x ".join(f"{number:g}" for number in numbers)


def _count(slices: int) -> str:
    return "1 slice" if slices == 1 else f"{slices} slices"
