"""Predict one or more scans. Each case is a folder that is written atomically, and finished cases are kept.

PRED/  CASE/  samples.nii.gz  mean.nii.gz  labels.nii.gz  gamma.nii.gz  [levels.nii.gz]  picture.png  summary.json
              [*.dcm]  for a DICOM series: see `dicom_results`; volumes may also be .mha or .nrrd
"""

import json
import sys
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from phiseg.compute.ranks import gather
from phiseg.core.errors import ConfigError, DataError, OutputError
from phiseg.core.files import atomic_file, atomic_folder, check_replaceable, write_json
from phiseg.core.formats import PREDICTION
from phiseg.imaging.volume_files import VolumeFormat, write_volume, write_volume_sequence
from phiseg.inference.dicom_results import write_dicom_results
from phiseg.inference.input_checks import check_point
from phiseg.inference.measures import Measures, measure, to_json
from phiseg.inference.prediction import Prediction
from phiseg.inference.prediction_jobs import PredictionJob, point_to_json
from phiseg.inference.prepared_stack import PreparedStack, open_scan
from phiseg.inference.preprocessing import Preprocessing
from phiseg.inference.sampling_options import Sampling
from phiseg.inference.scan_prediction import predict_prepared
from phiseg.inference.scans import PICTURE, SUMMARY, Scan, ScanFile
from phiseg.models import Segmenter

DrawCase = Callable[[Prediction, Measures, str], bytes]
"""Function that draws the picture (PNG) of a case from its prediction, measurements and name."""


def unfinished_predictions(
    jobs: Sequence[PredictionJob], out: Path, model: Segmenter, *, sampling: Sampling, identity: Mapping[str, Any]
) -> list[PredictionJob]:
    """Return the jobs that are not finished, after checking everything that could make them fail later.

    With several processes, call this before any of them starts. A finished case whose scan cannot be read is
    returned too, and will fail.

    Args:
        jobs: all jobs.
        out: folder of the cases.
        model: model for the prediction.
        sampling: sampling options.
        identity: other properties that results depend on, such as the hash of the weights.

    Raises:
        ConfigError: points are missing, or the model does not take points.
        OutputError: `out` cannot be written, or contains a case with other settings or of another scan.
    """
    preprocessing = Preprocessing.of(model)
    sampling = sampling.for_model(model, preprocessing.slice_coupling)
    settings = _settings(sampling, identity)
    for name, summary in read_summaries(out).items():
        stored = summary["made_with"]
        if difference := _difference({key: stored[key] for key in settings if key in stored}, settings):
            raise OutputError(
                f"{out} contains the case {name} with {difference}; all cases in a folder have the same settings: "
                "use the former value, or another --out"
            )
    left: list[PredictionJob] = []
    for job in jobs:
        check_point(
            preprocessing.centred_on,
            has_point=job.point is not None,
            name=job.name,
            option="--at x,y,z (in Python: at=(x, y, z))",
        )
        folder = out / job.name
        if finished := read_summary(folder):
            try:
                difference = _difference(finished["made_with"], _made_with(job, sampling, identity))
            except DataError:
                left.append(job)
                continue
            if difference:
                raise OutputError(f"{folder} was made with {difference}; use another --out, or remove it")
            continue
        if (folder / SUMMARY).exists():
            raise OutputError(f"{folder} exists, but is not a prediction; use another --out")
        check_replaceable(folder, overwrite=True, marker=SUMMARY)
        left.append(job)
    return left


def read_summaries(out: Path) -> dict[str, dict[str, Any]]:
    """Return the summaries of all finished cases in a folder, by name."""
    names = sorted(path.parent.name for path in out.glob(f"*/{SUMMARY}") if not path.parent.name.startswith("."))
    found = {name: read_summary(out / name) for name in names}
    return {name: summary for name, summary in found.items() if summary is not None}


