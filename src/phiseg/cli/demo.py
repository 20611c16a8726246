"""The command `phiseg demo`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from phiseg.cli.parsing import parse


@dataclass
class Demo:
    """Run a complete example: train PHiSeg and a Probabilistic U-Net on synthetic lesions and compare them.

    The command makes the dataset, trains both models for the same number of steps, evaluates them on the test
    split, and writes a table and report.html. Run it again to resume after an interruption; finished parts are
    reused.

    Examples:
        phiseg demo
        phiseg demo --out runs/demo --steps 100
    """

    out: Path = Path("runs/demo")
    """Folder for all results."""
    steps: int = 400
    """Training steps per model."""
    size: int = 64
    """Height and width of the images in pixels."""
    num_cases: int = 500
    """Number of synthetic images."""
    num_samples: int = 100
    """Number of samples per test case."""
    seed: int = 0
    """Random seed of the images, the training and the samples."""


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
