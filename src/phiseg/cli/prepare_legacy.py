"""`phiseg prepare legacy`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from phiseg.cli.parsing import parse
from phiseg.cli.prepared import command_line, tell


@dataclass
class PrepareLegacy:
    """Make a dataset from LIDC crops that others made.

    FILE is PHiSeg's data_lidc.hdf5 (its groups become the splits), Knegt's data_lidc.pickle (held in memory, 2 GB
    for all of LIDC; nothing in it is run) or a folder of PNGs as Kohl published them
    (train|val|test/images/PATIENT/NAME.png and train|val|test/gt/PATIENT/NAME_l0.png to _l3.png).

    Example: phiseg prepare legacy data_lidc.pickle data
    """

    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """The file or the folder; what it is, its content says."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """Folder to make."""
    window: Annotated[tuple[float, float] | None, tyro.conf.arg(metavar="LOW HIGH")] = None
    """Pixel values that become the darkest and the brightest; by default 0 255 for 8 bits, 0 1 or -0.5 0.5 for
    fractions, and else the range between percentiles 0.5 and 99.5 of the training images, which is printed."""
    size: Annotated[int | None, tyro.conf.arg(metavar="PIXELS")] = None
    """Cut or pad the images to this height and width around their middle; by default they stay as they are."""
    resplit: bool = False
    """Leave the file's own splits out of account, and split by patient anew."""
    fractions: str = "60,20,20"
    """Shares of train, val and test, in percent of the patients, where the file has no splits or with --resplit."""
    seed: int = 0
    """The same seed gives the same split."""
    name: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Name of the dataset; by default that of the file."""
    overwrite: bool = False
    """Replace OUT if it is a dataset."""


def run(arguments: Sequence[str], *, prog: str) -> None:
    """Parse and run the command."""
    command = parse(PrepareLegacy, arguments, prog=prog)
    from phiseg.data.prepare.legacy import CLASSES, prepare_legacy
    from phiseg.data.prepare.stack import StackOptions
    from phiseg.data.splits import parse_fractions

    options = StackOptions(
        window=command.window,
        classes=CLASSES,
        size=command.size,
        resplit=command.resplit,
        seed=command.seed,
        fractions=parse_fractions(command.fractions),
        name=command.name,
    )
    line = command_line(prog, arguments)
    tell(prepare_legacy(command.file, command.out, options, overwrite=command.overwrite, command=line))
