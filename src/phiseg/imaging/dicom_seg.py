"""DICOM SEG: a segmentation that lies on the slices of a series and refers to them, so that viewers overlay it.

I columns, J rows and K slices, S segments. Segment s is class s of the model; class 0, the background, is none.
Every class is described, also one that occurs nowhere: the standard wants no frame for it, and viewers list it as
an empty segment. Slices without any segment are not stored, except for one in a segmentation that is empty
altogether, because an image without frames cannot be read.
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
"""Far from those that scanners give."""
_ABNORMAL = {
    "nodule": codes.SCT.Nodule,
    "lesion": codes.SCT.Lesion,
    "tumor": codes.SCT.Neoplasm,
    "tumour": codes.SCT.Neoplasm,
}
"""Words in the names of classes whose code is beyond doubt."""
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
"""What every DICOM file has, if only as an empty field; anonymisers drop them all the same."""


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

    Its identifiers are made from what it holds: the same segmentation written again differs in its dates alone.

    Args:
        path: the file.
        values: binary: (I, J, K) uint8, class indices. Fractional: (I, J, K, S), the probability of every class but
            the background; it is stored in steps of 1/255.
        series: what was segmented. Its files are read again, without their pixels.
        classes: S + 1 names; the first is the background's.
        kind: binary for labels, fractional for probabilities.
        description: what viewers list it as; cut to 64 characters.

    Raises:
        DataError: the headers of the series lack what a segmentation must refer to.
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

    with _naming(series):
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
    with atomic_file(path) as file, _naming(series):
        segmentation.save_as(file, enforce_file_format=True)


def _occupied(stack: NDArray[Any], kind: Kind) -> tuple[NDArray[np.intp], NDArray[Any]]:
    """Find the slices with a segment, or the first slice if there is none.

    Args:
        stack: (K, J, I) labels, or (K, J, I, S) probabilities.
        kind: which of the two.

    Returns:
        Their P numbers, and their frames: (P, J, I) uint8, or (P, J, I, S) float32 in whole steps.
    """
    least = 1 if kind == "binary" else 0.5 / _MAX_FRACTION  # what is not rounded to zero
    planes = np.flatnonzero([(plane >= least).any() for plane in stack])
    if not planes.size:
        planes = np.zeros(1, dtype=np.intp)
    if kind == "binary":
        return planes, np.ascontiguousarray(stack[planes], dtype=np.uint8)
    frames = np.ascontiguousarray(stack[planes], dtype=np.float32)
    assert np.abs(frames - 0.5).max() < 0.501, "probabilities lie within 0 and 1, but for rounding"
    return planes, np.rint(np.clip(frames, 0, 1) * _MAX_FRACTION) / np.float32(_MAX_FRACTION)


def _source_images(series: DicomSeries) -> list[Any]:
    """Read the headers of the series, with what highdicom takes for granted filled in."""
    images = [pydicom.dcmread(path, stop_before_pixels=True) for path in series.files]
    for path, image in zip(series.files, images, strict=True):
        lacking = [name for name in _REQUIRED if not image.get(name)]
        if lacking:
            raise DataError(f"{path} has no {lacking[0]}, which a DICOM SEG must refer to; take the NIfTI output")
        image.ImageOrientationPatient = images[0].ImageOrientationPatient  # as one volume it has one, to the digit
    for name in _MAY_BE_EMPTY:
        if name not in images[0]:
            setattr(images[0], name, None)
    distance = round(series.volume.spacing_mm[2], 6)
    images[0].SpacingBetweenSlices = distance  # of the grid: what scanners write here is often something else
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
    """Fit a text into DICOM's long string: one line of 64 characters without a backslash."""
    return " ".join(text.replace("\\", " ").split())[:64].strip()


@contextmanager
def _naming(series: DicomSeries) -> Iterator[None]:
    """Turn whatever a stranger's headers make highdicom raise into one error that names the series.

    Its warnings are about values that the standard forbids and scanners write, or that a segmentation is empty.
    """
    logger = logging.getLogger("highdicom")
    level = logger.level
    try:
        logger.setLevel(logging.ERROR)
        with warnings.catch_warnings(action="ignore"):
            yield
    except (DataError, OSError):
        raise
    except Exception as error:  # highdicom raises almost anything on a damaged header
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(
            f"{series.files[0].parent} cannot be the source of a DICOM SEG ({reason}); take the NIfTI output"
        ) from error
    finally:
        logger.setLevel(level)
