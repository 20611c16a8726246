"""`phiseg prepare legacy`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from phiseg.cli.fixed_size_options import FixedSizeArguments
from phiseg.cli.parsing import parse
from phiseg.cli.prepare_common import command_line, tell


@dataclass
class PrepareLegacy(FixedSizeArguments):
    """Make a dataset from LIDC crops that others made.

    FILE is PHiSeg's data_lidc.hdf5 (its groups become the splits), Knegt's data_lidc.pickle (held in memory, 2 GB
    for all of LIDC; nothing in it is run), a folder of PNGs as Kohl published them
    (train|val|test/images/PATIENT/NAME.png and train|val|test/gt/PATIENT/NAME_l0.png to _l3.png) or the folder
    LIDC-IDRI-slices (PATIENT/nodule-0/images/slice-0.png and PATIENT/nodule-0/mask-0/slice-0.png to mask-3). The
    images of LIDC-IDRI-slices were scaled slice by slice, so they are not in Hounsfield units.

    Example: phiseg prepare legacy data_lidc.pickle data

    Example: phiseg prepare legacy LIDC-IDRI-slices data
    """

    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """The file or the folder; what it is, its content says."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """Folder to make."""


def run(arguments: Sequence[str], *, prog: str) -> None:
    """Parse and run the command."""
    command = parse(PrepareLegacy, arguments, prog=prog)
    from phiseg.data.prepare.legacy import CLASSES, prepare_legacy

    options = command.fixed_size_options(classes=CLASSES, centred_on=CLASSES[1], modality="CT", plane="axial")
    line = command_line(prog, arguments)
    tell(prepare_legacy(command.file, command.out, options, overwrite=command.overwrite, command=line))
