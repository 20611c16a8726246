"""The command `phiseg batch`."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from phiseg.cli.early_checks import check_exists, check_needs_no_point
from phiseg.cli.parsing import Flag, optional, parse
from phiseg.core.bundled import find_model
from phiseg.core.precision import SamplingPrecision
from phiseg.inference.input_checks import find_socket, parse_maps


@dataclass
class PredictBatch:
    """Segment all scans of a folder without interaction, as challenges on grand-challenge.org require.

    INPUT contains images/SOCKET/ with .mha files or any other scans that `phiseg predict` reads. OUTPUT receives
    images/SOCKET/CASE.mha with the grid and geometry of each scan, and volumes.json with the volume and diameter of
    each class in every sample, their median and 90 % interval, warnings, and the scans that failed.

    A model trained on crops around lesions needs points: use --points. The first point of a scan has the name of
    the scan, and the next ones are named SCAN-2, SCAN-3 and so on.

    Examples:
        phiseg batch /input /output --model runs/prostate
        phiseg batch /input /output --model lidc-nodule --points /input/nodule-locations.json
        phiseg batch in out --model runs/prostate --socket t2-mri --maps labels:prostate-segmentation
    """

    input: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="INPUT")]
    """Folder that contains images/SOCKET/."""
    output: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUTPUT")]
    """Folder for the results."""
    model: str
    """Model folder, run folder that contains one, name of a bundled model, or hf:owner/name@revision."""
    socket: Annotated[str | None, optional("SOCKET", "the only folder")] = None
    """Folder in INPUT/images with the scans."""
    maps: Annotated[tuple[str, ...], tyro.conf.arg(metavar="RESULT:SOCKET...")] = (
        "labels:labels",
        "mean:mean",
        "gamma:gamma",
    )
    """Results to write, and the folder in OUTPUT/images for each: labels (most probable classes), mean
    (probabilities), gamma (disagreement between samples) or samples (4-D)."""
    points: Annotated[Path | None, optional("FILE", "no points")] = None
    """Points inside lesions: a JSON file of type "Point" or "Multiple points", used in every scan, or a CSV file as
    for `phiseg predict`."""
    num_samples: int = 32
    """Number of samples per case."""
    seed: int = 0
    """Random seed of the samples."""
    batch_size: int = 4
    """Number of slices encoded at once. Affects memory use only, not results."""
    chunk_size: int = 16
    """Number of samples decoded at once. Affects memory use only, not results."""
    device: str = "auto"
    """Device such as cpu or cuda:1; auto uses a GPU if available."""
    precision: SamplingPrecision = "float32"
    """Number format of the network. bfloat16 is faster on CPUs with AVX512_BF16 or AMX, and on recent GPUs;
    a few pixels differ."""
    overwrite: Flag = False
    """Replace files of the same names from a previous batch."""


def run(arguments: Sequence[str], *, prog: str) -> None:
    """Parse and run the command."""
    command = parse(PredictBatch, arguments, prog=prog)
    check_exists(command.input, advice="give a folder that contains images/SOCKET/*.mha")
    scans, maps = find_socket(command.input, command.socket), parse_maps(command.maps)
    find_model(Path(command.model))
    if command.points:
        check_exists(command.points, advice="give a JSON or CSV file with points")
    else:
        check_needs_no_point(command.model, [scans], option="--points FILE")
    from phiseg.compute.devices import usable_device
    from phiseg.inference.batch_folder import VOLUMES, write_batch
    from phiseg.inference.points import read_point_annotations, read_points
    from phiseg.inference.sampling_options import Sampling

    is_table = command.points is not None and command.points.suffix.lower() == ".csv"
    failed = write_batch(
        Path(command.model),
        scans,
        command.output,
        maps=maps,
        points=read_point_annotations(command.points) if command.points and not is_table else (),
        points_by_case=read_points(command.points) if command.points and is_table else None,
        sampling=Sampling(
            num_samples=command.num_samples,
            seed=command.seed,
            level_draws=0,
            batch_size=command.batch_size,
            chunk_size=command.chunk_size,
        ),
        device=usable_device(command.device, command.precision),
        precision=command.precision,
        overwrite=command.overwrite,
        notify=lambda note: print(f"phiseg: {note}", file=sys.stderr),
    )
    failures = f" ({len(failed)} scans failed, see {VOLUMES})" if failed else ""
    print(f"written to {command.output}{failures}")
    if failed:
        raise SystemExit(2)
