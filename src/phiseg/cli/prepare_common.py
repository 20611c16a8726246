"""Output shared by all `phiseg prepare` commands."""

import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phiseg.data.store import Dataset


def command_line(prog: str, arguments: Sequence[str]) -> str:
    """Return the command as it was typed, to be stored in the dataset."""
    return shlex.join([*prog.split(), *arguments])


def print_counts(dataset: "Dataset", *, num_used: int) -> None:
    """Print the names of the annotators and how many cases of the source were skipped.

    Args:
        dataset: dataset whose source has `num_cases`.
        num_used: number of cases of the source that are in the dataset.
    """
    total = dataset.info.source["num_cases"]
    assert isinstance(total, int)
    if num_used < total:
        print(f"phiseg: {total - num_used} of {total} cases skipped, for the reasons above", file=sys.stderr)
    print(f"annotators: {', '.join(dataset.annotator_names)}")


def print_summary(dataset: "Dataset") -> None:
    """Print the contents of a dataset and the commands to run next."""
    from phiseg.data.prepare.preview import counted

    counts = ", ".join(
        f"{sum(case['patient'] in part for case in dataset.cases)} {name}"
        for name, part in ((name, set(members)) for name, members in dataset.splits.items())
    )
    patients = len({case["patient"] for case in dataset.cases})
    print(
        f"{dataset.path}: {counted(dataset.num_cases, 'case')} of {counted(patients, 'patient')} ({counts}), "
        f"{counted(dataset.info.num_annotators, 'annotator')}, {dataset.describe_size()}"
    )
    for name, purpose in (("train", "training"), ("val", "validation"), ("test", "evaluation")):
        if not any(case["patient"] in set(dataset.splits.get(name, ())) for case in dataset.cases):
            print(
                f"phiseg: warning: split '{name}', needed for {purpose}, has no cases; rename a split in "
                f"splits.json or make new ones: phiseg data split {dataset.path} --fractions 60,20,20",
                file=sys.stderr,
            )
    print(f"look:  phiseg data show {dataset.path} --out sheet.png")
    print(f"check: phiseg data check {dataset.path}")
    recipe = "phiseg" if dataset.info.centred_on else "phiseg-small"  # recipe phiseg rotates by any angle
    recipe = "phiseg3d-small" if dataset.dims == 3 else recipe
    print(f"next:  phiseg train {recipe} --data {dataset.path} --out runs/{recipe}")
