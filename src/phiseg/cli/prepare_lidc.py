"""The command `phiseg prepare lidc`."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from phiseg.cli.early_checks import check_exists
from phiseg.cli.parsing import Flag, optional, parse
from phiseg.cli.prepare_common import command_line, print_summary


@dataclass
class PrepareLidc:
    """Prepare a dataset of lung nodules with four readers from the original files of LIDC-IDRI.

    SRC is the folder of patients (patient / study / series) with DICOM slices and the XML files of the readers,
    which may be anywhere in it. Radiographs and their XML files are skipped.

    Every outlined slice of every nodule of at least 3 mm becomes a crop in Hounsfield units, centred on the nodule.
    A reader who did not outline the nodule has an empty mask. If the XML file has fewer than four reading sessions,
    the remaining annotations are marked as missing.

    Series are processed in parallel. Unreadable series are reported, counted and skipped. Run the same command
    again to resume after an interruption.

    Examples:
        phiseg prepare lidc LIDC-IDRI data/lidc
        phiseg prepare lidc LIDC-IDRI data/lidc-margins --margin 4
        phiseg prepare lidc LIDC-IDRI data/lidc-volumes --volumes --margin 8
    """

    src: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SRC")]
    """Folder of LIDC-IDRI."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """Folder of the dataset to write."""
    size: int = 128
    """Height and width of a crop in pixels."""
    slices: Literal["all", "largest"] = "all"
    """Slices of a nodule to use: all outlined slices, or only the one with the largest area."""
    volumes: Flag = False
    """Write each nodule as a volume, for 3-D models, instead of a crop on each slice. Use it with --margin:
    otherwise volumes end where the outlines end, which is not known for a new scan."""
    margin: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Number of slices added beyond the last outline on both sides of each nodule, with empty masks, so that a
    model can learn where nodules end. Slices outside the scan are omitted."""
    spacing: Annotated[float | None, optional("MM", "keep the spacing of each scan")] = None
    """Pixel spacing in mm to resample to."""
    readers: Literal["pylidc", "sessions"] = "pylidc"
    """Handling of a second annotation of a nodule by the same reader: stored in the slot of a reader who did not
    annotate it, as in datasets made with pylidc, or (`sessions`) merged with the first one."""
    window: Annotated[tuple[float, float], tyro.conf.arg(metavar="LOW HIGH")] = (-1000, 400)
    """Hounsfield units that are mapped to -0.5 and 0.5; values outside are clipped."""
    seed: int = 0
    """Random seed of the split by patient."""
    fractions: str = "60,20,20"
    """Shares of train, val and test, as percentages or as fractions such as 0.6,0.2,0.2."""
    workers: Annotated[int | None, optional("N", "one per CPU core")] = None
    """Number of processes. Each holds one series in memory."""
    overwrite: Flag = False
    """Replace OUT if it is a dataset."""


def run(arguments: Sequence[str], *, prog: str) -> None:
    """Parse and run the command."""
    command = parse(PrepareLidc, arguments, prog=prog)
    check_exists(command.src)
    from phiseg.data.prepare.lidc import prepare_lidc
    from phiseg.data.prepare.lidc_series import LidcOptions
    from phiseg.data.splits import parse_fractions

    dataset = prepare_lidc(
        command.src,
        command.out,
        options=LidcOptions(
            command.size,
            command.slices,
            command.spacing,
            margin=command.margin,
            readers=command.readers,
            volumes=command.volumes,
        ),
        window=command.window,
        seed=command.seed,
        fractions=parse_fractions(command.fractions),
        workers=command.workers if command.workers is not None else os.cpu_count() or 1,
        overwrite=command.overwrite,
        command=command_line(prog, arguments),
    )
    counts = dataset.info.source["counts"]
    assert isinstance(counts, dict)
    print("\n".join(f"{number:6} {what}" for what, number in counts.items()), file=sys.stderr)
    print_summary(dataset)
