"""The command `phiseg prepare legacy`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from phiseg.cli.early_checks import check_exists
from phiseg.cli.fixed_size_options import FixedSizeArguments
from phiseg.cli.parsing import Flag, parse
from phiseg.cli.prepare_common import command_line, print_summary
from phiseg.core.errors import ConfigError


@dataclass
class PrepareLegacy(FixedSizeArguments):
    """Prepare a dataset from crops that others published, most often of LIDC.

    FILE is one of: data_lidc.hdf5 of PHiSeg (its groups become the splits); data_lidc.pickle of Knegt (needs 2 GB
    of memory for all of LIDC; no code in it is executed); a folder of PNG files as published by Kohl
    (train|val|test/images/PATIENT/NAME.png and train|val|test/gt/PATIENT/NAME_l0.png to _l3.png); or the folder
    LIDC-IDRI-slices (PATIENT/nodule-0/images/slice-0.png and PATIENT/nodule-0/mask-0/slice-0.png to mask-3). The
    images of LIDC-IDRI-slices were scaled per slice, so they are not in Hounsfield units.

    The files do not state what they show, and other images are published in the same formats. Use `--lidc` for lung
    nodules, or `--classes`, `--centred-on`, `--modality` and `--plane`.

    Examples:
        phiseg prepare legacy data_lidc.pickle data --lidc
        phiseg prepare legacy LIDC-IDRI-slices data --lidc
        phiseg prepare legacy brains.pickle data --modality MR --classes background brain
    """

    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """File or folder to read. The format is detected."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """Folder of the dataset to write."""
    lidc: Flag = False
    """The images are lung nodules: --classes background nodule --centred-on nodule --modality CT --plane axial."""


def run(arguments: Sequence[str], *, prog: str) -> None:
    """Parse and run the command."""
    command = parse(PrepareLegacy, arguments, prog=prog)
    check_exists(command.file)
    from phiseg.data.prepare.legacy import CLASSES, prepare_legacy

    if command.lidc:
        if command.classes or command.centred_on or command.modality or command.plane:
            raise ConfigError("--lidc sets --classes, --centred-on, --modality and --plane; omit it or them")
        command.classes, command.centred_on, command.modality, command.plane = CLASSES, CLASSES[1], "CT", "axial"
    options = command.fixed_size_options()
    line = command_line(prog, arguments)
    print_summary(prepare_legacy(command.file, command.out, options, overwrite=command.overwrite, command=line))
