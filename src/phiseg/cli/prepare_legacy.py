"""The command `phiseg prepare legacy`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from phiseg.cli.early_checks import check_exists
from phiseg.cli.fixed_size_options import FixedSizeArguments
from phiseg.cli.parsing import parse
from phiseg.cli.prepare_common import command_line, print_summary


@dataclass
class PrepareLegacy(FixedSizeArguments):
    """Prepare a dataset from LIDC crops published by others.

    FILE is one of: data_lidc.hdf5 of PHiSeg (its groups become the splits); data_lidc.pickle of Knegt (needs 2 GB
    of memory for all of LIDC; no code in it is executed); a folder of PNG files as published by Kohl
    (train|val|test/images/PATIENT/NAME.png and train|val|test/gt/PATIENT/NAME_l0.png to _l3.png); or the folder
    LIDC-IDRI-slices (PATIENT/nodule-0/images/slice-0.png and PATIENT/nodule-0/mask-0/slice-0.png to mask-3). The
    images of LIDC-IDRI-slices were scaled per slice, so they are not in Hounsfield units.

    Examples:
        phiseg prepare legacy data_lidc.pickle data
        phiseg prepare legacy LIDC-IDRI-slices data
    """

    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """File or folder to read. The format is detected."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """Folder of the dataset to write."""


def run(arguments: Sequence[str], *, prog: str) -> None:
    """Parse and run the command."""
    command = parse(PrepareLegacy, arguments, prog=prog)
    check_exists(command.file)
    from phiseg.data.prepare.legacy import CLASSES, prepare_legacy

    options = command.fixed_size_options(classes=CLASSES, centred_on=CLASSES[1], modality="CT", plane="axial")
    line = command_line(prog, arguments)
    print_summary(prepare_legacy(command.file, command.out, options, overwrite=command.overwrite, command=line))
