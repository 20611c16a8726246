"""The command `phiseg data split`."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from phiseg.cli.parsing import Flag, optional, parse
from phiseg.core.errors import ConfigError

if TYPE_CHECKING:
    from phiseg.data.store import Dataset


@dataclass
class DataSplit:
    """Assign the patients of a dataset to new train, val and test splits, or write its splits to a file.

    The command replaces splits.json. All cases of a patient go to the same split. The same seed and fractions give
    the same splits. Retrain existing models, because their training patients may now be in the test split.

    A split file lists the patients of each split under a name, so that a split can be published and cited. --write
    writes the current splits to such a file and does not change them. --read replaces them with those from a file.

    Examples:
        phiseg data split data --seed 1 --fractions 60,20,20
        phiseg data split data --hold-out test --fractions 80,20,0
        phiseg data split data --write my-split.json --name my-split --source "drawn with seed 1"
        phiseg data split data --read my-split.json
    """

    data: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
    """Prepared dataset."""
    seed: int = 0
    """Random seed of the splits."""
    fractions: str = "60,20,20"
    """Shares of train, val and test, as percentages or as fractions such as 0.6,0.2,0.2."""
    hold_out: Annotated[str | None, optional("SPLIT", "split all patients")] = None
    """Existing split whose patients become the test split. Only the other patients are split, so the share of test
    in --fractions must be 0, as in 80,20,0."""
    read: Annotated[Path | None, optional("FILE", "draw new splits")] = None
    """Split file whose splits replace those of the dataset."""
    partial: Flag = False
    """Accept a dataset that lacks patients of the split file."""
    write: Annotated[Path | None, optional("FILE", "change the splits of the dataset")] = None
    """Split file to write. The dataset is not changed."""
    name: Annotated[str | None, optional("NAME", "none; required with --write")] = None
    """Name of the split in the file, without spaces."""
    source: Annotated[str, optional("TEXT", "none")] = ""
    """Origin of the split for the file: a citation, an address, or how it was drawn."""
    overwrite: Flag = False
    """Replace the split file if it exists."""


def run(arguments: Sequence[str], *, prog: str) -> None:
    """Parse and run the command."""
    command = parse(DataSplit, arguments, prog=prog)
    from phiseg.data.split_files import apply_split_file, write_split_file
    from phiseg.data.splits import parse_fractions
    from phiseg.data.store import Dataset

    _check_options(command)
    before = Dataset.open(command.data)
    if command.write:
        if command.read or not command.name:
            raise ConfigError("--write needs the name of the split (--name NAME) and cannot be used with --read")
        write_split_file(
            before, command.write, name=command.name, source=command.source, overwrite=command.overwrite
        )
        print(f"{command.write}: {command.name}, {_counts(before)}")
        return
    if command.read:
        after, absent, unassigned = apply_split_file(before, command.read, partial=command.partial)
        for number, what in (
            (len(absent), "of the file are not in the dataset"),
            (len(unassigned), "are in no split"),
        ):
            if number:
                print(f"phiseg: warning: {number} patients {what}", file=sys.stderr)
    else:
        after = before.resplit(
            seed=command.seed, fractions=parse_fractions(command.fractions), hold_out=command.hold_out
        )
    print(f"before: {_counts(before)}")
    print(f"after:  {_counts(after)}")
    if after.splits == before.splits:
        print("the splits are unchanged")
    else:
        print(
            "phiseg: warning: models trained on the old splits have seen other patients; retrain them",
            file=sys.stderr,
        )


def _check_options(command: DataSplit) -> None:
    """Reject options that would have no effect.

    Raises:
        ConfigError: there is such an option.
    """
    drawing = {
        "--seed": command.seed != DataSplit.seed,
        "--fractions": command.fractions != DataSplit.fractions,
        "--hold-out": command.hold_out,
    }
    for option, given in drawing.items():
        if given and (command.read or command.write):
            raise ConfigError(f"{option} draws new splits; omit it with --read and --write")
    for option, given, file in (
        ("--partial", command.partial, command.read),
        ("--name", command.name, command.write),
        ("--source", command.source, command.write),
    ):
        if given and not file:
            raise ConfigError(f"{option} needs {'--read' if option == '--partial' else '--write'} FILE")


def _counts(dataset: "Dataset") -> str:
    return ", ".join(
        f"{name} {sum(case['patient'] in part for case in dataset.cases)} cases of {len(part)} patients"
        for name, part in ((name, set(members)) for name, members in dataset.splits.items())
    )
