"""`phiseg data split`."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from phiseg.cli.parsing import parse

if TYPE_CHECKING:
    from phiseg.data.store import Dataset


@dataclass
class DataSplit:
    """Split a dataset's patients anew into train, val and test, and replace its splits.json.

    All cases of a patient go to the same part. The same seed and fractions give the same split. A model that was
    trained before has seen patients who may now be in test: train it again.

    Example: phiseg data split data --seed 1 --fractions 60,20,20
    """

    data: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
    """The prepared dataset."""
    seed: int = 0
    """Of the split."""
    fractions: str = "60,20,20"
    """Of train, val and test: percentages, or shares such as 0.6,0.2,0.2."""
    hold_out: Annotated[str | None, tyro.conf.arg(metavar="SPLIT")] = None
    """Let the patients of this split become test, and split only the others; give test 0 of them, as in 80,20,0."""


def run(arguments: Sequence[str], *, prog: str) -> None:
    """Parse and run the command."""
    command = parse(DataSplit, arguments, prog=prog)
    from phiseg.data.splits import parse_fractions
    from phiseg.data.store import Dataset

    before = Dataset.open(command.data)
    after = before.resplit(
        seed=command.seed, fractions=parse_fractions(command.fractions), hold_out=command.hold_out
    )
    print(f"before: {_counts(before)}")
    print(f"after:  {_counts(after)}")
    if after.splits == before.splits:
        print("the split is the same as before")
    else:
        print(
            "phiseg: warning: models trained on the old split have seen other patients; train them again",
            file=sys.stderr,
        )


def _counts(dataset: "Dataset") -> str:
    return ", ".join(
        f"{name} {sum(case['patient'] in part for case in dataset.cases)} cases of {len(part)} patients"
        for name, part in ((name, set(members)) for name, members in dataset.splits.items())
    )
