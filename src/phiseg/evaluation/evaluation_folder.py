"""The folder of an evaluation, written by `phiseg evaluate` or `phiseg score` and read by `phiseg compare`.

```
EVAL/  cases.csv        one row per case with its patient; an undefined value is an empty field
       summary.json     the means, their 95 % intervals and their provenance
       examples.npz     a few cases with samples and maps, for the figures; examples-2.npz and examples-3.npz have
                        the same volumes in the other planes
       reliability.csv  probabilities of the mean prediction and observed frequencies, by class and bin
       training.jsonl   the metrics of the training run, if there is one
       conventions.csv  scores computed by other conventions, if requested; by case in convention_cases.csv
```
"""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from phiseg.core.errors import ConfigError, DataError
from phiseg.core.files import atomic_file, atomic_folder, write_json, write_text
from phiseg.core.formats import EVALUATION
from phiseg.data.npy import NPZ_ERRORS
from phiseg.evaluation.example_cases import EXAMPLE_ARRAYS, Examples
from phiseg.evaluation.summary import TEXT_COLUMNS, Cases, Summary, defined
from phiseg.metrics.calibration import bin_edges, expected_calibration_error
from phiseg.metrics.score import CaseScore
from phiseg.metrics.score_registry import case_scores, summary_scores

MARKER = "summary.json"
"""The file that identifies the folder of an evaluation."""
REQUIRED_COLUMNS = (
    *("case", "ged", "ged_unbiased", "ged_floor", "s_ncc", "dice"),
    *("ged_cross", "ged_within_samples", "ged_within_annotations", "num_annotators", "s_ncc_constant"),
)
"""The columns of the oldest evaluations. Scores that were added later are undefined in older files."""
EXAMPLE_FILES = ("examples.npz", "examples-2.npz", "examples-3.npz")
"""Files of the examples; the last two exist only for volumes."""
_NUM_NAMED = 5
"""Number of folders in an error message."""
_RELIABILITY_COLUMNS = ("class", "lower", "upper", "mean_prob", "frequency", "pixels")


@dataclass(frozen=True)
class Evaluation:
    """An evaluation of a method, read from the folder `path`."""

    path: Path
    summary: Summary
    cases: Cases
    examples: Examples
    training: list[dict[str, Any]]
    """Records `{"step", "kind", name: number}`; empty if there is no training run."""
    reliability: NDArray[np.float64] | None = None
    """(K-1, B, 3) sum of the reliability tables of the cases, see `metrics.calibration`; None in old
    evaluations."""
    spread: dict[str, float] = field(default_factory=dict)
    """Standard deviation of each mean between trainings, if several were pooled."""
    trainings: tuple[Cases, ...] = ()
    """Scores of each training, if several were pooled; rows are in the order of `cases`."""

    @property
    def num_trainings(self) -> int:
        """Number of trainings that the scores are averaged over."""
        return len(self.trainings) or 1


def write_evaluation(
    out: Path,
    *,
    summary: Summary,
    cases: Cases,
    examples: Examples,
    reliability: NDArray[np.float64] | None = None,
    classes: Sequence[str] = (),
    training: Iterable[Mapping[str, Any]] | None = None,
    more: Mapping[str, str] | None = None,
    overwrite: bool = False,
) -> None:
    """Write the folder of an evaluation atomically.

    `classes` are the names of the foreground classes of `reliability`, `more` further text files by name.

    Raises:
        OutputError: `out` exists and `overwrite` is false, or it cannot be written.
    """
    assert set(REQUIRED_COLUMNS) <= set(cases), f"missing columns: {set(REQUIRED_COLUMNS) - set(cases)}"
    with atomic_folder(out, overwrite=overwrite, marker=MARKER) as folder:
        write_text(folder / "cases.csv", cases_to_csv(cases))
        write_json(folder / "summary.json", summary.model_dump(mode="json"))
        for view, name in zip(examples.views, EXAMPLE_FILES, strict=False):
            arrays = {key: getattr(view, key) for key in EXAMPLE_ARRAYS if getattr(view, key) is not None}
            with atomic_file(folder / name) as file:
                np.savez_compressed(file, **arrays)
        if reliability is not None:
            write_text(folder / "reliability.csv", _reliability_to_csv(reliability, classes))
        if training is not None:
            lines = [json.dumps(dict(record), allow_nan=False) + "\n" for record in training]
            write_text(folder / "training.jsonl", "".join(lines))
        for name, text in (more or {}).items():
            write_text(folder / name, text)


