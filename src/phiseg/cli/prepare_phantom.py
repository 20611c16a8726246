"""`phiseg prepare phantom`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from phiseg.cli.parsing import parse
from phiseg.cli.prepare_common import command_line, tell


@dataclass
class PreparePhantom:
    """Make a dataset from nothing, by a seed.

    `lesion` mirrors lung nodules (one class, 4 annotators, 128 x 128): whether there is a lesion at all, whether an
    attached structure belongs to it and where its soft border lies are all disputed. `zones` mirrors the prostate
    (2 zones, 6 annotators, 192 x 192). The generator knows how its annotators differ, so the score of a perfect
    sampler can be computed.

    Example: phiseg prepare phantom lesion data --size 64 --num-cases 800
    """

    kind: Annotated[Literal["lesion", "zones"], tyro.conf.Positional, tyro.conf.arg(metavar="lesion|zones")]
    """Which phantom."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """Folder to make."""
    size: Annotated[int | None, tyro.conf.arg(metavar="PIXELS")] = None
    """Height and width of the images; by default that of the dataset it mirrors."""
    num_cases: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Number of images, split 60/20/20 into train, val and test; by default 1,000 of lesion, 400 of zones."""
    seed: int = 0
    """The same seed gives the same dataset."""
    overwrite: bool = False
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
    tell(dataset)
