"""`phiseg demo`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from phiseg.cli.parsing import parse


@dataclass
class Demo:
    """See it all work: PHiSeg against the Probabilistic U-Net on the embedded lesion phantom.

    Makes the dataset, trains both with the same number of steps, scores both on the test split and writes the table
    and report.html. A second run uses what is there; an interrupted one goes on where it was.

    Example: phiseg demo --out runs/demo
    """

    out: Path = Path("runs/demo")
    """Folder for everything."""
    steps: int = 400
    """Training steps of each model."""
    size: int = 64
    """Height and width of the images."""
    num_cases: int = 500
    """Images of the phantom."""
    num_samples: int = 100
    """Samples per test case."""
    seed: int = 0
    """Of the phantom, the trainings and the samples."""


def run(arguments: Sequence[str], *, prog: str) -> None:
    """Parse and run the command."""
    command = parse(Demo, arguments, prog=prog)
    from phiseg.comparison.table_formats import to_text
    from phiseg.experiment.demo import demo

    table = demo(
        command.out,
        steps=command.steps,
        size=command.size,
        num_cases=command.num_cases,
        num_samples=command.num_samples,
        seed=command.seed,
    )
    print(to_text(table))
    print(f"report: {command.out / 'report.html'}")
