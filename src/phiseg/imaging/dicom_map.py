"""DICOM Parametric Map: real numbers on the slices of a series, such as probabilities.

I columns, J rows and K slices. Values are stored in single precision. Only the slices from the first to the last
one with a notable value are stored, so that the stored slices are evenly spaced.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from highdicom import VOILUTTransformation
from highdicom.pm import ParametricMap, RealWorldValueMapping
from highdicom.sr import CodedConcept
from numpy.typing import NDArray
from pydicom.sr.codedict import codes

from phiseg.core.files import atomic_file
from phiseg.imaging.dicom_seg import MAX_FRACTION, occupied_planes
from phiseg.imaging.dicom_source import (
    INTENDED_USE,
    NAME,
    identification,
    long_string,
    plane_positions,
    set_dimension_uid,
    source_images,
    wrap_errors,
)
from phiseg.imaging.series import DicomSeries

LEAST = 0.5 / MAX_FRACTION
"""Smallest notable value: where a fractional DICOM SEG is not rounded to zero."""


@dataclass(frozen=True)
class Quantity:
    """What the values of a map are."""

    label: str
    """Name of at most 16 characters."""
    code: Any
    """Coded meaning."""
    series_number: int
    """Number of the new series."""


PROBABILITY = Quantity("probability", codes.DCM.FractionalProbabilisticSegmentation, 9004)
GAMMA = Quantity("gamma", CodedConcept("gamma", "99PHISEG", "Expected cross entropy of the samples"), 9005)


def write_map(
    path: Path, values: NDArray[np.floating[Any]], series: DicomSeries, *, quantity: Quantity, description: str
) -> None:
    """Write a map on the slices of a series, atomically.

    Args:
        path: output file.
        values: (I, J, K) values, at least 0.
        series: the source series.
        quantity: meaning of the values.
        description: series description shown by viewers, truncated to 64 characters.

    Raises:
        DataError: the headers of the series lack an attribute that a map must refer to.
        OutputError: the file cannot be written.
    """
    assert values.shape == series.volume.grid, values.shape
    stack = values.transpose(2, 1, 0)  # (K, J, I)
    notable = occupied_planes(stack, least=LEAST)
    planes = np.arange(notable[0], notable[-1] + 1)
    frames = np.ascontiguousarray(stack[planes], dtype=np.float32)
    top = max(float(frames.max()), LEAST)
    content = hashlib.sha256(planes.tobytes())
    content.update(frames.data)
    identity = [series.uid, quantity.label, description, content.hexdigest()]
    with wrap_errors(series):
        images = source_images(series)
        image = ParametricMap(
            source_images=images,
            pixel_array=frames,
            plane_positions=plane_positions(images, planes),
            contains_recognizable_visual_features=False,
            real_world_value_mappings=[
                RealWorldValueMapping(
                    lut_label=quantity.label,
                    lut_explanation=long_string(description),
                    unit=codes.UCUM.NoUnits,
                    value_range=(0.0, top),
                    quantity_definition=quantity.code,
                )
            ],
            voi_lut_transformations=[
                VOILUTTransformation(window_center=top / 2, window_width=top, voi_lut_function="LINEAR_EXACT")
            ],
            content_label=NAME.upper(),
            content_description=long_string(INTENDED_USE),
            **identification(identity, series_number=quantity.series_number, description=description),
        )
        set_dimension_uid(image, identity)
        if "Laterality" not in image:
            image.Laterality = None  # the side of a paired body part, which may be unknown but not absent
    with atomic_file(path) as file, wrap_errors(series):
        image.save_as(file, enforce_file_format=True)
