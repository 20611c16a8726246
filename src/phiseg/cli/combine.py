"""`phiseg combine`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from phiseg.cli.parsing import parse


@dataclass
class Combine:
    """Join several trained PHiSegs into one model: each sample comes from one of them, picked at random.

    What one training says about a new image is partly chance; the members' samples together hold that doubt too.
    Train the same recipe on the same data with different seeds, side by side or on several machines.

    Example: phiseg combine runs/seed-0 runs/seed-1 --out models/ensemble
    """

    models: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="MODEL...")]
    """Model folders, or the run folders around them."""
    out: Path
    """The model folder to write."""
    half: bool = False
    """Store the weights in 16 bits: half the size, read as 32 bits again."""
    overwrite: bool = False
    """Replace the model folder that is there."""


def run(arguments: Sequence[str], *, prog: str) -> None:
    """Parse and run the command."""
    command = parse(Combine, arguments, prog=prog)
    from phiseg.training.combining import combine

    model = combine(command.models, command.out, half=command.half, overwrite=command.overwrite)
    number = sum(parameter.numel() for parameter in model.parameters())
    print(f"{command.out}: {len(command.models)} members, {number / 1e6:.2f} M parameters")
    print(f"fit its temperatures: phiseg calibrate {command.out} --data DATA")
