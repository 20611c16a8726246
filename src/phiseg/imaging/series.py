"""A DICOM series as a volume: the slices of one scan, which must be complete and evenly spaced.

I columns, J rows and K slices. Positions are in millimetres in the LPS space of DICOM; the affine converts them to
RAS.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
from numpy.typing import NDArray

from phiseg.core.errors import DataError
from phiseg.imaging.dicom import DicomFolder, Series, SliceHeader, read_folder, read_values
from phiseg.imaging.volume import LPS_TO_RAS, Volume

_SAME_DIRECTION = 1e-3
"""Maximum difference between the components of two unit vectors: 0.06 degrees."""
_SAME_SPACING = 1e-3
"""Maximum relative difference between pixel spacings."""
_SAME_POSITION_MM = 0.01
"""Maximum distance between two slices at the same position."""
_MAX_DEVIATION = 0.1
"""Maximum deviation of a slice from even spacing, as a fraction of the slice distance."""
_MAX_TILT_DEGREES = 0.5
_MAX_SHIFT = 0.1
"""Maximum sideways shift of a slice without tilt, in pixels."""


@dataclass(frozen=True)
class DicomSeries:
    """One scan and its files."""

    volume: Volume
    """(I, J, K) float32 in the unit of the series (Hounsfield units for CT): columns, rows, slices by depth."""
    files: tuple[Path, ...]
    """K files in the order of the slices."""
    modality: str
    uid: str
    """Series instance UID."""
    warnings: tuple[str, ...]
    """Problems that do not affect the volume."""
    thickness_mm: float | None = None
    """Largest slice thickness in the headers, which can differ from the slice distance; None if unknown."""

    @cached_property
    def headers(self) -> tuple[Any, ...]:
        """Complete headers of the K files as pydicom datasets without pixels, read once when first used."""
        return tuple(pydicom.dcmread(path, stop_before_pixels=True) for path in self.files)


def read_series(folder: Path, *, series_uid: str | None = None) -> DicomSeries:
    """Read the scan in a folder.

    Subfolders are ignored, and files that are not DICOM are skipped. An unreadable file is a warning if the slices
    are complete without it.

    Args:
        folder: folder with one file per slice.
        series_uid: UID of the series to read; required if there are several.

    Raises:
        DataError: there is no such series, or several; a slice is missing, duplicated or tilted, has a different
            geometry, or has no readable pixels.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} is not a directory; pass the folder with the slices of a DICOM series")
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
        _check_duplicates(slices, positions @ normal, folder)
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
    thickness_mm = max((header.thickness_mm for header in slices if header.thickness_mm), default=None)
    return DicomSeries(volume, files, series.modality, series.uid, tuple(warnings), thickness_mm)


def _choose(found: DicomFolder, folder: Path, series_uid: str | None) -> Series:
    if not found.series:
        if found.problems:
            raise DataError(f"{folder} contains no readable DICOM file: {found.problems[0]}")
        raise DataError(f"{folder} contains no DICOM file; pass the folder with the slices")
    chosen = [one for one in found.series if (one.slices if series_uid is None else one.uid == series_uid)]
    if series_uid is not None and not chosen:
        raise DataError(
            f"{folder} does not contain series {series_uid}, but {_list(found.series)}; choose one of these"
        )
    if len(chosen) > 1:
        raise DataError(
            f"{folder} contains {len(chosen)} series: {_list(chosen)}; choose one by its UID (--series), or use "
            "one folder per series"
        )
    if not chosen or not chosen[0].slices:
        reason = f" ({found.problems[0]})" if found.problems else ""
        raise DataError(
            f"{folder} contains no slices with a position in space, only {_list(chosen or found.series)}{reason}; "
            "pass a CT, MR or PET series with one file per slice (convert multi-frame files first)"
        )
    return chosen[0]


def _check_same_geometry(slices: tuple[SliceHeader, ...], folder: Path) -> None:
    first = slices[0]
    for other in slices[1:]:
        directions = np.subtract((other.along_row, other.along_column), (first.along_row, first.along_column))
        if np.abs(directions).max() > _SAME_DIRECTION:
            raise DataError(
                f"{folder} contains slices of different orientation: {first.path.name} and {other.path.name}; "
                "remove files that are not part of the scan, such as a scout"
            )
        if not np.allclose(other.spacing_mm, first.spacing_mm, rtol=_SAME_SPACING, atol=0):
            raise DataError(
                f"{folder} contains slices of different pixel spacing: {_times(first.spacing_mm)} mm in "
                f"{first.path.name}, {_times(other.spacing_mm)} mm in {other.path.name}; use one folder per scan"
            )


