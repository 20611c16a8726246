"""The command `phiseg combine`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from phiseg.cli.parsing import Flag, parse, required
from phiseg.core.bundled import find_model


@dataclass
class Combine:
    """Combine several trained PHiSeg models into one ensemble.

    Each sample of the ensemble comes from a randomly chosen member, so the samples also cover the uncertainty due
    to training. Train the members with the same recipe and data but different seeds.

    Examples:
        phiseg combine runs/seed-0 runs/seed-1 --out models/ensemble
    """

    models: Annotated[tuple[Path, ...], tyro.conf.Positional, required("MODEL...")]
    """Model folders, or the run folders that contain them."""
    out: Path
    """Model folder to write."""
    half: Flag = False
    """Store the weights in 16 bits, which halves the file size. They are loaded as 32 bits."""
    overwrite: Flag = False
    """Replace OUT if it is a model folder."""


def run(arguments: Sequence[str], *, prog: str) -> None:
    """Parse and run the command."""
    command = parse(Combine, arguments, prog=prog)
    for folder in command.models:
        find_model(folder)
    from phiseg.training.combining import combine

    model = combine(command.models, command.out, half=command.half, overwrite=command.overwrite)
    number = sum(parameter.numel() for parameter in model.parameters())
    print(f"{command.out}: {len(command.models)} members, {number / 1e6:.2f} M parameters")
    print(f"next: phiseg calibrate {command.out} --data DATA")
