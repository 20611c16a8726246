"""Prediction of scans into a folder, from their files to the report: the work of `phiseg predict`.

PRED/  CASE/ ...  cases.csv  report.html  [failed.csv]
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch

from phiseg.core.bundled import find_model
from phiseg.core.precision import SamplingPrecision
from phiseg.core.shard import Shard
from phiseg.imaging.volume_files import VolumeFormat
from phiseg.inference.case_folders import (
    DrawCase,
    find_vanished,
    gather_failures,
    predict_scans,
    read_summaries,
    unfinished_predictions,
)
from phiseg.inference.case_names import name_scans
from phiseg.inference.points import Point
from phiseg.inference.prediction_jobs import jobs_of_shard, list_prediction_jobs, share_jobs
from phiseg.inference.preprocessing import Preprocessing, VolumeCheck
from phiseg.inference.sampling_options import Sampling
from phiseg.inference.scans import find_scans
from phiseg.models import Segmenter, load_model
from phiseg.models.model_folder import weights_hash

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class WriteReport(Protocol):
    """Writes the tables and the page of a prediction folder, and returns the path of the page."""

    def __call__(
        self,
        out: Path,
        finished: Sequence[str],
        failed: Mapping[str, str],
        *,
        model: str,
        volume_check: VolumeCheck | None,
    ) -> Path:
        """Write cases.csv, report.html and, if a case failed, failed.csv."""


@dataclass(frozen=True)
class PredictionFolder:
    """A folder of predictions."""

    path: Path
    report: Path | None
    """The page with all cases; None for a shard, which has none."""
    cases: tuple[str, ...]
    """Names of the finished cases of this command, including those that were finished before."""
    failed: dict[str, str]
    """The reason for each case that could not be predicted, by name."""


def write_predictions(
    model: Path,
    inputs: Sequence[Path],
    out: Path,
    *,
    draw: DrawCase,
    write_report: WriteReport,
    points: Sequence[Point] = (),
    points_by_case: Mapping[str, Sequence[Point]] | None = None,
    names: Mapping[str, str] | None = None,
    series: str | None = None,
    file_format: VolumeFormat = "nii.gz",
    sampling: Sampling | None = None,
    calibrated: bool = True,
    strict_spacing: bool = False,
    strict_intensity: bool = False,
    device: torch.device | str = "cpu",
    precision: SamplingPrecision = "float32",
    fabric: "Fabric | None" = None,
    shard: Shard | None = None,
    progress: bool = True,
    notify: Callable[[str], None] = print,
) -> PredictionFolder | None:
    """Predict scans and write the results of each case into a folder; finished cases are kept.

    Args:
        model: a model folder, the run folder around it, or the name of a bundled model.
        inputs: NIfTI, MetaImage, NRRD or picture files, folders with a DICOM series, or folders of any of these.
        out: the folder for the results.
        draw: draws the picture of a case, such as `phiseg.plotting.prediction_report.case_picture`.
        write_report: writes the tables and the page, such as `write_prediction_report` of the same module.
        points: points that are used in every scan.
        points_by_case: points of the scans of that name.
        names: names of the cases by path, file or folder name, series UID or patient ID of the scan.
        series: the UID of the series, for a DICOM folder with several.
        file_format: the format of the volumes.
        sampling: the sampling settings; by default those of `Sampling`.
        calibrated: whether to use the temperatures that `phiseg calibrate` fitted, if there are any.
        strict_spacing: refuse scans whose pixel spacing, slice distance or slice thickness is outside the range of
            the training images instead of resampling their pixels.
        strict_intensity: refuse scans, or points in them, whose values do not match those of the training images.
        device: the device, such as `cpu` or `cuda:1`.
        precision: number format of the network; `usable_device` checks that the device supports it.
        fabric: Lightning Fabric for several processes that share the cases, each on a device of its own. By
            default, this process predicts all cases on `device`.
        shard: predict only this part of the scans, and write no tables and no page. A later call without a shard
            keeps the finished cases of all shards, predicts what is missing and writes the page.
        progress: whether to show progress bars.
        notify: called with each remark, such as files that are skipped.

    Returns:
        The folder; None in all processes but the first.

    Raises:
        ConfigError, DataError, ModelError, OutputError: an argument, an input, the model or `out` is unsuitable. A
            single scan that cannot be predicted is one of `failed` instead.
    """
    sampling = sampling or Sampling()
    scans, notes = find_scans(inputs, results=out, series=series)
    scans = name_scans(scans, names) if names else scans
    jobs = list_prediction_jobs(scans, points, points_by_case or {}, read_summaries(out))
    scans_with_jobs = {job.scan.name for job in jobs}
    jobs = jobs_of_shard(jobs, shard) if shard else jobs
    folder = find_model(model)
    network = load_model(folder, calibrated=calibrated, precision=precision)
    identity = {
        "model": weights_hash(folder),
        "calibration": network.calibration.model_dump(mode="json"),
        "precision": precision,
        "series": series,
        "format": file_format,
    }
    waiting = unfinished_predictions(jobs, out, network, sampling=sampling, identity=identity)
    rank, num_processes = 0, 1
    if fabric is not None:
        fabric.launch()  # waits until all processes have the same list of cases
        device, rank, num_processes = fabric.device, fabric.global_rank, fabric.world_size
    without = sorted({scan.name for scan in scans} - scans_with_jobs)
    if without:
        notes.append(f"skipping scans without a point: {', '.join(without)}")
    if points and len(scans) > 1:
        notes.append(f"each given point is used in all {len(scans)} scans")
    if len(waiting) < len(jobs):
        notes.append(f"{len(jobs) - len(waiting)} of {len(jobs)} cases are already finished")
    for note in notes if rank == 0 else ():
        notify(note)
    failed = predict_scans(
        network.to(device),
        share_jobs(waiting, rank, num_processes),
        out,
        sampling=sampling,
        identity=identity,
        draw=draw,
        file_format=file_format,
        progress=progress and rank == 0,
        strict_spacing=strict_spacing,
        strict_intensity=strict_intensity,
    )
    failed = gather_failures(failed)
    if rank != 0:
        return None
    failed |= find_vanished(jobs, out, failed)
    done = [job.name for job in jobs if job.name not in failed]
    if shard:
        return PredictionFolder(out, None, tuple(done), failed)
    every = [name for name in read_summaries(out) if name not in failed]  # of this command and of earlier ones
    page = write_report(out, every, failed, model=str(model), volume_check=_volume_check(network, sampling))
    return PredictionFolder(out, page, tuple(done), failed)


def _volume_check(network: Segmenter, sampling: Sampling) -> VolumeCheck | None:
    """Return the measured coverage of the intervals; None if it was measured with other noise."""
    preprocessing = Preprocessing.of(network)
    check = preprocessing.volume_check
    if check is None or check.noise != network.calibration.noise:
        return None
    stored = Sampling().for_model(network, preprocessing.slice_coupling)
    used = sampling.for_model(network, preprocessing.slice_coupling)
    same = (used.noise_length_mm, used.noise_shared) == (stored.noise_length_mm, stored.noise_shared)
    return check if same and used.levels == stored.levels else None
