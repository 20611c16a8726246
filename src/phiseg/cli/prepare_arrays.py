"""The command `phiseg prepare arrays`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from phiseg.cli.early_checks import check_exists
from phiseg.cli.fixed_size_options import FixedSizeArguments
from phiseg.cli.parsing import Flag, parse
from phiseg.cli.prepare_common import command_line, print_summary


@dataclass
class PrepareArrays(FixedSizeArguments):
    """Prepare a dataset from the images and masks in an .npz file.

    The file contains `images` (N, H, W) or (N, H, W, C) and `masks` (N, A, H, W) with class indices, or (N, H, W)
    for one annotator. Optional arrays are `case_ids` (N,) (patient), `split` (N,) (train, val, test), `valid`
    (N, A) (0: annotation missing) and `pixel_spacing_mm`. Other arrays with one value per row become columns of
    cases.csv. The file is read row by row, and nothing is unpickled.

    With `case_ids`, `nodule` (N,) and `slice` (N,), cases are named PATIENT-nodule-N-slice-M.

    With `--volumes`, each case is a volume. The file contains `image_000` (D, H, W), `masks_000` (A, D, H, W) and
    so on, or slices with `slice` (N,). It also contains `pixel_spacing_mm` and `slice_spacing_mm`.

    Examples:
        phiseg prepare arrays crops.npz data --window -1000 400 --centred-on nodule
        phiseg prepare arrays uint8.npz data --rescale 5.490196 -1000 --window -1000 400
        phiseg prepare arrays volumes.npz data --volumes --window -1000 400
    """

    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE.npz")]
    """File with the arrays."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """Folder of the dataset to write."""
    volumes: Flag = False
    """Write a dataset of volumes, for 3-D models."""


def run(arguments: Sequence[str], *, prog: str) -> None:
    """Parse and run the command."""
    command = parse(PrepareArrays, arguments, prog=prog)
    check_exists(command.file)
    from phiseg.data.prepare.arrays import prepare_arrays

    options = command.fixed_size_options()
    line = command_line(prog, arguments)
    dataset = prepare_arrays(
        command.file,
        command.out,
        options,
        volumes=command.volumes,
        overwrite=command.overwrite,
        command=line,
    )
    print_summary(dataset)
