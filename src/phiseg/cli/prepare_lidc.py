"""`phiseg prepare lidc`."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from phiseg.cli.parsing import parse
from phiseg.cli.prepare_common import command_line, tell


@dataclass
class PrepareLidc:
    """Make a dataset of lung nodules with four readers from LIDC-IDRI as the archive ships it.

    SRC is the folder of patients (patient / study / series) with DICOM slices and the readers' XML; XML files may
    lie anywhere in it. Radiographs and their XML are skipped. Every outlined slice of every nodule of 3 mm and more
    gives a crop in Hounsfield units, centred on the nodule; a reader who did not outline it has an empty mask.
    Where the XML has fewer than four reading sessions, the other readers are missing.

    It works through the series with several processes; run the same command again to go on after an interruption. A
    series that cannot be read is told, counted and left out.

    Example: phiseg prepare lidc LIDC-IDRI data/lidc

    Example: phiseg prepare lidc LIDC-IDRI data/lidc-volumes --margin 4
    """

    src: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SRC")]
    """Folder of LIDC-IDRI."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """Folder to make."""
    size: int = 128
    """Height and width of a crop in pixels."""
    slices: Literal["all", "largest"] = "all"
    """Every outlined slice of a nodule, or only the one with the largest area."""
    margin: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Number of slices added beyond the last outline on both sides of each nodule, with empty masks, so that a
    model can learn where nodules end. Slices outside of the scan are omitted."""
    spacing: Annotated[float | None, tyro.conf.arg(metavar="MM")] = None
    """Resample to this pixel spacing in mm; by default the scan's own pixels are kept."""
    readers: Literal["pylidc", "sessions"] = "pylidc"
    """Where a second annotation of a nodule by one reader goes: into a free reader's slot, as in datasets made with
    pylidc, or (`sessions`) to the first one in the reader's own slot."""
    window: tuple[float, float] = (-1000, 400)
    """Hounsfield units between which the network sees differences."""
    seed: int = 0
    """Seed of the split by patient."""
    fractions: str = "60,20,20"
    """Shares of train, val and test, in percent or as parts of 1."""
    workers: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Processes, each with one series in memory; by default one per core."""
    overwrite: bool = False
    """Replace OUT if it is a dataset."""


def run(arguments: Sequence[str], *, prog: str) -> None:
    """Parse and run the command."""
    command = parse(PrepareLidc, arguments, prog=prog)
    from phiseg.data.prepare.lidc import prepare_lidc
    from phiseg.data.prepare.lidc_series import LidcOptions
    from phiseg.data.splits import parse_fractions

    dataset = prepare_lidc(
        command.src,
        command.out,
        options=LidcOptions(
            command.size, command.slices, command.spacing, margin=command.margin, readers=command.readers
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
    tell(dataset)
