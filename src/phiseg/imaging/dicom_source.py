"""What all DICOM results of a series have in common: references to its images, identification and errors.

UIDs are derived from the content: two files with the same content differ only in their dates.
"""

import logging
import warnings
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import numpy as np
import pydicom
from highdicom import PlanePositionSequence
from numpy.typing import NDArray
from pydicom.uid import ExplicitVRLittleEndian, generate_uid

from phiseg.core.errors import DataError
from phiseg.imaging.series import DicomSeries

NAME = "PHiSeg"
VERSION = version("phiseg")
INTENDED_USE = "Research only. Not a medical device."
_last: list[Any] = []
"""Reference to the last series, and its headers: a case has six results of the same series."""
_REQUIRED = ("StudyInstanceUID", "FrameOfReferenceUID", "SOPClassUID")
_MAY_BE_EMPTY = (
    "AccessionNumber",
    "PatientBirthDate",
    "PatientName",
    "PatientSex",
    "StudyDate",
    "StudyID",
    "StudyTime",
)
"""Mandatory attributes that may be empty; some anonymisers remove them."""


def source_images(series: DicomSeries) -> list[Any]:
    """Return the headers of a series, with the attributes that highdicom requires; those of the last are kept.

    Raises:
        DataError: a header lacks an attribute that a result must refer to.
    """
    if not _last or _last[0]() is not series:
        _last[:] = [weakref.ref(series), _source_images(series)]
    images: list[Any] = list(_last[1])
    return images


def _source_images(series: DicomSeries) -> list[Any]:
    images = []
    for path, header in zip(series.files, series.headers, strict=True):
        lacking = [name for name in _REQUIRED if not header.get(name)]
        if lacking:
            raise DataError(f"{path} has no {lacking[0]}, which a DICOM SEG must refer to; use the NIfTI output")
        image = pydicom.Dataset()
        image.update(header)  # a copy: the header itself stays as it was read
        image.ImageOrientationPatient = series.headers[0].ImageOrientationPatient  # identical for all slices
        images.append(image)
    for name in _MAY_BE_EMPTY:
        if name not in images[0]:
            setattr(images[0], name, None)
    distance = round(series.volume.spacing_mm[2], 6)
    images[0].SpacingBetweenSlices = distance  # of the grid: the value of the scanner is often wrong
    images[0].SliceThickness = images[0].get("SliceThickness") or distance
    return images


def plane_positions(images: Sequence[Any], planes: NDArray[np.intp]) -> list[PlanePositionSequence]:
    """Return the positions of some slices of a series."""
    return [PlanePositionSequence("PATIENT", images[plane].ImagePositionPatient) for plane in planes]


def identification(identity: Sequence[str], *, series_number: int, description: str) -> dict[str, Any]:
    """Return the arguments that identify a new instance, its series and its software, for highdicom.

    Args:
        identity: texts that determine the UIDs: everything that the content depends on.
        series_number: number of the new series, far from those of scanners.
        description: series description shown by viewers, truncated to 64 characters.
    """
    return {
        "series_instance_uid": derive_uid("series", identity),
        "series_number": series_number,
        "series_description": long_string(description),
        "sop_instance_uid": derive_uid("instance", identity),
        "instance_number": 1,
        "manufacturer": NAME,
        "manufacturer_model_name": NAME,
        "device_serial_number": VERSION,
        "software_versions": VERSION,
        "transfer_syntax_uid": ExplicitVRLittleEndian,
        "specific_character_set": "ISO_IR 192",  # UTF-8, for any class name
    }


def set_dimension_uid(image: Any, identity: Sequence[str]) -> None:
    """Replace the random UID of the dimensions of a multi-frame image."""
    for item in (*image.DimensionOrganizationSequence, *image.DimensionIndexSequence):
        item.DimensionOrganizationUID = derive_uid("dimensions", identity)


def derive_uid(role: str, identity: Sequence[str]) -> str:
    """Return a UID that depends only on the arguments."""
    return str(generate_uid(entropy_srcs=[role, VERSION, *identity]))


def long_string(text: str) -> str:
    """Convert a text to a DICOM long string: one line of at most 64 characters without backslashes."""
    return " ".join(text.replace("\\", " ").split())[:64].strip()


@contextmanager
def wrap_errors(series: DicomSeries) -> Iterator[None]:
    """Convert any exception of highdicom into a DataError with the name of the series.

    Warnings are suppressed: they concern invalid values written by scanners, or empty segmentations.
    """
    logger = logging.getLogger("highdicom")
    level = logger.level
    try:
        logger.setLevel(logging.ERROR)
        with warnings.catch_warnings(action="ignore"):
            yield
    except (DataError, OSError):
        raise
    except Exception as error:  # damaged headers raise all kinds of exceptions
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(
            f"{series.files[0].parent} cannot be the source of a DICOM SEG ({reason}); use the NIfTI output"
        ) from error
    finally:
        logger.setLevel(level)