def read_evaluation(path: Path) -> Evaluation:
    """Read and validate the folder of an evaluation.

    Raises:
        DataError: a file is missing, damaged, not from an evaluation, or of another version.
    """
    if not (path / "summary.json").is_file():
        if parts := sorted(path.glob(f"*/{MARKER}"), key=lambda file: (len(file.parent.name), file)):
            names = ", ".join(file.parent.name for file in parts[:_NUM_NAMED])
            raise DataError(
                f"{path} is not an evaluation, but has evaluations ({names}); pass one, such as {parts[-1].parent}"
            )
        raise DataError(
            f"{path} is not an evaluation (no summary.json); run: phiseg evaluate MODEL --data DATA --out {path}"
        )
    summary = _read_summary(path / "summary.json")
    cases = _read_cases(path / "cases.csv", summary.dataset.dims)
    if len(cases["case"]) != summary.num_cases:
        raise _damaged(
            path / "cases.csv", f"it has {len(cases['case'])} rows, but summary.json states {summary.num_cases}"
        )
    for name in (score.name for score in summary_scores(summary.dataset.dims) if isinstance(score, CaseScore)):
        values, mean = defined(cases[name]), summary.scores.get(name)
        if bool(values) != (mean is not None) or (mean is not None and abs(np.mean(values) - mean) > 1e-6):
            raise _damaged(path / "cases.csv", f"the mean of '{name}' differs from summary.json")
    examples = _read_examples(path)
    if strangers := set(examples.cases.tolist()) - set(cases["case"]):
        raise _damaged(path / "examples.npz", f"case '{min(strangers)}' is not in cases.csv")
    reliability = None if summary.ece is None else _read_reliability(path / "reliability.csv", summary.ece)
    training = read_training(path / "training.jsonl") if (path / "training.jsonl").exists() else []
    return Evaluation(path, summary, cases, examples, training, reliability)


