"""The command `phiseg data show`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from phiseg.cli.parsing import Flag, optional, parse


@dataclass
class DataShow:
    """Draw images of a dataset with the outlines of all annotators on one contact sheet.

    Images are shown in the intensity window of the dataset. Each annotator has a colour. With several foreground
    classes, each annotator has a separate picture and each class a colour.

    Examples:
        phiseg data show data --out sheet.png
        phiseg data show data --out sheet.png --split train --order disagreement
    """

    data: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
    """Prepared dataset."""
    out: Path
    """PNG file to write."""
    num: int = 24
    """Number of cases."""
    split: Annotated[str | None, optional("SPLIT", "all splits")] = None
    """Split to take the cases from."""
    order: Literal["row", "random", "disagreement"] = "row"
    """Choice of cases: evenly spaced rows, random, or those whose annotators disagree most."""
    seed: int = 0
    """Random seed of `--order random`."""
    overwrite: Flag = False
    """Replace OUT if it exists."""


def run(arguments: Sequence[str], *, prog: str) -> None:
    """Parse and run the command."""
    command = parse(DataShow, arguments, prog=prog)
    from phiseg.core.errors import OutputError
    from phiseg.core.files import atomic_file, check_new_file
    from phiseg.data.store import Dataset

    if command.out.suffix.lower() != ".png":
        raise OutputError(f"{command.out} is not a PNG file name; use a name that ends in .png")
    check_new_file(command.out, overwrite=command.overwrite)
    dataset = Dataset.open(command.data)
    from phiseg.plotting.contact_sheet import choose_cases, contact_sheet
    from phiseg.plotting.primitives import to_png

    rows = choose_cases(dataset, command.num, split=command.split, order=command.order, seed=command.seed)
    picture = to_png(contact_sheet(dataset, rows))
    with atomic_file(command.out) as file:
        file.write(picture)
    print(f"{command.out}: {len(rows)} of {dataset.num_cases} cases")
