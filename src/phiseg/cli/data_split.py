"""The command `phiseg data split`."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from phiseg.cli.parsing import optional, parse

if TYPE_CHECKING:
    from phiseg.data.store import Dataset


@dataclass
class DataSplit:
    """Assign the patients of a dataset to new train, val and test splits.

    The command replaces splits.json. All cases of a patient go to the same split. The same seed and fractions give
    the same splits. Retrain existing models, because their training patients may now be in the test split.

    Examples:
        phiseg data split data --seed 1 --fractions 60,20,20
        phiseg data split data --hold-out test --fractions 80,20,0
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
        print("the splits are unchanged")
    else:
        print(
            "phiseg: warning: models trained on the old splits have seen other patients; retrain them",
            file=sys.stderr,
        )


def _counts(dataset: "Dataset") -> str:
    return ", ".join(
        f"{name} {sum(case['patient'] in part for case in dataset.cases)} cases of {len(part)} patients"
        for name, part in ((name, set(members)) for name, members in dataset.splits.items())
    )