def read_training(path: Path) -> list[dict[str, Any]]:
    """Read the metrics of a training run, one JSON object per line; only finite numbers are kept.

    Raises:
        DataError: the file cannot be read, or a line is not a record with `step` and `kind`.
    """
    records = []
    for number, line in enumerate(_read_text(path).splitlines(), start=1):
        try:
            record = json.loads(line)
            step, kind = record["step"], record["kind"]
        except (ValueError, RecursionError, KeyError, TypeError):
            raise _damaged(path, f"line {number} is not a record of a training") from None
        if type(step) is not int or kind not in ("train", "val"):
            raise _damaged(path, f"line {number} has no valid step and kind")
        records.append({"step": step, "kind": kind} | {k: v for k, v in record.items() if _is_number(v)})
    return records


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def cases_to_csv(cases: Mapping[str, Sequence[Any]]) -> str:
    """Write a table of cases as CSV; None is an empty field."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(cases)
    for row in zip(*cases.values(), strict=True):
        writer.writerow(
            [int(value) if isinstance(value, bool | np.bool_) else value for value in row]
        )  # None: empty field
    return text.getvalue()


def _read_summary(path: Path) -> Summary:
    try:
        values = json.loads(_read_text(path))
    except (ValueError, RecursionError):
        raise _damaged(path, "it is not valid JSON") from None
    if not EVALUATION.marks(values):
        raise DataError(f"{path} is not the summary of an evaluation; give a folder written by phiseg evaluate")
    if not EVALUATION.is_current(values):
        raise DataError(
            f"{path} has version {values.get('version')!r}, but only version {EVALUATION.version} is supported; "
            "evaluate again"
        )
    try:
        return Summary.parse(values, where=str(path))
    except ConfigError as error:
        raise DataError(f"{error}; evaluate again") from None


def _read_cases(path: Path, dims: int) -> Cases:
    try:
        header, *rows = csv.reader(io.StringIO(_read_text(path)), strict=True)
        columns: Cases = {name: [row[index] for row in rows] for index, name in enumerate(header)}
        for name in columns.keys() - {*TEXT_COLUMNS}:
            columns[name] = [float(text) if text else None for text in columns[name]]
    except (csv.Error, ValueError, IndexError):
        raise _damaged(path, "it is not a table of numbers") from None
    if missing := [name for name in REQUIRED_COLUMNS if name not in columns]:
        raise _damaged(path, f"column '{missing[0]}' is missing")
    if any(len(row) != len(header) for row in rows) or len(set(columns["case"])) != len(rows):
        raise _damaged(path, "a row is incomplete or a case occurs twice")
    numbers = (value for name in columns.keys() - {*TEXT_COLUMNS} for value in defined(columns[name]))
    if not all(map(isfinite, numbers)):
        raise _damaged(path, "a value is not finite")
    later = [score.name for score in case_scores(dims) if score.name not in REQUIRED_COLUMNS]
    return {name: [None] * len(rows) for name in later} | columns


def _reliability_to_csv(table: NDArray[np.float64], classes: Sequence[str]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_RELIABILITY_COLUMNS)
    bins = list(pairwise(bin_edges(table.shape[1]).tolist()))
    for name, rows in zip(classes, table.tolist(), strict=True):
        for (lower, upper), (pixels, probs, votes) in zip(bins, rows, strict=True):
            means = (probs / pixels, votes / pixels) if pixels else (None, None)
            writer.writerow([name, lower, upper, *means, int(pixels)])
    return text.getvalue()


def _read_reliability(path: Path, ece: float) -> NDArray[np.float64]:
    try:
        header, *rows = csv.reader(io.StringIO(_read_text(path)), strict=True)
        numbers = np.array([[float(text or 0) for text in row[3:]] for row in rows])  # (K-1 B, 3)
        pixels = numbers[:, 2:]
        num_bins = sum(row[0] == rows[0][0] for row in rows)
        table = np.concatenate([pixels, numbers[:, :2] * pixels], axis=1).reshape(-1, num_bins, 3)
    except (csv.Error, ValueError, IndexError):
        raise _damaged(path, "it is not a table of numbers") from None
    with np.errstate(all="ignore"):
        difference = abs(expected_calibration_error(torch.from_numpy(table)) - ece)
    if tuple(header) != _RELIABILITY_COLUMNS or not difference <= 1e-6:
        raise _damaged(path, "the calibration error differs from summary.json")
    return table


def _read_examples(folder: Path) -> Examples:
    """Read the examples of images, or those of volumes in all planes."""
    first, *others = (folder / name for name in EXAMPLE_FILES)
    other_planes = tuple(_read_view(path) for path in others if path.exists())
    return _read_view(first, other_planes)


def _read_view(path: Path, other_planes: tuple[Examples, ...] = ()) -> Examples:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return Examples(
                **{name: arrays[name] for name in arrays.files if name in EXAMPLE_ARRAYS},
                other_planes=other_planes,
            )
    except FileNotFoundError:
        raise _damaged(path, "it is missing") from None
    except NPZ_ERRORS as error:
        raise _damaged(path, " ".join(str(error).split()) or type(error).__name__) from None


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _damaged(path, getattr(error, "strerror", None) or "it is not UTF-8 text") from None


def _damaged(path: Path, reason: str) -> DataError:
    return DataError(f"cannot read {path}: {reason}; evaluate again with --overwrite")
