"""DICOM SEG: a segmentation on the slices of a series, with references to them, so that viewers can overlay it.

I columns, J rows, K slices and S segments. In labels and probabilities, segment s is class s of the model; class 0,
the background, is not a segment. Classes that do not occur are described as well, without frames; viewers list them
as empty segments. Slices without segments are not stored. A completely empty segmentation stores one slice, because
an image without frames cannot be read.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from highdicom import AlgorithmIdentificationSequence
from highdicom.color import CIELabColor
from highdicom.seg import Segmentation, SegmentDescription
from numpy.typing import NDArray
from pydicom.sr.codedict import codes

from phiseg.core.files import atomic_file
from phiseg.imaging.dicom_source import (
    INTENDED_USE,
    NAME,
    VERSION,
    identification,
    long_string,
    plane_positions,
    set_dimension_uid,
    source_images,
    wrap_errors,
)
from phiseg.imaging.series import DicomSeries

Kind = Literal["binary", "fractional"]
Colour = tuple[int, int, int]
"""Red, green and blue, 0..255."""

LEVELS = (0.1, 0.5, 0.9)
"""Probabilities at which `write_regions` outlines a class."""
CONSENSUS = "consensus"
MAX_FRACTION = 255
_SERIES_NUMBERS: dict[Kind, int] = {"binary": 9001, "fractional": 9002}
_REGIONS_NUMBER = 9003
_ABNORMAL = {
    "nodule": codes.SCT.Nodule,
    "lesion": codes.SCT.Lesion,
    "tumor": codes.SCT.Neoplasm,
    "tumour": codes.SCT.Neoplasm,
}
"""Words in class names with an unambiguous SNOMED CT code."""
_COLOURS: tuple[Colour, ...] = ((213, 94, 0), (0, 114, 178), (0, 158, 115), (204, 121, 167), (230, 159, 0))
"""Colours of the classes, which colour-blind people can distinguish (Okabe and Ito)."""
_SHADES = (0.65, 0.35, -0.35)
"""Mixture of a class colour with white (positive) or black (negative) at each of `LEVELS`."""


@dataclass(frozen=True)
class _Segment:
    """Name of a segment, the class it belongs to and its colour."""

    name: str
    of_class: str
    colour: Colour


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

    Args:
        path: output file.
        values: binary: (I, J, K) uint8 class indices. Fractional: (I, J, K, S) probabilities of all classes except
            the background, stored in steps of 1/255.
        series: the segmented series.
        classes: S + 1 names, starting with the background.
        kind: binary for labels, fractional for probabilities.
        description: series description shown by viewers, truncated to 64 characters.

    Raises:
        DataError: the headers of the series lack an attribute that a segmentation must refer to.
        OutputError: the file cannot be written.
    """
    segments = [_Segment(name, name, _class_colour(number)) for number, name in enumerate(classes) if number]
    assert segments, classes
    grid = series.volume.grid
    assert values.shape == (grid if kind == "binary" else (*grid, len(segments))), (values.shape, grid, kind)

    stack = _to_frames(values)
    planes = occupied_planes(stack, least=1 if kind == "binary" else 0.5 / MAX_FRACTION)  # less is rounded to zero
    frames: NDArray[Any] = np.ascontiguousarray(stack[planes], np.uint8 if kind == "binary" else np.float32)
    if kind == "fractional":
        assert np.abs(frames - 0.5).max() < 0.501, "probabilities must be in 0..1, up to rounding"
        frames = np.rint(np.clip(frames, 0, 1) * MAX_FRACTION) / np.float32(MAX_FRACTION)
    else:
        assert frames.max() <= len(segments), (frames.max(), classes)
    _write(path, frames, planes, series, segments, kind, description, _SERIES_NUMBERS[kind])


