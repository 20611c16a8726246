"""What the functions of `import phiseg` return.

Objects stand for their folders: pass a `Run`, `Model`, `Dataset` or `Scores` wherever a path is expected.
"""

import html
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from phiseg.api.model import Model, load
from phiseg.core.errors import ConfigError, nearest
from phiseg.core.records import Records
from phiseg.evaluation.evaluation_folder import Evaluation
from phiseg.evaluation.summary import Summary
from phiseg.training.recipe import Recipe, load_recipe
from phiseg.training.tracking import read_metrics


class Run:
    """A finished training. `phiseg.train` returns one; `Run(folder)` opens an earlier one.

    Attributes:
        path: the run folder.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        if not (self.path / "config.yaml").is_file():
            raise ConfigError(f"{self.path} is not a run folder: it has no config.yaml; give one that train wrote")

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"Run('{self.path}': {self.recipe.name}, {self.recipe.train.steps} steps)"

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe as it was trained, with every key."""
        return load_recipe(self.path / "config.yaml")

    @cached_property
    def model(self) -> Model:
        """The best model of the run, on the CPU; use `phiseg.load(run)` for another device."""
        return load(self.path)

    @property
    def history(self) -> Records:
        """Losses by step (`kind` is `train`), and losses and scores of the validations (`kind` is `val`)."""
        return Records(read_metrics(self.path / "metrics.jsonl"))


class Scores:
    """The scores of a model on a split. `phiseg.evaluate` returns them; `phiseg.read_scores` opens earlier ones.

    `scores["ged"]` is the mean of a score.

    Attributes:
        path: the folder of the evaluation.
        summary: the means, their 95 % intervals and the settings.
        cases: one row per case.
        table: one row per score: its mean and the limits of its 95 % interval.
    """

    def __init__(self, evaluation: Evaluation):
        self.path: Path = evaluation.path
        self.summary: Summary = evaluation.summary
        self.cases = Records.from_columns({"case": evaluation.cases["case"], **evaluation.cases})
        limits = {name: self.summary.intervals.get(name, (None, None)) for name in self.summary.scores}
        self.table = Records(
            {"score": name, "mean": mean, "low": limits[name][0], "high": limits[name][1]}
            for name, mean in self.summary.scores.items()
        )

    def __fspath__(self) -> str:
        return str(self.path)

    def __getitem__(self, score: str) -> float | None:
        """Return the mean of a score; None if it is undefined."""
        if score not in self.summary.scores:
            raise ConfigError(f"there is no score '{score}' ({nearest(score, self.summary.scores)})")
        return self.summary.scores[score]

    def __repr__(self) -> str:
        return f"{self._title()}\n{self.table}"

    def _repr_html_(self) -> str:
        return f"<p>{self._title()}</p>{self.table._repr_html_()}"

    def _title(self) -> str:
        own = self.summary
        return f"{own.method} on {own.num_cases} {own.split_title} cases, {own.num_samples} samples each"


class Comparison(Records):
    """The table of `phiseg.compare`: one row per method.

    Attributes:
        path: the folder with the report.
        notes: the lines below the printed table.
    """

    def __init__(self, rows: Records, *, path: Path, notes: tuple[str, ...], text: str):
        super().__init__(rows)
        self.path, self.notes, self._text = path, notes, text

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def report(self) -> Path:
        """The report, one HTML file with the table and all figures."""
        return self.path / "report.html"

    def __str__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self._text)}</pre>"


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples of the cases of a dataset. `phiseg.sample` returns them.

    N cases, S samples, K classes, H x W pixels. For volumes in memory, D x H x W; for volumes in a folder, N counts
    the slices of all cases, one after the other.
    """

    labels: NDArray[np.uint8]
    """(N, S, H, W), the most probable class of every sample."""
    mean_probs: NDArray[np.float32]
    """(N, K, H, W), the mean of the samples' probabilities."""
    mean_log_probs: NDArray[np.float32]
    """(N, K, H, W), the mean of the logarithms of the samples' probabilities."""
    gamma: NDArray[np.float32]
    """(N, H, W), the gamma map: where the samples disagree."""
    cases: Records
    """One row per case, as in the dataset's cases.csv."""
    probs: NDArray[np.float32] | None = None
    """(N, S, K, H, W), the probabilities of every sample, if requested."""
    path: Path | None = None
    """The folder that holds the arrays, if one was given."""

    def __len__(self) -> int:
        return len(self.cases)

    def __repr__(self) -> str:
        size = " x ".join(str(number) for number in self.labels.shape[2:])
        return f"Samples({len(self)} cases, {self.labels.shape[1]} samples each, {size} pixels)"


class Predictions(Records):
    """The scans that `phiseg.predict` segmented: one row per case and class, with the columns of cases.csv.

    Attributes:
        path: the folder with one subfolder per case.
        failed: the reason for each case that could not be predicted, by name.
    """

    def __init__(self, rows: Records, *, path: Path, failed: Mapping[str, str]):
        super().__init__(rows)
        self.path, self.failed = path, dict(failed)

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def report(self) -> Path:
        """The report, one HTML file with a picture of every case."""
        return self.path / "report.html"

    def files(self, case: str) -> dict[str, Path]:
        """Return the files of one case by name, such as `samples.nii.gz`."""
        folder = self.path / case
        if case not in self["case"]:
            raise ConfigError(f"there is no case '{case}' ({nearest(case, self['case'])})")
        return {path.name: path for path in sorted(folder.iterdir())}
