"""Score samples from any program: `phiseg.score`."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray

from phiseg.api.commands import read_scores
from phiseg.api.results import Samples, Scores
from phiseg.core.files import AnyPath
from phiseg.evaluation import score_samples
from phiseg.evaluation.sample_files import Source


def score(
    samples: AnyPath | NDArray[Any] | Samples,
    data: AnyPath,
    out: AnyPath,
    *,
    split: str = "test",
    cases: AnyPath | Sequence[str] | None = None,
    num_samples: int | None = None,
    conventions: str | Sequence[str] = (),
    method: str | None = None,
    dice_annotator: int | Literal["all", "majority", "staple"] = "all",
    num_examples: int = 4,
    overwrite: bool = False,
    progress: bool = True,
) -> Scores:
    """Score samples from any program on every case of a split, as `phiseg score` does.

    Args:
        samples: a file or folder (see `phiseg score --help`), what `sample` returned, or an array: labels (cases,
            samples, H, W) or probabilities (cases, samples, classes, H, W).
        data: the prepared dataset.
        out: the folder to write; `compare` reads it.
        split: the split to score.
        cases: the names of the cases in the order of the samples, or a file with them; by default `cases.csv` next
            to the arrays, or the order of the split.
        num_samples: the number of samples per case, the first ones; by default all.
        conventions: scores of other publications and challenges, by name, or `all`, for `out`/conventions.csv.
        method: the name in tables; by default that of the file or folder.
        dice_annotator: the annotator to compute Dice against: a number, `all` (averaged), or the consensus by
            `majority` or `staple`.
        num_examples: the number of cases kept for the figures.
        overwrite: whether to replace an evaluation in `out`.
        progress: whether to show a progress bar.

    Raises:
        ConfigError, DataError, OutputError: an argument, the samples, the data or `out` is unsuitable.
    """
    given: Source
    if isinstance(samples, Samples):
        arrays: dict[str, NDArray[Any]] = {
            "labels": samples.labels,
            "mean_probs": samples.mean_probs,
            "mean_log_probs": samples.mean_log_probs,
        }
        if samples.probs is not None:
            arrays["probs"] = samples.probs
        given = samples.path or arrays
        cases = samples.cases["case"] if cases is None and samples.path is None else cases
    else:
        given = Path(samples) if isinstance(samples, str | PathLike) else samples
    (written,) = score_samples.score(
        given,
        Path(data),
        Path(out),
        split=split,
        cases=Path(cases) if isinstance(cases, str | PathLike) else cases,
        num_samples=[] if num_samples is None else [num_samples],
        conventions=[conventions] if isinstance(conventions, str) else conventions,
        method=method,
        dice_annotator=dice_annotator,
        num_examples=num_examples,
        overwrite=overwrite,
        progress=progress,
    )
    return read_scores(written.path)