def write_regions(
    path: Path,
    probs: NDArray[np.floating[Any]],
    labels: NDArray[np.uint8],
    series: DicomSeries,
    *,
    classes: Sequence[str],
    description: str,
) -> Segmentation:
    """Write binary segments of each class: where its probability reaches each of `LEVELS`, and its consensus.

    The regions of a class contain each other, so segments overlap. Segment numbers: `consensus_segment`.

    Args:
        path: output file.
        probs: (I, J, K, S) probabilities of all classes except the background.
        labels: (I, J, K) class indices of the consensus.
        series: the segmented series.
        classes: S + 1 names, starting with the background.
        description: series description shown by viewers, truncated to 64 characters.

    Returns:
        The written dataset, which a report can refer to.

    Raises:
        DataError: the headers of the series lack an attribute that a segmentation must refer to.
        OutputError: the file cannot be written.
    """
    assert probs.shape == (*series.volume.grid, len(classes) - 1), (probs.shape, classes)
    assert labels.shape == series.volume.grid, labels.shape
    stack, consensus = _to_frames(probs), _to_frames(labels)
    both = zip(stack, consensus, strict=True)
    planes = occupied_planes((np.maximum(p.max(-1), c > 0) for p, c in both), least=LEVELS[0])
    masks, segments = [], []
    for number, name in enumerate(classes[1:], start=1):
        colour = _class_colour(number)
        for level, shade in zip(LEVELS, _SHADES, strict=True):
            masks.append(stack[planes, :, :, number - 1] >= level)
            segments.append(_Segment(f"{name}, at least {100 * level:.0f} %", name, _shaded(colour, shade)))
        masks.append(consensus[planes] == number)
        segments.append(_Segment(f"{name}, {CONSENSUS}", name, colour))
    frames = np.ascontiguousarray(np.stack(masks, axis=-1), dtype=np.uint8)
    return _write(path, frames, planes, series, segments, "binary", description, _REGIONS_NUMBER)


def consensus_segment(number: int) -> int:
    """Return the number of the segment of `write_regions` with the consensus of a class, which counts from 1.

    >>> consensus_segment(1), consensus_segment(2)
    (4, 8)
    """
    return number * (len(LEVELS) + 1)


def occupied_planes(stack: Iterable[NDArray[Any]], *, least: float) -> NDArray[np.intp]:
    """Return the indices of the slices (J, I, ...) that reach a value, or of the first one if none does."""
    planes = np.flatnonzero([(plane >= least).any() for plane in stack])
    return planes if planes.size else np.zeros(1, dtype=np.intp)


def property_codes(name: str) -> tuple[Any, Any]:
    """Return the SNOMED CT codes (category, type) of a class name."""
    words = re.findall(r"[a-z]+", name.lower())
    known = [_ABNORMAL[word.removesuffix("s")] for word in words if word.removesuffix("s") in _ABNORMAL]
    if known:
        return codes.SCT.MorphologicallyAbnormalStructure, known[0]
    return codes.SCT.Tissue, codes.SCT.Tissue


def _write(
    path: Path,
    frames: NDArray[Any],
    planes: NDArray[np.intp],
    series: DicomSeries,
    segments: Sequence[_Segment],
    kind: Kind,
    description: str,
    series_number: int,
) -> Segmentation:
    """Write frames (P, J, I) of labels or (P, J, I, S) of segments at P slices of a series."""
    content = hashlib.sha256(planes.tobytes())
    content.update(frames.data)
    names = [segment.name for segment in segments]
    identity = [series.uid, kind, description, *names, content.hexdigest()]
    with wrap_errors(series):
        images = source_images(series)
        segmentation = Segmentation(
            source_images=images,
            pixel_array=frames,
            plane_positions=plane_positions(images, planes),
            segmentation_type=kind.upper(),
            segment_descriptions=[_describe(*numbered) for numbered in enumerate(segments, start=1)],
            max_fractional_value=MAX_FRACTION,
            omit_empty_frames=True,
            content_label=NAME.upper(),
            content_description=long_string(INTENDED_USE),
            **identification(identity, series_number=series_number, description=description),
        )
        set_dimension_uid(segmentation, identity)
    with atomic_file(path) as file, wrap_errors(series):
        segmentation.save_as(file, enforce_file_format=True)
    return segmentation


def _to_frames(values: NDArray[Any]) -> NDArray[Any]:
    """Return values (I, J, K, ...) as frames (K, J, I, ...), without copying them."""
    return np.moveaxis(values.swapaxes(0, 1), 2, 0)


def _describe(number: int, segment: _Segment) -> SegmentDescription:
    category, what = property_codes(segment.of_class)
    return SegmentDescription(
        segment_number=number,
        segment_label=long_string(segment.name),
        segmented_property_category=category,
        segmented_property_type=what,
        algorithm_type="AUTOMATIC",
        algorithm_identification=AlgorithmIdentificationSequence(
            name=NAME, family=codes.DCM.ArtificialIntelligence, version=VERSION
        ),
        display_color=CIELabColor.from_rgb(*segment.colour),
    )


def _class_colour(number: int) -> Colour:
    """Return the colour of a class, which counts from 1."""
    return _COLOURS[(number - 1) % len(_COLOURS)]


def _shaded(colour: Colour, shade: float) -> Colour:
    """Return a colour mixed with white (shade > 0) or black (shade < 0).

    >>> _shaded((200, 100, 0), 0.5), _shaded((200, 100, 0), -0.5)
    ((228, 178, 128), (100, 50, 0))
    """
    end = 255 if shade > 0 else 0
    red, green, blue = (round(value + abs(shade) * (end - value)) for value in colour)
    return red, green, blue
