"""DICOM slices in a folder: their series, positions and pixel values.

Headers are read without pixels, so that folders with thousands of slices are read quickly and with little memory.
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
    """Geometry of one image of a CT, MR or PET series, in millimetres in the LPS space of DICOM."""

    path: Path
    sop_uid: str
    position: tuple[float, float, float]
    """Position of the centre of the first pixel."""
    along_row: tuple[float, float, float]
    """Direction of increasing column index."""
    along_column: tuple[float, float, float]
    """Direction of increasing row index."""
    spacing_mm: tuple[float, float]
    """Distance between rows and between columns."""
    thickness_mm: float | None
    instance: int

    @property
    def depth_mm(self) -> float:
        """Position along the normal of the slice; the z coordinate of an axial slice."""
        return float(np.dot(np.cross(self.along_row, self.along_column), self.position))

    @property
    def is_axial(self) -> bool:
        """Whether the slice is perpendicular to the long axis of the patient."""
        return bool(abs(abs(np.cross(self.along_row, self.along_column)[2]) - 1) < 1e-3)


@dataclass(frozen=True)
class Series:
    """The images of one series in a folder."""

    uid: str
    patient: str
    modality: str
    slices: tuple[SliceHeader, ...]
    """Slices in order of ascending depth; empty for a modality without positions (a radiograph)."""


@dataclass(frozen=True)
class DicomFolder:
    """Content of a folder of DICOM files."""

    series: tuple[Series, ...]
    problems: tuple[str, ...]
    """One line for each file that could not be read."""


def read_folder(files: list[Path]) -> DicomFolder:
    """Read the headers of the files of one folder and group them into series.

    File names are arbitrary; files without a DICOM suffix that are not DICOM are skipped. Unreadable files and
    slices without a position are returned as problems. If two files have the same SOP instance UID, the first one
    is used.
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
    """Read one image (H, W) with rescale slope and intercept applied (Hounsfield units for CT).

    Raises:
        DataError: the file has no pixel data, or it cannot be decoded.
    """
    with _reading(path):
        data = pydicom.dcmread(path)
        if "PixelData" not in data:
            raise DataError(f"{path} has no pixel data; download the file again")
        pixels = data.pixel_array
        if pixels.ndim != 2:
            raise DataError(
                f"{path} contains several frames or colours, not one grey image; convert it to single slices"
            )
        slope, intercept = _rescale(path, data, "RescaleSlope", 1), _rescale(path, data, "RescaleIntercept", 0)
        values: NDArray[np.float64] = pixels * slope + intercept
    if not np.isfinite(values).all():
        raise DataError(
            f"{path} has non-finite values with rescale slope {slope} and intercept {intercept}; correct its header"
        )
    return values


def _rescale(path: Path, data: Any, name: str, default: float) -> float:
    """Return a rescale parameter, or the default if it is absent or empty; it may not be empty in a CT."""
    value = data.get(name, default)
    if value is None and data.get("Modality") == "CT":
        raise DataError(f"{path} has an empty {name}, so its Hounsfield units are unknown; correct its header")
    return default if value is None else float(value)


def _slice_header(path: Path, data: Any) -> SliceHeader:
    position = _numbers(data.ImagePositionPatient, 3)
    directions = _numbers(data.ImageOrientationPatient, 6)
    spacing = _numbers(data.PixelSpacing, 2)
    along_row, along_column = directions[:3], directions[3:]
    if not np.allclose(
        np.array([along_row, along_column]) @ np.transpose([along_row, along_column]), np.eye(2), atol=1e-3
    ):
        raise DataError(
            f"{path} has an invalid orientation {directions}: its directions are not perpendicular unit vectors"
        )
    if min(spacing) <= 0:
        raise DataError(f"{path} has an invalid pixel spacing {spacing}: it must be positive")
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
        raise ValueError(f"expected {count} finite numbers, found {list(values)}")
    return numbers


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Convert any exception of pydicom into a DataError with the name of the file.

    Warnings are suppressed: they concern values that violate the standard but are common in files from scanners.
    """
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    except DataError:
        raise
    except pydicom.errors.InvalidDicomError:
        raise DataError(f"{path} is not a DICOM file") from None
    except Exception as error:  # damaged files raise all kinds of exceptions
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{path} cannot be read as DICOM ({reason}); download it again") from error
