"""DICOM slices as they lie in a folder: which series they belong to, where they are, and their values.

Headers are read without pixels, so that a folder of thousands of slices is described in little time and memory.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
from numpy.typing import NDArray
from pydicom.misc import is_dicom

from phiseg.core.errors import DataError

_HEADER = (
    "ImageOrientationPatient",
    "ImagePositionPatient",
    "InstanceNumber",
    "Modality",
    "PatientID",
    "PixelSpacing",
    "SOPInstanceUID",
    "SeriesInstanceUID",
    "SliceThickness",
)


@dataclass(frozen=True)
class SliceHeader:
    """Where one image of a CT or MR series lies. Positions and directions are millimetres in DICOM's LPS space."""

    path: Path
    sop_uid: str
    position: tuple[float, float, float]
    """Of the first pixel's centre."""
    along_row: tuple[float, float, float]
    """Direction in which the column index grows."""
    along_column: tuple[float, float, float]
    """Direction in which the row index grows."""
    spacing_mm: tuple[float, float]
    """Between rows and between columns."""
    thickness_mm: float | None
    instance: int

    @property
    def depth_mm(self) -> float:
        """Position along the slice's normal; the z coordinate of an axial slice."""
        return float(np.dot(np.cross(self.along_row, self.along_column), self.position))

    @property
    def is_axial(self) -> bool:
        """Whether the slice lies across the patient's long axis."""
        return bool(abs(abs(np.cross(self.along_row, self.along_column)[2]) - 1) < 1e-3)


@dataclass(frozen=True)
class Series:
    """The images of one series that a folder holds."""

    uid: str
    patient: str
    modality: str
    slices: tuple[SliceHeader, ...]
    """Ascending by depth. Of a modality without positions (a radiograph): none."""


@dataclass(frozen=True)
class DicomFolder:
    """What a folder holds."""

    series: tuple[Series, ...]
    problems: tuple[str, ...]
    """One line for every file that could not be read."""


def read_folder(files: list[Path]) -> DicomFolder:
    """Read the headers of files that lie in one folder, and sort them into series.

    Any name will do; a file that is not called .dcm and is none is passed over. One that cannot be read, or a slice
    without a place, is a problem of the answer and stops nothing. Of two files with the same SOP instance UID the
    first is kept.
    """
    found: dict[str, tuple[str, str, dict[str, SliceHeader]]] = {}
    problems = []
    for path in sorted(files):
        try:
            with _reading(path):
                if path.suffix.lower() not in {".dcm", ".ima"} and not is_dicom(path):
                    continue
                data = pydicom.dcmread(path, stop_before_pixels=True, specific_tags=list(_HEADER))
                uid, modality = str(data.SeriesInstanceUID), str(data.get("Modality", ""))
                _, _, slices = found.setdefault(uid, (str(data.get("PatientID", "")), modality, {}))
                if modality in {"CT", "MR", "PT"}:
                    header = _slice_header(path, data)
                    slices.setdefault(header.sop_uid, header)
        except DataError as error:
            problems.append(str(error))
    series = (
        Series(
            uid,
            patient,
            modality,
            tuple(sorted(slices.values(), key=lambda header: (header.depth_mm, header.instance, header.sop_uid))),
        )
        for uid, (patient, modality, slices) in sorted(found.items())
    )
    return DicomFolder(tuple(series), tuple(problems))


def read_values(path: Path) -> NDArray[np.float64]:
    """Read one image (H, W) in the series' unit (Hounsfield units for CT), by rescale slope and intercept.

    Raises:
        DataError: there are no pixels, or they cannot be decoded.
    """
    with _reading(path):
        data = pydicom.dcmread(path)
        if "PixelData" not in data:
            raise DataError(f"{path} has no pixel data; fetch the file again")
        pixels = data.pixel_array
        if pixels.ndim != 2:
            raise DataError(
                f"{path} holds several frames or colours, not one grey image; convert it to single slices"
            )
        slope, intercept = float(data.get("RescaleSlope", 1)), float(data.get("RescaleIntercept", 0))
        values: NDArray[np.float64] = pixels * slope + intercept
    if not np.isfinite(values).all():
        raise DataError(f"{path} has a rescale slope {slope} and intercept {intercept} that give no finite values")
    return values


def _slice_header(path: Path, data: Any) -> SliceHeader:
    position = _numbers(data.ImagePositionPatient, 3)
    directions = _numbers(data.ImageOrientationPatient, 6)
    spacing = _numbers(data.PixelSpacing, 2)
    along_row, along_column = directions[:3], directions[3:]
    if not np.allclose(
        np.array([along_row, along_column]) @ np.transpose([along_row, along_column]), np.eye(2), atol=1e-3
    ):
        raise DataError(f"{path} has an orientation {directions} that is no pair of perpendicular directions")
    if min(spacing) <= 0:
        raise DataError(f"{path} has a pixel spacing {spacing} that is not above zero")
    thickness = float(data.get("SliceThickness") or 0)
    return SliceHeader(
        path=path,
        sop_uid=str(data.SOPInstanceUID),
        position=position,
        along_row=along_row,
        along_column=along_column,
        spacing_mm=spacing,
        thickness_mm=thickness if 0 < thickness < np.inf else None,
        instance=int(data.get("InstanceNumber") or 0),
    )


def _numbers(values: Any, count: int) -> Any:
    numbers = tuple(float(value) for value in values)
    if len(numbers) != count or not np.isfinite(numbers).all():
        raise ValueError(f"{count} finite numbers expected, found {list(values)}")
    return numbers


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn whatever a stranger's file makes pydicom raise into one error that names the file.

    Warnings are not passed on: they are about values that the standard forbids and scanners write all the same.
    """
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    except DataError:
        raise
    except pydicom.errors.InvalidDicomError:
        raise DataError(f"{path} is not a DICOM file") from None
    except Exception as error:  # damaged files raise almost anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{path} cannot be read as DICOM ({reason}); fetch it again") from error
