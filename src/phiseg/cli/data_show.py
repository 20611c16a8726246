"""`phiseg data show`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from phiseg.cli.parsing import parse


@dataclass
class DataShow:
    """Draw a contact sheet of a dataset: the images in its window, with every annotator's outline.

    Each annotator has a colour; with several foreground classes each annotator has a picture, each class a colour.

    Example: phiseg data show data --out sheet.png --split train --order disagreement
    """

    data: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
    """The prepared dataset."""
    out: Path
    """The picture to write, a .png file."""
    num: int = 24
    """Number of cases."""
    split: Annotated[str | None, tyro.conf.arg(metavar="SPLIT")] = None
    """Show only cases of this split."""
    order: Literal["row", "random", "disagreement"] = "row"
    """Evenly spread in the dataset's order, drawn by the seed, or those whose annotators differ most."""
    seed: int = 0
    """Of the random order."""
    overwrite: bool = False
    """Replace OUT if it exists."""


def run(arguments: Sequence[str], *, prog: str) -> None:
    """Parse and run the command."""
    command = parse(DataShow, arguments, prog=prog)
    from phiseg.core.errors import OutputError
    from phiseg.core.files import atomic_file, check_new_file
    from phiseg.data.store import Dataset
    from phiseg.plotting.contact_sheet import choose_cases, contact_sheet
    from phiseg.plotting.primitives import to_png

    if command.out.suffix.lower() != ".png":
        raise OutputError(f"{command.out} is no name for a PNG picture; let it end in .png")
    check_new_file(command.out, overwrite=command.overwrite)
    dataset = Dataset.open(command.data)
    rows = choose_cases(dataset, command.num, split=command.split, order=command.order, seed=command.seed)
    picture = to_png(contact_sheet(dataset, rows))
    with atomic_file(command.out) as file:
        file.write(picture)
    print(f"{command.out}: {len(rows)} of {dataset.num_cases} cases")
