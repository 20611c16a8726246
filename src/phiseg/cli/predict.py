"""The command `phiseg predict`."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from phiseg.cli.early_checks import check_exists, check_needs_no_point, check_points, check_writable
from phiseg.cli.pacs import check_pacs_options, predict_from_pacs
from phiseg.cli.parallel import fabric_for_processes
from phiseg.cli.parsing import Flag, optional, parse
from phiseg.core.bundled import find_model
from phiseg.core.precision import SamplingPrecision
from phiseg.core.shard import Shard
from phiseg.imaging.dicomweb import Credentials, DicomWeb
from phiseg.inference.input_checks import check_inputs
from phiseg.inference.sampling_options import Sampling

if TYPE_CHECKING:
    from phiseg.inference.prediction_folder import PredictionFolder


@dataclass
class Predict:
    """Segment scans: draw plausible segmentations and write them on the grid of each scan.

    INPUT is a NIfTI, MetaImage (.mha, .mhd), NRRD (.nrrd, .nhdr) or picture file (PNG, JPEG, TIFF, BMP), a folder
    with a DICOM series, or a folder of these. Label files of annotators in such a folder are skipped. Spacing,
    window, size and plane of the training data are applied to the scan. The results are on the grid of the scan.
    Run the same command again to resume after an interruption; finished cases are kept.

    OUT receives one folder per case with samples.nii.gz (4-D), mean.nii.gz (probabilities), labels.nii.gz,
    gamma.nii.gz (disagreement between samples), levels.nii.gz (variance of the foreground probability when the
    noise of one latent level is redrawn, fine to coarse), a summary (volume in ml and diameter in mm, or pixels for
    a picture file), a picture, and for a DICOM series segmentations, maps and a measurement report in DICOM. Use
    --format for other files than NIfTI. OUT also receives cases.csv and report.html, with the cases that need
    review at the top, and failed.csv if a case failed.

    With --dicomweb, the input is a series of a PACS, and --store sends the results back. Credentials come from
    PHISEG_DICOMWEB_USER and PHISEG_DICOMWEB_PASSWORD, from PHISEG_DICOMWEB_TOKEN, or from a file. This needs
    `pip install 'phiseg[dicomweb]'`.

    A model trained on crops around lesions needs the position of the lesion: use --at or --points. The command
    warns if the image at this position does not look like the training images, or if the spacing is different.

    Examples:
        phiseg predict lidc-nodule scan.nii.gz --at 120,88,40 --out pred
        phiseg predict runs/phiseg scans --points points.csv --out pred
        phiseg predict runs/phiseg scan.mha --format mha --out pred
        phiseg predict runs/phiseg scans --points points.csv --out pred --shard 2/8
        phiseg predict lidc-nodule --dicomweb https://pacs/dicom-web --series 1.2.840.1 --at 120,88,40 --out pred
    """

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """Model folder, run folder that contains one, name of a bundled model, or hf:owner/name@revision."""
    inputs: Annotated[
        tuple[Path, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="INPUT...", help_behavior_hint="(required without --dicomweb)"),
    ]
    """Scans to segment."""
    out: Path
    """Folder for the results. New cases are added to an existing folder."""
    at: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="X,Y,Z")] = field(default=())
    """Point inside a lesion. Voxel indices from 0 along the axes of the file (DICOM: column, row, and slice in
    order of position), or mm:x,y,z in NIfTI world coordinates (right, anterior, superior), or lps:x,y,z in DICOM
    patient coordinates."""
    points: Annotated[Path | None, optional("CSV", "no table")] = None
    """Table of points for many scans, with the columns case,x,y,z and, unless in voxels, unit (mm or lps)."""
    names: Annotated[Path | None, optional("CSV", "file names, or patient IDs of DICOM series")] = None
    """Table of names for the cases, with the columns scan,case. A scan is a path, a file or folder name, a series
    UID or a patient ID."""
    series: Annotated[str | None, optional("UID", "the only series of the folder")] = None
    """Series to segment in a DICOM folder with several series, or series to fetch with --dicomweb."""
    dicomweb: Annotated[str | None, optional("URL", "no PACS")] = None
    """Address of a DICOMweb service from which the series is fetched."""
    store: Flag = False
    """Send the DICOM results to the DICOMweb service in one request: segmentation, maps and report."""
    credentials: Annotated[Path | None, optional("FILE", "the environment variables")] = None
    """JSON file with `user` and `password`, or with `token`, for the DICOMweb service."""
    ca_file: Annotated[Path | None, optional("PEM", "the certificates of the system")] = None
    """Certificates to verify the DICOMweb service with."""
    timeout: Annotated[float, tyro.conf.arg(metavar="SECONDS")] = 60.0
    """Longest time in seconds without an answer of the DICOMweb service."""
    format: Literal["nii.gz", "mha", "nrrd"] = "nii.gz"
    """Format of the volumes in OUT. All keep the grid and the geometry of the scan."""
    num_samples: int = 32
    """Number of samples per case."""
    seed: int = 0
    """Random seed of the samples."""
    noise_length: Annotated[float | None, optional("MM", "the length stored with the model, or inf")] = None
    """Correlation length of the noise along the slices, in mm. Slices more than twice this distance apart have
    independent noise (except for `--noise-shared`). inf: the same noise in all slices; 0: independent slices. Not
    for 3-D models."""
    noise_shared: Annotated[
        float | None, optional("SHARE", "the share stored with the model, or 0 with --noise-length")
    ] = None
    """Share of the noise variance, from 0 to 1, that is common to all slices. Not for 3-D models."""
    reach: Annotated[float | None, optional("MM", "half the longer side of the crop, at least one slice")] = None
    """Maximum distance in mm from the point over which a lesion is followed."""
    strict_spacing: Flag = False
    """Reject scans whose pixel spacing, slice distance or slice thickness is outside the range of the training
    images. Without this option, pixels are resampled to the nearest spacing in that range, slices are used as they
    are, and a warning is printed."""
    strict_intensity: Flag = False
    """Reject scans, or points in them, whose values do not match those of the training images. Without this option,
    a warning is printed."""
    level_draws: int = 8
    """Number of redraws per latent level to attribute the uncertainty to levels; 0 skips this and is faster."""
    uncalibrated: Flag = False
    """Ignore the temperatures fitted by `phiseg calibrate`."""
    batch_size: int = 4
    """Number of slices encoded at once (for a 3-D model, at least a patch). Affects memory use only, not
    results."""
    chunk_size: int = 16
    """Number of samples decoded at once. For 3-D models, --batch-size times --chunk-size limits the slices decoded
    at once. Affects memory use only, not results."""
    # `--accelerator` is the former name; tyro shows aliases before the name.
    device: Annotated[str, tyro.conf.arg(name="accelerator", aliases=["--device"])] = "auto"
    """Device such as cpu or cuda:1 (cpu or cuda with several processes); auto uses a GPU if available."""
    precision: SamplingPrecision = "float32"
    """Number format of the network. bfloat16 is faster on CPUs with AVX512_BF16 or AMX, and on recent GPUs;
    a few pixels differ."""
    devices: int = 1
    """Number of processes on this machine among which the cases are divided."""
    num_nodes: int = 1
    """Number of machines among which the cases are divided."""
    shard: Annotated[str | None, optional("I/N", "all scans")] = None
    """Predict only part I of N of the scans, such as 2/8, without tables and report. The N jobs are independent and
    may share OUT. Then run the command without this option: it predicts missing cases and writes the report."""


def run(arguments: Sequence[str], *, prog: str) -> None:
    """Parse and run the command."""
    command = parse(Predict, arguments, prog=prog)
    _check(command)
    if command.dicomweb is None or command.series is None:
        written = _predict(command, command.inputs)
    else:
        server = DicomWeb(
            command.dicomweb,
            credentials=Credentials.find(command.credentials),
            ca_file=command.ca_file,
            timeout_s=command.timeout,
        )
        written = predict_from_pacs(
            server, command.series, lambda folder: _predict(command, [folder]), store=command.store
        )
    if written is None:  # the first process reports
        return
    number = len(written.cases) + len(written.failed)
    see = "" if command.shard else ", see failed.csv"
    failures = f" ({len(written.failed)} of {number} cases failed{see})" if written.failed else ""
    stored = f" and stored on {server.host}" if command.store and not written.failed else ""
    if written.report is None:
        print(f"shard {command.shard}: {len(written.cases)} cases written to {written.path}{failures}")
        print("next: after all shards, run the same command without --shard; it writes the tables and the report")
    else:
        print(f"written to {written.path}{stored}{failures}; look at {written.report}")
    if written.failed:
        raise SystemExit(2)


def _check(command: Predict) -> None:
    """Check the arguments before slow imports."""
    check_pacs_options(
        dicomweb=command.dicomweb,
        series=command.series,
        store=command.store,
        has_inputs=bool(command.inputs),
        processes=command.devices * command.num_nodes,
        shard=command.shard,
    )
    if command.dicomweb is None:
        check_inputs(command.inputs, results=command.out)
    check_writable(command.out)
    _sampling(command)
    _shard(command)
    if command.points:
        check_exists(command.points, advice="give a CSV file with the columns case,x,y,z")
    check_points(command.at, command.points)
    if command.names:
        check_exists(command.names, advice="give a CSV file with the columns scan,case")
    find_model(Path(command.model))
    if not (command.at or command.points):
        several = len(command.inputs) > 1 or any(path.is_dir() for path in command.inputs)
        option = "--at x,y,z, or --points CSV for several scans" if several else "--at x,y,z"
        check_needs_no_point(command.model, command.inputs or [Path(command.series or "")], option=option)


def _sampling(command: Predict) -> Sampling:
    return Sampling(
        num_samples=command.num_samples,
        seed=command.seed,
        noise_length_mm=command.noise_length,
        noise_shared=command.noise_shared,
        level_draws=command.level_draws,
        reach_mm=command.reach,
        batch_size=command.batch_size,
        chunk_size=command.chunk_size,
    )


def _shard(command: Predict) -> Shard | None:
    return None if command.shard is None else Shard.parse(command.shard)


def _predict(command: Predict, inputs: Sequence[Path]) -> "PredictionFolder | None":
    """Predict the inputs; None in all processes but the first."""
    from phiseg.compute.devices import keep_freed_memory, usable_device
    from phiseg.inference.case_names import read_case_names
    from phiseg.inference.points import Point, read_points
    from phiseg.inference.prediction_folder import write_predictions
    from phiseg.plotting.prediction_report import case_picture, write_prediction_report

    fabric = fabric_for_processes(command.device, command.devices, command.num_nodes, command="phiseg predict")
    keep_freed_memory()
    device = usable_device(str(fabric.device) if fabric else command.device, command.precision)
    return write_predictions(
        Path(command.model),
        inputs,
        command.out,
        draw=case_picture,
        write_report=write_prediction_report,
        points=[Point.parse(text) for text in command.at],
        points_by_case=read_points(command.points) if command.points else None,
        names=read_case_names(command.names) if command.names else None,
        series=command.series,
        file_format=command.format,
        sampling=_sampling(command),
        calibrated=not command.uncalibrated,
        strict_spacing=command.strict_spacing,
        strict_intensity=command.strict_intensity,
        device=fabric.device if fabric else device,
        precision=command.precision,
        fabric=fabric,
        shard=_shard(command),
        notify=lambda note: print(f"phiseg: {note}", file=sys.stderr),
    )
