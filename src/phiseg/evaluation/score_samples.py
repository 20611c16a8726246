"""Score samples from any program on a split, and write evaluations like those of a model."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from phiseg.core.errors import ConfigError, DataError
from phiseg.core.files import check_replaceable
from phiseg.data.store import Dataset
from phiseg.evaluation.case_scoring import (
    DiceAnnotator,
    DrawnCase,
    ScoredCase,
    check_dice_annotator,
    choose_examples,
    example_arrays,
    sampled_case,
    score_sampled_case,
    stack_examples,
    summarise_scores,
)
from phiseg.evaluation.evaluation_folder import MARKER, cases_to_csv, write_evaluation
from phiseg.evaluation.sample_checks import GivenCase, OrderCheck
from phiseg.evaluation.sample_files import Arrays, GivenSamples, Source, open_samples
from phiseg.evaluation.summary import DatasetRef, ModelRef, Provenance, SamplesRef, Summary, defined
from phiseg.imaging.volume import PLANES
from phiseg.metrics.conventions import Convention, named_conventions
from phiseg.metrics.sampled_case import SampledCase
from phiseg.metrics.significance import patient_interval


class Scored(NamedTuple):
    """An evaluation that was written."""

    path: Path
    summary: Summary
    conventions: list[dict[str, Any]]
    """The requested conventions, as in `conventions.csv`."""


def score(
    samples: Source,
    data: Path,
    out: Path,
    *,
    split: str = "test",
    cases: Path | Sequence[str] | None = None,
    num_samples: Sequence[int] = (),
    conventions: Sequence[str] = (),
    method: str | None = None,
    dice_annotator: DiceAnnotator = "all",
    num_examples: int = 4,
    overwrite: bool = False,
    progress: bool = True,
) -> list[Scored]:
    """Score given samples on every case of a split, and write one evaluation per number of samples.

    Args:
        samples: file, folder or arrays in one of the forms of `sample_files`.
        data: prepared dataset.
        out: folder of the evaluation. With several numbers of samples, it has one subfolder `samples-N` for each.
        split: split to score.
        cases: names of the cases in the order of the samples, or a file with them; see `open_samples`.
        num_samples: numbers of samples to score, the first ones of each case; all samples if empty.
        conventions: names of further ways to compute a score (`metrics.conventions`), or `all`.
        method: name in tables; by default that of the file or folder.
        dice_annotator: reference for Dice.
        num_examples: number of cases stored for the figures.
        overwrite: replace existing evaluations.
        progress: show a progress bar.

    Raises:
        ConfigError, DataError, OutputError: an argument or the samples are unsuitable, or `out` cannot be written.
    """
    wanted = named_conventions(conventions)
    dataset = Dataset.open(data)
    rows = dataset.rows(split).tolist()
    dataset.check_labels(rows)
    check_dice_annotator(dataset, dice_annotator)
    shown = choose_examples(dataset, rows, num_examples)
    plane = dataset.info.plane if dataset.info.plane in PLANES else None
    given = open_samples(samples, cases=cases, plane=plane, dims=dataset.dims)
    entries = given.in_order([dataset.cases[row]["case"] for row in rows], where=f"split '{split}' of {data}")
    numbers = list(dict.fromkeys(num_samples)) or [_check(given, dataset, rows[0], entries[0]()).num_samples]
    if min(numbers) < 1:
        raise ConfigError(f"num_samples is {min(numbers)}; it must be at least 1")
    folders = [out / f"samples-{number}" for number in numbers] if len(numbers) > 1 else [out]
    for folder in folders:
        check_replaceable(folder, overwrite=overwrite, marker=MARKER)
    name = method or _method(given)
    parts = [_Part(number, dataset, wanted, dice_annotator) for number in numbers]
    order = OrderCheck(dataset)
    bar = tqdm(zip(rows, entries, strict=True), f"scoring {name}", len(rows), unit="case", disable=not progress)
    for row, entry in bar:
        case = _check(given, dataset, row, entry())
        if case.num_samples < max(numbers) or (not num_samples and case.num_samples != numbers[0]):
            raise DataError(
                f"{given.name}: case '{dataset.cases[row]['case']}' has {case.num_samples} samples, not "
                f"{max(numbers)}; pass a number that all cases have, such as --num-samples "
                f"{min(case.num_samples, *numbers)}"
            )
        for part in parts:
            drawn = case.first(part.number)
            part.add(row, drawn, keep=row in shown)
            if part.number == max(numbers):
                order.add(row, drawn)
    order.report()
    common = {
        "method": name,
        "split": split,
        "dataset": DatasetRef.of(dataset),
    }
    return [part.write(folder, common, shown, overwrite) for part, folder in zip(parts, folders, strict=True)]


def _check(given: GivenSamples, dataset: Dataset, row: int, arrays: Arrays) -> GivenCase:
    where = f"{given.name}: case '{dataset.cases[row]['case']}'"
    return GivenCase(arrays, size=dataset.size(row), classes=dataset.info.classes, where=where)


def _method(given: GivenSamples) -> str:
    path = Path(given.name).resolve()
    return path.parent.name if path.name in ("labels.npy", "probs.npy") else path.stem


class _Part:
    """The scores with one number of samples."""

    def __init__(
        self, number: int, dataset: Dataset, conventions: Sequence[Convention], dice_annotator: DiceAnnotator
    ) -> None:
        self.number = number
        self._dataset, self._conventions, self._dice_annotator = dataset, conventions, dice_annotator
        self._scored: list[ScoredCase] = []
        self._values: dict[str, list[float | None]] = {convention.name: [] for convention in conventions}
        self._examples: dict[int, dict[str, torch.Tensor]] = {}
        self._known: set[str] = set()
        self._hash = hashlib.sha256()

    def add(self, row: int, drawn: DrawnCase, *, keep: bool) -> None:
        """Score a case, and keep its data for the figures."""
        case: SampledCase = sampled_case(self._dataset, row, drawn, self._dice_annotator)
        self._scored.append(score_sampled_case(row, case))
        for convention in self._conventions:
            self._values[convention.name].append(convention.of(case))
        self._known.add(_probabilities(drawn))
        self._hash.update(np.ascontiguousarray(drawn.labels.numpy()).tobytes())
        if keep:
            image = torch.from_numpy(self._dataset.image(row))[0]
            self._examples[row] = example_arrays(self._dataset, row, drawn, image)

    def write(self, out: Path, common: dict[str, Any], shown: Sequence[int], overwrite: bool) -> Scored:
        """Write the evaluation."""
        if len(self._known) > 1:
            raise DataError(
                "some cases have probabilities and others only labels; give the same arrays for all cases"
            )
        provenance = Provenance.parse(
            {
                **common,
                "num_parameters": None,
                "num_samples": self.number,
                "seed": None,
                "precision": None,
                "dice_annotator": self._dice_annotator,
                "model": ModelRef(),
                "samples": SamplesRef(sha256=self._hash.hexdigest(), probabilities=self._known.pop()),
            },
            where="the evaluation",
        )
        cases, summary, reliability = summarise_scores(self._dataset, self._scored, provenance)
        more, means = {}, self._means(cases["patient"])
        if means:
            more["conventions.csv"] = cases_to_csv({name: [row[name] for row in means] for name in means[0]})
            more["convention_cases.csv"] = cases_to_csv(
                {"case": cases["case"], "patient": cases["patient"], **self._values}
            )
        write_evaluation(
            out,
            summary=summary,
            cases=cases,
            examples=stack_examples(self._dataset, shown, [self._examples[row] for row in shown]),
            reliability=reliability,
            classes=self._dataset.info.classes[1:],
            more=more,
            overwrite=overwrite,
        )
        return Scored(out, summary, means)

    def _means(self, patients: Sequence[str]) -> list[dict[str, Any]]:
        """Return one row per convention: its mean over the cases where it is defined, and the 95 % interval."""
        rows = []
        for convention in self._conventions:
            values = self._values[convention.name]
            known = defined(values)
            low, high = patient_interval([values], patients) or (None, None)
            rows.append(
                {
                    "convention": convention.name,
                    "score": convention.score,
                    "mean": float(np.mean(known)) if known else None,
                    "low": low,
                    "high": high,
                    "num_cases": len(known),
                    "num_samples": self.number,
                    "description": convention.description,
                    "used_by": convention.used_by,
                }
            )
        return rows


def _probabilities(drawn: DrawnCase) -> str:
    if drawn.mean_probs is None:
        return "none"
    return "mean" if drawn.mean_log_probs is None else "all"
