"""The tested commands, each with the documented way to resume it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .processes import Command
from .specimens import Specimens


@dataclass(frozen=True)
class Scenario:
    """A command that writes `out` in its working directory."""

    name: str
    words: list[Any]
    go_on: list[Any] = field(default_factory=list)
    """Additional arguments to resume; empty if the same command resumes."""
    may_differ: dict[str, str] = field(default_factory=dict)
    """Patterns of files that also differ between two undisturbed runs, with the reason."""

    def start(self, folder: Path, *, again: bool = False, **options: Any) -> Command:
        """Start or resume the command in a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        words = [*self.words, *(self.go_on if again else [])]
        return Command(words, folder, folder.with_name(f"{folder.name}.log"), **options)


def is_there_already(command: Command) -> bool:
    """Return whether a restarted command reports that its result is complete."""
    return "out already exists" in command.last_line


def scenarios(good: Specimens, *, workers: int = 2) -> list[Scenario]:
    """Return prepare, train, evaluate, experiment and predict, each taking a few seconds."""
    scans = good.nifti  # five volumes with labels: fifteen scans to predict
    experiment = ["--data", good.data, "--out", "out", "--methods", good.recipe, "--regimes", "all", "one"]
    few = ["--num-samples", 2, "--level-draws", 1]
    return [
        Scenario("prepare nifti", ["prepare", "nifti", good.nifti, "out", "--workers", 1]),
        Scenario("prepare lidc", ["prepare", "lidc", good.lidc, "out", "--size", 32, "--workers", workers]),
        Scenario("train", ["train", good.recipe, "--data", good.data, "--out", "out"], go_on=["--resume"]),
        Scenario("evaluate", ["evaluate", good.run, "--data", good.data, "--out", "out", "--num-samples", 8]),
        Scenario(
            "experiment",
            ["experiment", "table1", *experiment, "--steps", 4, "--num-samples", 4, "--workers", workers],
            may_differ={
                "rows/*/log.txt": "output of the rows, with run times",
                "rows/*/lock": "empty lock files",
            },
        ),
        Scenario("predict", ["predict", good.run, scans / "anna", scans / "bert", *few, "--out", "out"]),
    ]
