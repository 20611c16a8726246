"""Results of an inference request as files and JSON, on the grid of the image.

Shapes: I x J x K voxels of the image, S samples, C classes; n slices of h x w pixels in the box of a prediction.
"""

import json
import secrets
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phiseg.core.errors import ConfigError, DataError
from phiseg.imaging.dicom_seg import write_seg
from phiseg.imaging.itk_files import WRITABLE, write_itk
from phiseg.imaging.nifti_files import write_nifti
from phiseg.imaging.series import DicomSeries
from phiseg.imaging.volume import Volume
from phiseg.inference.measures import measure, to_json
from phiseg.inference.prediction import Prediction
from phiseg.label_server.parameters import LABEL_MAPS, InferParameters

LEVELS = (0.1, 0.5, 0.9)
"""Probabilities of the foreground whose regions `levels` contains."""


@dataclass(frozen=True)
class Outcome:
    """Result of a request."""

    volume: Volume
    """Labels (I, J, K), or probabilities (I, J, K) or (I, J, K, C - 1)."""
    label_names: dict[str, int]
    """Values of the label map by name; the classes of the model for other results."""
    predictions: Sequence[Prediction]
    """One prediction per lesion, or a single one of the whole image."""
    parameters: InferParameters


def outcome_of(predictions: Sequence[Prediction], parameters: InferParameters) -> Outcome:
    """Combine the predictions of lesions in the same image. Where they overlap, the larger value is used."""
    parts = [prediction.on_grid(_values(prediction, parameters)) for prediction in predictions]
    merged = reduce(np.maximum, (part.values for part in parts))
    names = class_numbers(predictions[0].classes)
    if parameters.result == "levels":
        name = next(iter(names)) if len(names) == 1 else "foreground"
        names = {f"{name} {level:.0%}": number for number, level in enumerate(LEVELS, start=1)}
    return Outcome(Volume(merged, parts[0].affine), names, predictions, parameters)


def class_numbers(classes: Sequence[str]) -> dict[str, int]:
    """Return the number of each class, without the background."""
    return {name: number for number, name in enumerate(classes) if number}


def _values(prediction: Prediction, parameters: InferParameters) -> NDArray[Any]:
    """Return the requested result in the box, (n, h, w) or (n, h, w, C - 1)."""
    values: NDArray[Any]
    match parameters.result:
        case "sample":
            values = prediction.labels[parameters.sample - 1]
        case "quantile":
            volumes = np.count_nonzero(prediction.labels, axis=(1, 2, 3))  # (S,)
            order = np.argsort(volumes, kind="stable")
            values = prediction.labels[order[round(parameters.quantile * (len(order) - 1))]]
        case "levels":
            values = np.digitize(1 - prediction.mean_probs[0], LEVELS).astype(np.uint8)
        case "mean":
            foreground = np.moveaxis(prediction.mean_probs[1:], 0, 3)
            values = foreground if foreground.shape[3] > 1 else foreground[..., 0]
        case "gamma":
            values = prediction.gamma
        case "labels":
            values = prediction.consensus
    return values


def describe(outcome: Outcome, *, seconds: float, warnings: Sequence[str]) -> dict[str, Any]:
    """Return the JSON part of an answer.

    Args:
        outcome: result.
        seconds: duration of the computation.
        warnings: warnings about the image.
    """
    parameters = outcome.parameters
    return {
        "label_names": outcome.label_names,
        "centroids": _centroids(outcome) if parameters.result in LABEL_MAPS else {},
        "latencies": {"total": round(seconds, 2)},
        **parameters.model_dump(include={"result", "num_samples", "seed", "sample", "quantile"}),
        "measurements": [_measured(prediction) for prediction in outcome.predictions],
        "warnings": list(warnings),
    }


def _measured(prediction: Prediction) -> dict[str, Any]:
    found = filter(None, (prediction.unusual, prediction.truncation_warning))
    point = prediction.voxel(*prediction.point) if prediction.point else None
    return {"point": point, **to_json(measure(prediction)), "warnings": list(found)}


def _centroids(outcome: Outcome) -> dict[str, list[float]]:
    """Return the number and the mean voxel (i, j, k) of each label that occurs, as OHIF expects them."""
    found = {}
    for name, number in outcome.label_names.items():
        voxels = np.argwhere(outcome.volume.values == number)
        if len(voxels):
            found[name] = [number, *(round(float(place), 2) for place in voxels.mean(0))]
    return found


def image_file(outcome: Outcome) -> bytes:
    """Return the content of the file in the requested format."""
    parameters, volume = outcome.parameters, outcome.volume
    if parameters.result in LABEL_MAPS and parameters.result_dtype:
        volume = Volume(volume.values.astype(parameters.result_dtype), volume.affine)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"result{parameters.result_extension}"
        if parameters.result_extension in WRITABLE:
            write_itk(file, volume, compress=parameters.result_compress)
        else:
            write_nifti(file, volume)
        return file.read_bytes()


def seg_file(outcome: Outcome, series: DicomSeries | None) -> bytes:
    """Return the content of a DICOM SEG file.

    Raises:
        DataError: the image is not a DICOM series, or its headers are not sufficient.
        ConfigError: the result is not a segmentation.
    """
    result, volume = outcome.parameters.result, outcome.volume
    if series is None:
        raise DataError("DICOM SEG needs a DICOM series, and this image is not one; use output=image")
    if result == "gamma":
        raise ConfigError("a gamma map is not a segmentation; use output=image, or another result")
    is_mean = result == "mean"
    values = volume.values[..., None] if is_mean and volume.values.ndim == 3 else volume.values
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.dcm"
        write_seg(
            file,
            values,
            series,
            classes=["background", *outcome.label_names],
            kind="fractional" if is_mean else "binary",
            description=f"PHiSeg {_title(outcome.parameters)} of {outcome.parameters.num_samples} samples",
        )
        return file.read_bytes()


def file_name(outcome: Outcome, suffix: str) -> str:
    """Return the name of a result, such as sample-3.nii.gz."""
    return f"{_title(outcome.parameters)}{suffix}"


def _title(parameters: InferParameters) -> str:
    if parameters.result == "sample":
        return f"sample-{parameters.sample}"
    return f"quantile-{parameters.quantile:g}" if parameters.result == "quantile" else parameters.result


def multipart(description: dict[str, Any], content: bytes, name: str) -> tuple[bytes, str]:
    """Return the body and the content type of an answer with JSON and a file.

    OHIF searches for these content types, spelled exactly so, in the text of the body.

    Args:
        description: JSON part.
        content: content of the file.
        name: name of the file.
    """
    boundary = secrets.token_hex(16)
    parts = [
        ('name="params"', "application/json", json.dumps(description).encode()),
        (f'name="image"; filename="{name}"', "application/octet-stream", content),
    ]
    body = bytearray()
    for disposition, kind, data in parts:
        head = f"--{boundary}\r\nContent-Disposition: form-data; {disposition}\r\nContent-Type: {kind}\r\n\r\n"
        body += head.encode() + data + b"\r\n"
    body += f"--{boundary}--\r\n".encode()
    return bytes(body), f"multipart/form-data; boundary={boundary}"
