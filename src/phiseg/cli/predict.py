"""`phiseg predict`."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal

import tyro

from phiseg.cli.parsing import parse


@dataclass
class Predict:
    """Draw plausible segmentations of scans, in their own geometry.

    INPUT is a NIfTI file, a folder with a DICOM series, a PNG, or a folder of any of them. OUT gets a folder for
    each case: samples.nii.gz (4-D, one sample after another), mean.nii.gz (probabilities), labels.nii.gz,
    gamma.nii.gz (where samples disagree), levels.nii.gz (which latent level causes it, fine to coarse), a summary
    (volume in ml, diameter in mm, presence), a picture, and DICOM SEG for a DICOM series; and for all cases of the
    call cases.csv and report.html, with those first that need a review, and failed.csv if any failed. What the
    model was trained on (spacing, window, size, plane) is applied and undone. Finished cases are not done again.

    A model that was trained on crops around lesions has to be shown where one is: --at. It warns where the image
    there does not look like the training images, and where pixels or slices are of another size.

    Example: phiseg predict runs/phiseg scan.nii.gz --at 120,88,40 --out pred
    """

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """A model folder, the run folder around it, or the name of a model that comes with phiseg."""
    inputs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="INPUT...")]
    """What to segment."""
    out: Path
    """Folder for the results; one with other cases can be gone on with."""
    at: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="X,Y,Z")] = field(default=())
    """A place inside a lesion; once for each. Voxels from 0 along the file's axes (DICOM: column, row, slice
    by ascending position), mm:x,y,z in NIfTI's world (right, anterior, superior) or lps:x,y,z in DICOM's."""
    points: Annotated[Path | None, tyro.conf.arg(metavar="CSV")] = None
    """The same for many scans: a table with the columns case,x,y,z and, if not in voxels, unit (mm or lps)."""
    series: Annotated[str | None, tyro.conf.arg(metavar="UID")] = None
    """Which series of a DICOM folder that holds several."""
    num_samples: int = 32
    """Samples per case."""
    seed: int = 0
    """The same seed gives the same samples."""
    noise_length: float | None = None
    """Millimetres along the slices after which a sample's noise has changed (inf: never; 0: every slice by itself).
    By default the length stored with the model, or inf."""
    noise_shared: float | None = None
    """Share of the noise's variance, from 0 to 1, that stays the same along the slices. By default the share stored
    with the model; 0 where --noise-length is given."""
    reach: float | None = None
    """Millimetres that a lesion is followed from its point; by default as far as the crop reaches."""
    strict_spacing: bool = False
    """Refuse scans whose pixel spacing lies outside of the range of the model's training images. By default they
    are resampled to the nearest spacing in that range, with a warning."""
    level_draws: int = 8
    """Redraws of every latent level, for its share of the uncertainty; 0 leaves it out and is faster."""
    uncalibrated: bool = False
    """Do not use the temperatures that `phiseg calibrate` fitted."""
    batch_size: int = 4
    """Slices encoded at once; a matter of memory, not of results."""
    chunk_size: int = 16
    """Samples decoded at once; a matter of memory, not of results."""
    accelerator: Literal["auto", "cpu", "gpu", "cuda", "mps"] = "auto"
    """What to run on; by default a GPU where there is one."""
    devices: int = 1
    """Processes on this machine; they share the cases."""
    num_nodes: int = 1
    """Machines that share the cases."""


def run(arguments: Sequence[str], *, prog: str) -> None:
    """Parse and run the command."""
    command = parse(Predict, arguments, prog=prog)
    from phiseg.inference.batch_prediction import (
        find_vanished,
        gather_failures,
        list_prediction_jobs,
        predict_scans,
        share_jobs,
        unfinished_predictions,
    )
    from phiseg.inference.points import Point, read_points
    from phiseg.inference.preprocessing import Preprocessing
    from phiseg.inference.scans import find_scans
    from phiseg.inference.volumes import Sampling
    from phiseg.models import load_model
    from phiseg.models.pretrained import find_model, weights_hash
    from phiseg.plotting.prediction_report import case_picture, write_prediction_report
    from phiseg.training.recipe import TrainConfig
    from phiseg.training.setup import make_fabric

    sampling = Sampling(
        num_samples=command.num_samples,
        seed=command.seed,
        noise_length_mm=command.noise_length,
        noise_shared=command.noise_shared,
        level_draws=command.level_draws,
        reach_mm=command.reach,
        batch_size=command.batch_size,
        chunk_size=command.chunk_size,
    )
    points = [Point.parse(text) for text in command.at]
    by_case = read_points(command.points) if command.points else {}
    found, notes = find_scans(command.inputs, results=command.out)
    scans = [replace(scan, series_uid=command.series) for scan in found]
    jobs = list_prediction_jobs(scans, points, by_case)
    folder = find_model(Path(command.model))
    model = load_model(folder, calibrated=not command.uncalibrated)
    identity = {
        "model": weights_hash(folder),
        "calibration": model.calibration.model_dump(mode="json"),
        "series": command.series,
    }
    waiting = unfinished_predictions(jobs, command.out, model, sampling=sampling, identity=identity)
    machine = {"accelerator": command.accelerator, "devices": command.devices, "num_nodes": command.num_nodes}
    fabric = make_fabric(TrainConfig.parse(machine, where="phiseg predict"), timeout=timedelta(days=14))
    fabric.launch()  # every process has come to here, with the same list, when the first one goes on
    without = sorted({scan.name for scan in scans} - {job.scan.name for job in jobs})
    if without:
        notes.append(f"scans without a point are left out: {', '.join(without)}")
    if points and len(scans) > 1:
        notes.append(f"the place given with --at is looked at in each of the {len(scans)} scans")
    if len(waiting) < len(jobs):
        notes.append(f"{len(jobs) - len(waiting)} of {len(jobs)} cases were finished before, and are kept")
    for note in notes if fabric.is_global_zero else ():
        print(f"phiseg: {note}", file=sys.stderr)
    failed = predict_scans(
        model.to(fabric.device),
        share_jobs(waiting, fabric.global_rank, fabric.world_size),
        command.out,
        sampling=sampling,
        identity=identity,
        draw=case_picture,
        progress=fabric.is_global_zero,
        strict_spacing=command.strict_spacing,
    )
    failed = gather_failures(failed)
    if fabric.is_global_zero:
        failed |= find_vanished(jobs, command.out, failed)
        done = [job.name for job in jobs if job.name not in failed]
        check = Preprocessing.of(model).volume_check
        page = write_prediction_report(command.out, done, failed, model=command.model, volume_check=check)
        left_out = f" ({len(failed)} of {len(jobs)} cases failed, see failed.csv)" if failed else ""
        print(f"written to {command.out}{left_out}; look at {page}")
        if failed:
            raise SystemExit(2)