def _check_duplicates(slices: list[SliceHeader], depths: NDArray[np.float64], folder: Path) -> None:
    duplicated = np.flatnonzero(np.diff(depths) <= _SAME_POSITION_MM)
    if duplicated.size:
        one, two = slices[duplicated[0]], slices[duplicated[0] + 1]
        raise DataError(
            f"{folder} contains {_count(len(slices))} at {len(slices) - duplicated.size} positions: "
            f"{one.path.name} and {two.path.name} are both at {depths[duplicated[0]]:.2f} mm; "
            "keep one phase, echo or copy of each"
        )


def _check_tilt(
    first: SliceHeader, positions: NDArray[np.float64], normal: NDArray[np.float64], folder: Path
) -> None:
    """Reject slices that are shifted against each other: their pixels do not form a rectangular grid."""
    offsets = positions - positions[0]  # (K, 3)
    along = offsets @ normal
    sideways = np.linalg.norm(offsets - np.outer(along, normal), axis=1)
    allowed = np.tan(np.radians(_MAX_TILT_DEGREES)) * along + _MAX_SHIFT * min(first.spacing_mm)
    worst = int(np.argmax(sideways - allowed))
    if sideways[worst] > allowed[worst]:
        angle = np.degrees(np.arctan2(sideways[worst], along[worst]))
        raise DataError(
            f"{folder} contains a tilted scan: its slices are shifted sideways by {sideways[worst]:.1f} mm over "
            f"{along[worst]:.1f} mm ({angle:.1f} degrees; gantry tilt); resample it to a rectangular grid first"
        )


def _check_distances(
    slices: list[SliceHeader], depths: NDArray[np.float64], folder: Path, problems: tuple[str, ...]
) -> None:
    """Reject slices that deviate from even spacing, which is fitted to all positions.

    Single distances are less reliable: with positions rounded to 0.1 mm, a spacing of 0.625 mm becomes 0.6 and 0.7
    mm.
    """
    numbers = np.arange(len(depths))
    distance, start = np.polyfit(numbers, depths, 1)
    if np.abs(depths - (start + distance * numbers)).max() <= _MAX_DEVIATION * distance:
        return
    distances = np.diff(depths)
    usual = float(np.sort(distances)[(len(distances) - 1) // 2])  # the lower median, a distance that occurs
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
            f"{folder} contains unevenly spaced slices: {place}; resample them to even spacing first{unread}"
        )
    raise DataError(
        f"{folder} seems to lack {_count(int(missing[gap]))}: {place} "
        f"({_count(int(missing.sum()))} missing in total); download the whole series again{unread}"
    )


def _read_stack(slices: list[SliceHeader]) -> NDArray[np.float32]:
    """Read the values (I, J, K), one slice at a time."""
    first = read_values(slices[0].path)
    stack = np.empty((len(slices), *first.shape), dtype=np.float32)  # (K, J, I), the layout of the files
    stack[0] = first
    for values, (before, header) in zip(stack[1:], pairwise(slices), strict=True):
        read = read_values(header.path)
        if read.shape != values.shape:
            raise DataError(
                f"{header.path} has {_times(read.shape)} pixels, but {before.path.name} has "
                f"{_times(values.shape)}; remove files that are not part of the scan"
            )
        values[:] = read
    return stack.transpose(2, 1, 0)


def _affine(first: SliceHeader, step: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the (4, 4) matrix from (column, row, slice, 1) to RAS coordinates in millimetres."""
    between_rows, between_columns = first.spacing_mm
    lps = np.eye(4)
    lps[:3, 0] = np.multiply(first.along_row, between_columns)
    lps[:3, 1] = np.multiply(first.along_column, between_rows)
    lps[:3, 2] = step
    lps[:3, 3] = first.position
    affine: NDArray[np.float64] = LPS_TO_RAS @ lps
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
