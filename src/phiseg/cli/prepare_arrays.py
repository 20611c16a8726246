"""`phiseg prepare arrays`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from phiseg.cli.parsing import parse
from phiseg.cli.prepared import command_line, tell


@dataclass
class PrepareArrays:
    """Make a dataset from one .npz file of images and masks.

    The file has `images` [N,H,W] or [N,H,W,C] and `masks` [N,A,H,W] with class indices, and may have `case_ids` [N]
    (the patient), `split` [N] (train, val, test), `valid` [N,A] (0: a reader is missing) and `pixel_spacing_mm`.
    Other arrays with one value a row become columns of cases.csv. It is read row by row, and nothing is unpickled.

    Example: phiseg prepare arrays crops.npz data --window -1000 400 --classes background nodule
    """

    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE.npz")]
    """The arrays."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """Folder to make."""
    window: Annotated[tuple[float, float] | None, tyro.conf.arg(metavar="LOW HIGH")] = None
    """Pixel values that become the darkest and the brightest (lung CT: -1000 400). By default 0 255 for 8 bits, 0 1
    for fractions, and else the range between percentiles 0.5 and 99.5 of the training images, which is printed."""
    zscore: bool = False
    """Give every image mean 0 and standard deviation 1 instead (MR)."""
    classes: Annotated[tuple[str, ...] | None, tyro.conf.arg(metavar="NAME ...")] = None
    """Names of the classes, the background first; by default as many as the masks hold."""
    size: Annotated[int | None, tyro.conf.arg(metavar="PIXELS")] = None
    """Cut or pad the images to this height and width around their middle; by default they stay as they are."""
    resplit: bool = False
    """Leave the file's `split` out of account."""
    fractions: str = "60,20,20"
    """Shares of train, val and test, in percent of the patients, where the file has no `split`."""
    seed: int = 0
    """The same seed gives the same split."""
    name: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Name of the dataset; by default that of the file."""
    overwrite: bool = False
    """Replace OUT if it is a dataset."""


def run(arguments: Sequence[str], *, prog: str) -> None:
    """Parse and run the command."""
    command = parse(PrepareArrays, arguments, prog=prog)
    from phiseg.data.prepare.arrays import prepare_arrays
    from phiseg.data.prepare.stack import StackOptions
    from phiseg.data.splits import parse_fractions

    options = StackOptions(
        window=command.window,
        zscore=command.zscore,
        classes=command.classes,
        size=command.size,
        resplit=command.resplit,
        seed=command.seed,
        fractions=parse_fractions(command.fractions),
        name=command.name,
    )
    line = command_line(prog, arguments)
    tell(prepare_arrays(command.file, command.out, options, overwrite=command.overwrite, command=line))
