"""The command `phiseg prepare phantom`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from phiseg.cli.parsing import Flag, optional, parse
from phiseg.cli.prepare_common import command_line, print_summary


@dataclass
class PreparePhantom:
    """Generate a synthetic dataset whose annotators disagree in a known way.

    `lesion` imitates lung nodules (one class, 4 annotators, 128 x 128 pixels). Annotators disagree about whether
    there is a lesion, whether an attached structure belongs to it, and where its soft border lies. `zones` imitates
    the prostate (2 zones, 6 annotators, 192 x 192 pixels). `lesion3d` has volumes of lung nodules (4 annotators, 16
    to 24 slices of 64 x 64 pixels). The distribution of the annotators is known, so the score of a perfect model
    can be computed.

    Examples:
        phiseg prepare phantom lesion data --size 64 --num-cases 800
        phiseg prepare phantom zones data/zones
        phiseg prepare phantom lesion3d data/volumes
    """

    kind: Annotated[
        Literal["lesion", "zones", "lesion3d"],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="lesion|zones|lesion3d"),
    ]
    """Kind of synthetic images."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """Folder of the dataset to write."""
    size: Annotated[int | None, optional("PIXELS", "128 for lesion, 192 for zones, 64 for lesion3d")] = None
    """Height and width of the images in pixels."""
    num_cases: Annotated[int | None, optional("N", "1000 for lesion, otherwise 400")] = None
    """Number of images or volumes, split 60/20/20 into train, val and test."""
    seed: int = 0
    """Random seed. The same seed gives the same dataset."""
    overwrite: Flag = False
    """Replace OUT if it is a dataset."""


def run(arguments: Sequence[str], *, prog: str) -> None:
    """Parse and run the command."""
    command = parse(PreparePhantom, arguments, prog=prog)
    from phiseg.data.prepare.phantom import prepare_phantom

    dataset = prepare_phantom(
        command.kind,
        command.out,
        seed=command.seed,
        size=command.size,
        num_cases=command.num_cases,
        overwrite=command.overwrite,
        command=command_line(prog, arguments),
    )
    print_summary(dataset)
