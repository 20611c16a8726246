"""DICOM SEG: a segmentation on the slices of a series, with references to them, so that viewers can overlay it.

I columns, J rows, K slices and S segments. Segment s is class s of the model; class 0, the background, is not a
segment. Classes that do not occur are described as well, without frames; viewers list them as empty segments.
Slices without segments are not stored. A completely empty segmentation stores one slice, because an image without
frames cannot be read.
"""

import hashlib
import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pydicom
from highdicom import AlgorithmIdentificationSequence, PlanePositionSequence
from highdicom.seg import Segmentation, SegmentDescription
from numpy.typing import NDArray
from pydicom.sr.codedict import codes
from pydicom.uid import ExplicitVRLittleEndian, generate_uid

from phiseg.core.errors import DataError
from phiseg.core.files import atomic_file
from phiseg.imaging.series import DicomSeries

Kind = Literal["binary", "fractional"]

_NAME = "PHiSeg"
_VERSION = version("phiseg")
_INTENDED_USE = "Research only. Not a medical device."
_MAX_FRACTION = 255
_SERIES_NUMBERS: dict[Kind, int] = {"binary": 9001, "fractional": 9002}
"""Far from the series numbers of scanners."""
_ABNORMAL = {
    "nodule": codes.SCT.Nodule,
    "lesion": codes.SCT.Lesion,
    "tumor": codes.SCT.Neoplasm,
    "tumour": codes.SCT.Neoplasm,
}
"""Words in class names with an unambiguous SNOMED CT code."""
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


def write_seg(
    path: Path,
    values: NDArray[Any],
    series: DicomSeries,
    *,
    classes: Sequence[str],
    kind: Kind,
    description: str,
) -> None:
    """Write a segmentation of a series, atomically.

    UIDs are derived from the content: two files with the same segmentation differ only in their dates.

    Args:
        path: output file.
        values: binary: (I, J, K) uint8 class indices. Fractional: (I, J, K, S) probabilities of all classes except
            the background, stored in steps of 1/255.
        series: the segmented series. The headers of its files are read again.
        classes: S + 1 names, starting with the background.
        kind: binary for labels, fractional for probabilities.
        description: series description shown by viewers, truncated to 64 characters.

    Raises:
        DataError: the headers of the series lack an attribute that a segmentation must refer to.
        OutputError: the file cannot be written.
    """
    num_segments = len(classes) - 1
    assert num_segments > 0, classes
    grid = series.volume.grid
    assert values.shape == (grid if kind == "binary" else (*grid, num_segments)), (values.shape, grid, kind)

    planes, frames = _occupied(np.moveaxis(values.swapaxes(0, 1), 2, 0), kind)
    assert kind == "fractional" or frames.max() <= num_segments, (frames.max(), classes)
    content = hashlib.sha256(planes.tobytes())
    content.update(frames.data)
    identity = [_VERSION, series.uid, kind, description, *classes, content.hexdigest()]

    with _wrap_errors(series):
        images = _source_images(series)
        segmentation = Segmentation(
            source_images=images,
            pixel_array=frames,
            plane_positions=[
                PlanePositionSequence("PATIENT", images[plane].ImagePositionPatient) for plane in planes
            ],
            segmentation_type=kind.upper(),
            segment_descriptions=[_describe(number, name) for number, name in enumerate(classes) if number],
            max_fractional_value=_MAX_FRACTION,
            omit_empty_frames=True,
            series_instance_uid=_uid("series", identity),
            series_number=_SERIES_NUMBERS[kind],
            series_description=_long_string(description),
            sop_instance_uid=_uid("instance", identity),
            instance_number=1,
            content_label=_NAME.upper(),
            content_description=_long_string(_INTENDED_USE),
            manufacturer=_NAME,
            manufacturer_model_name=_NAME,
            device_serial_number=_VERSION,
            software_versions=_VERSION,
            transfer_syntax_uid=ExplicitVRLittleEndian,
            specific_character_set="ISO_IR 192",  # UTF-8, for any class name
        )
        for item in (*segmentation.DimensionOrganizationSequence, *segmentation.DimensionIndexSequence):
            item.DimensionOrganizationUID = _uid("dimensions", identity)
    with atomic_file(path) as file, _wrap_errors(series):
        segmentation.save_as(file, enforce_file_format=True)


def _occupied(stack: NDArray[Any], kind: Kind) -> tuple[NDArray[np.intp], NDArray[Any]]:
    """Return the slices with a segment, or the first slice if there is none.

    Args:
        stack: (K, J, I) labels, or (K, J, I, S) probabilities.
        kind: binary for labels, fractional for probabilities.

    Returns:
        Indices of the P slices, and their frames: (P, J, I) uint8, or (P, J, I, S) float32 in steps of 1/255.
    """
    least = 1 if kind == "binary" else 0.5 / _MAX_FRACTION  # smaller values are rounded to zero
    planes = np.flatnonzero([(plane >= least).any() for plane in stack])
    if not planes.size:
        planes = np.zeros(1, dtype=np.intp)
    if kind == "binary":
        return planes, np.ascontiguousarray(stack[planes], dtype=np.uint8)
    frames = np.ascontiguousarray(stack[planes], dtype=np.float32)
    assert np.abs(frames - 0.5).max() < 0.501, "probabilities must be in 0..1, up to rounding"
    return planes, np.rint(np.clip(frames, 0, 1) * _MAX_FRACTION) / np.float32(_MAX_FRACTION)


def _source_images(series: DicomSeries) -> list[Any]:
    """Read the headers of the series and add attributes that highdicom requires."""
    images = [pydicom.dcmread(path, stop_before_pixels=True) for path in series.files]
    for path, image in zip(series.files, images, strict=True):
        lacking = [name for name in _REQUIRED if not image.get(name)]
        if lacking:
            raise DataError(f"{path} has no {lacking[0]}, which a DICOM SEG must refer to; use the NIfTI output")
        image.ImageOrientationPatient = images[0].ImageOrientationPatient  # identical for all slices of a volume
    for name in _MAY_BE_EMPTY:
        if name not in images[0]:
            setattr(images[0], name, None)
    distance = round(series.volume.spacing_mm[2], 6)
    images[0].SpacingBetweenSlices = distance  # of the grid: the value of the scanner is often wrong
    images[0].SliceThickness = images[0].get("SliceThickness") or distance
    return images


def _describe(number: int, name: str) -> SegmentDescription:
    words = re.findall(r"[a-z]+", name.lower())
    known = [_ABNORMAL[word.removesuffix("s")] for word in words if word.removesuffix("s") in _ABNORMAL]
    category, what = (
        (codes.SCT.MorphologicallyAbnormalStructure, known[0]) if known else (codes.SCT.Tissue, codes.SCT.Tissue)
    )
    return SegmentDescription(
        segment_number=number,
        segment_label=_long_string(name),
        segmented_property_category=category,
        segmented_property_type=what,
        algorithm_type="AUTOMATIC",
        algorithm_identification=AlgorithmIdentificationSequence(
            name=_NAME, family=codes.DCM.ArtificialIntelligence, version=_VERSION
        ),
    )


def _uid(role: str, identity: list[str]) -> str:
    return str(generate_uid(entropy_srcs=[role, *identity]))


def _long_string(text: str) -> str:
    """Convert a text to a DICOM long string: one line of at most 64 characters without backslashes."""
    return " ".join(text.replace("\\", " ").split())[:64].strip()


@contextmanager
def _wrap_errors(series: DicomSeries) -> Iterator[None]:
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