def read_summary(folder: Path) -> dict[str, Any] | None:
    """Return the summary of a finished case, or None if the folder has none.

    Raises:
        OutputError: the file is damaged, or of a newer version.
    """
    path = folder / SUMMARY
    if not path.is_file():
        return None
    try:
        summary: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise OutputError(f"{path} is damaged (not JSON); remove {folder} and predict again") from None
    if not PREDICTION.marks(summary):
        return None
    if not PREDICTION.is_readable(summary):
        found = summary.get("version")
        raise OutputError(f"{path} has version {found}, up to {PREDICTION.version} is known; use another --out")
    return summary


def predict_scans(
    model: Segmenter,
    jobs: Sequence[PredictionJob],
    out: Path,
    *,
    sampling: Sampling,
    identity: Mapping[str, Any],
    draw: DrawCase,
    file_format: VolumeFormat = "nii.gz",
    progress: bool = True,
    strict_spacing: bool = False,
    strict_intensity: bool = False,
) -> dict[str, str]:
    """Predict cases. Cases that cannot be predicted are reported and skipped.

    Args:
        model: model in evaluation mode.
        jobs: jobs from `unfinished_predictions`.
        out: folder of the cases.
        sampling: sampling options.
        identity: other properties that results depend on, such as the hash of the weights.
        draw: function that draws the picture of a case.
        file_format: format of the volumes.
        progress: show progress bars.
        strict_spacing: reject scans whose pixel spacing, slice distance or slice thickness is outside the range of
            the training images.
        strict_intensity: reject scans, or points in them, whose values do not match those of the training images.

    Returns:
        The error of each failed case, by name.

    Raises:
        OutputError: `out` cannot be written.
    """
    preprocessing = Preprocessing.of(model)
    sampling = sampling.for_model(model, preprocessing.slice_coupling)
    failed: dict[str, str] = {}
    opened: tuple[Scan, PreparedStack] | None = None
    read: ScanFile | None = None
    for job in tqdm(jobs, desc="predicting", unit="case", disable=not progress, dynamic_ncols=True):
        try:
            made_with = _made_with(job, sampling, identity)
            if opened is None or read != job.scan:
                opened = None  # frees the memory of the previous scan first
                opened = _open(
                    job.scan, preprocessing, resample=not strict_spacing, strict_intensity=strict_intensity
                )
                read = job.scan
            scan, stack = opened
            point = job.point.in_voxels(scan.volume) if job.point else None
            prediction = predict_prepared(
                model,
                stack,
                point=point,
                sampling=sampling,
                name=job.name,
                progress=progress,
                strict_intensity=strict_intensity,
            )
            _write_case(out / job.name, prediction, scan, made_with, draw, job, file_format)
        except (DataError, ConfigError, OSError, MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not _out_of_memory(error):
                raise
            failed[job.name] = _reason(error)
            tqdm.write(f"phiseg: skipped {job.name}: {failed[job.name]}", file=sys.stderr)
    return failed


def gather_failures(failed: Mapping[str, str]) -> dict[str, str]:
    """Return the failures of all processes, by name."""
    return {name: reason for part in gather(failed) for name, reason in part.items()}


def find_vanished(jobs: Sequence[PredictionJob], out: Path, failed: Container[str]) -> dict[str, str]:
    """Return and report an error for each case whose folder was removed after it was written."""
    reason = "its folder was removed while other cases were predicted; run the command again"
    written = [job.name for job in jobs if job.name not in failed]
    vanished = {name: reason for name in written if read_summary(out / name) is None}
    for name in vanished:
        tqdm.write(f"phiseg: skipped {name}: {reason}", file=sys.stderr)
    return vanished


def _out_of_memory(error: Exception) -> bool:
    """Return whether memory was exhausted, which NumPy, the GPU and torch on a CPU report in different ways."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _reason(error: Exception) -> str:
    if _out_of_memory(error):
        return "not enough memory; use a smaller --chunk-size or --batch-size"
    if isinstance(error, OSError):
        return f"{error}; check the file and its disk"
    return str(error)


def _open(
    file: ScanFile, preprocessing: Preprocessing, *, resample: bool, strict_intensity: bool
) -> tuple[Scan, PreparedStack]:
    """Read and prepare a scan, and report its warnings."""
    scan, stack = open_scan(file, preprocessing, resample=resample, strict_intensity=strict_intensity)
    for warning in scan.warnings:
        _warn(file.name, warning)
    return scan, stack


def _warn(name: str, warning: str) -> None:
    tqdm.write(f"phiseg: {name}: {warning}", file=sys.stderr)


def _made_with(job: PredictionJob, sampling: Sampling, identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything that the result of a case depends on, as read back from JSON."""
    scan = {"input": job.scan.path.name, "content": job.scan.content_hash, "point": point_to_json(job.point)}
    return {**scan, **_settings(sampling, identity)}


def _settings(sampling: Sampling, identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything that the results of all cases depend on, as read back from JSON."""
    settings = {key: value for key, value in asdict(sampling).items() if key not in ("batch_size", "chunk_size")}
    settings |= {
        key: str(value) for key, value in settings.items() if isinstance(value, float) and not isfinite(value)
    }
    restored: dict[str, Any] = json.loads(json.dumps({**settings, **identity}))
    return restored


def _difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Return the first difference between the properties of a finished case and those of now, for errors."""
    default = {"format": "nii.gz", "precision": "float32"}  # older folders do not state them
    before, now = default | dict(before), default | dict(now)
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key):
            return f"another {key} ({before.get(key)}, now {now.get(key)})"
    return None


def _write_case(
    folder: Path,
    prediction: Prediction,
    scan: Scan,
    made_with: Mapping[str, Any],
    draw: DrawCase,
    job: PredictionJob,
    file_format: VolumeFormat,
) -> None:
    measures = measure(prediction)
    warnings = [*prediction.stack.warnings, *filter(None, (prediction.unusual, prediction.truncation_warning))]
    foreground = np.moveaxis(prediction.mean_probs[1:], 0, 3)  # (n, h, w, K-1)
    mean = prediction.on_grid(foreground if foreground.shape[3] > 1 else foreground[..., 0])
    labels = prediction.on_grid(prediction.consensus)
    with atomic_folder(folder, overwrite=True, marker=SUMMARY) as new:
        _write_each(new / f"samples.{file_format}", prediction, prediction.labels)
        write_volume(new / f"mean.{file_format}", mean)
        write_volume(new / f"labels.{file_format}", labels)
        write_volume(new / f"gamma.{file_format}", prediction.on_grid(prediction.gamma))
        if prediction.level_variance is not None:
            _write_each(new / f"levels.{file_format}", prediction, prediction.level_variance)
        if scan.series is not None:
            try:
                write_dicom_results(
                    new, scan.series, prediction, measures, labels=labels, mean=mean, made_with=made_with
                )
            except DataError as error:  # the headers are not sufficient
                warnings.append(f"no DICOM results: {error}")
        with atomic_file(new / PICTURE) as file:
            file.write(draw(prediction, measures, job.name))
        write_json(
            new / SUMMARY,
            {
                **PREDICTION.marker,
                "case": job.name,
                "scan": job.scan.name,
                **to_json(measures),
                "plane": prediction.stack.plane,
                "box": [[part.start, part.stop] for part in prediction.box_in_file],
                "point": prediction.point and prediction.voxel(*prediction.point),
                "has_spacing": prediction.stack.has_spacing,
                "unusual": prediction.unusual is not None,
                "warnings": [*scan.warnings, *warnings],
                "made_with": made_with,
            },
        )
    for warning in warnings:
        _warn(job.name, warning)


def _write_each(path: Path, prediction: Prediction, values: NDArray[Any]) -> None:
    """Write values (number, n, h, w) of the box as a series of volumes on the grid of the scan."""
    write_volume_sequence(path, map(prediction.on_grid, values), number=len(values))
