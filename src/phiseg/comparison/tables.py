"""The comparison table: one row per method, with significantly best scores marked (Tab. 1 of the paper)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from phiseg.comparison.best_scores import Test, best_scores, significance_note, tested_scores
from phiseg.comparison.comparability import SET_ASIDE, check_set_aside, comparability_notes
from phiseg.core.errors import DataError
from phiseg.evaluation.evaluation_folder import Evaluation
from phiseg.evaluation.summary import defined
from phiseg.metrics.score_registry import GED_EXCESS, SCORES, case_scores, definitions, derived_scores, table_scores


@dataclass(frozen=True)
class Row:
    """One method."""

    method: str
    num_parameters: int | None
    num_cases: int
    num_samples: int
    num_patients: int | None
    """Number of patients; None if patients were not recorded."""
    scores: dict[str, float | None]
    """Scores of both tables by name, also available as attributes, such as `row.ged`."""
    intervals: dict[str, tuple[float, float]]
    best: frozenset[str]
    """Scores that are significantly better than those of all other methods."""
    num_trainings: int = 1
    spread: dict[str, float] = field(default_factory=dict)
    """Standard deviation of each mean between trainings, if there are several."""

    def __getattr__(self, name: str) -> float | None:
        """Return a score by name; None if it is undefined."""
        if name not in SCORES:
            raise AttributeError(f"a row has no {name!r}")
        return self.scores.get(name)


@dataclass(frozen=True)
class Table:
    """All methods in the given order, and the notes below the table."""

    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    dims: int = 2
    """Number of dimensions of the cases, which determines the further scores."""


def comparison_table(
    evaluations: Sequence[Evaluation],
    *,
    test: Test = "patients",
    set_aside: Sequence[str] = (),
    equal_time: bool = False,
) -> Table:
    """Compare evaluations on the same cases with the same number of samples.

    Dice is shown but not tested if it has different reference annotators.

    Args:
        evaluations: one evaluation per method.
        test: unit that the significance test treats as independent.
        set_aside: methods with unsuitable settings; they are shown but not tested.
        equal_time: whether all trainings took the same time, so that their numbers of steps may differ.

    Raises:
        ConfigError: a method in `set_aside` does not exist.
        DataError: two evaluations cannot be compared.
    """
    check_comparable(evaluations)
    names = method_names(evaluations)
    check_set_aside(names, set_aside)
    takes_part = [name not in set_aside for name in names]
    references = [str(evaluation.summary.dice_annotator) for evaluation in evaluations]
    tested = [metric for metric in tested_scores() if metric != "dice" or len(set(references)) == 1]
    rows = []
    marks = best_scores(evaluations, tested, test=test, tested=takes_part, equal_time=equal_time)
    for name, own, best in zip(names, evaluations, marks, strict=True):
        summary = own.summary
        row = Row(
            method=f"{name} {SET_ASIDE}" if name in set_aside else name,
            num_parameters=summary.num_parameters,
            num_cases=summary.num_cases,
            num_samples=summary.num_samples,
            num_patients=summary.num_patients,
            scores=_scores(own),
            intervals=summary.intervals,
            best=best,
            num_trainings=own.num_trainings,
            spread=own.spread,
        )
        rows.append(row)
    notes = [
        significance_note(evaluations, names, test=test),
        definitions(score for score in table_scores("main") if score.beside),
        *_correlation_notes(names, evaluations),
    ]
    notes += comparability_notes(names, evaluations, set_aside=set_aside, equal_time=equal_time)
    notes += _undefined_notes(rows, evaluations)
    if len(set(references)) == 1:
        notes.append(f"Dice is that of the mean prediction with {_dice_reference(references[0])}.")
    if all(max(evaluation.cases["num_annotators"]) == 1 for evaluation in evaluations):
        notes.append("GED and S_NCC are not given, because no case has two annotators.")
    if any(evaluation.num_trainings > 1 for evaluation in evaluations):
        numbers = ", ".join(f"{name} {own.num_trainings}" for name, own in zip(names, evaluations, strict=True))
        notes.append(f"±: standard deviation between trainings with different seeds ({numbers}).")
    if "dice" not in tested:
        each = ", ".join(f"{name} {reference}" for name, reference in zip(names, references, strict=True))
        notes.append(
            "Dice is not compared, because it has different reference annotators, as has the surface distance: "
            f"{each}."
        )
    return Table(tuple(rows), tuple(notes), evaluations[0].summary.dataset.dims)


def check_comparable(evaluations: Sequence[Evaluation]) -> None:
    """Check that evaluations have the same data, split, cases and number of samples.

    Raises:
        DataError: two evaluations differ.
    """
    if not evaluations:
        raise DataError("nothing to compare; give at least one folder written by phiseg evaluate")
    for one, two in pairwise(evaluations):
        a, b, folders = one.summary, two.summary, f"{one.path} and {two.path}"
        if a.dataset.fingerprint != b.dataset.fingerprint:
            sets = " and ".join(f"{data.name} {data.fingerprint[:12]}" for data in (a.dataset, b.dataset))
            raise DataError(f"{folders} have different datasets ({sets}); evaluate both on the same dataset")
        if a.split != b.split:
            raise DataError(
                f"{folders} have different splits ({a.split} and {b.split}); evaluate both on the same split"
            )
        if different := set(one.cases["case"]) ^ set(two.cases["case"]):
            example = f"{len(different)} are in only one of them, such as '{min(different)}'"
            raise DataError(f"{folders} have different cases ({example}); evaluate both on the same cases")
        if a.num_samples != b.num_samples:
            raise DataError(
                f"{folders} have {a.num_samples} and {b.num_samples} samples, but GED decreases with the number of "
                "samples; evaluate again with the same --num-samples"
            )


def method_names(evaluations: Sequence[Evaluation]) -> list[str]:
    """Return the names of the methods; equal names are distinguished by the end of their paths.

    Raises:
        DataError: a folder was given twice.
    """
    names = [evaluation.summary.method for evaluation in evaluations]
    paths = [evaluation.path.resolve() for evaluation in evaluations]
    if len(set(paths)) < len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise DataError(f"{twice} was given twice; give each folder once")
    depth, result = 0, list(names)
    while len(set(result)) < len(result):
        depth += 1
        tails = ["/".join(path.parts[-depth:]) for path in paths]
        result = [
            f"{name} ({tail})" if names.count(name) > 1 else name for name, tail in zip(names, tails, strict=True)
        ]
    return result


def _scores(evaluation: Evaluation) -> dict[str, float | None]:
    """Return the means of all scores, including those that are not stored."""
    derived = {score.name: defined(score.column(evaluation.cases)) for score in derived_scores()}
    means = {name: float(np.mean(values)) if values else None for name, values in derived.items()}
    return evaluation.summary.scores | means


def excess_ged(evaluation: Evaluation) -> list[float | None]:
    """Return the GED minus its floor for each case."""
    return GED_EXCESS.column(evaluation.cases)


def _dice_reference(annotator: str) -> str:
    known = {"all": "each annotator, averaged", "majority": "the annotators' majority", "staple": "their STAPLE"}
    return known.get(annotator, f"annotator {annotator}")


def _correlation_notes(names: Sequence[str], evaluations: Sequence[Evaluation]) -> list[str]:
    """Return the note on the excess that is explained by the correlation of annotators, if it is known."""
    known = [
        f"{name} {own.summary.residual_correlation:.2f} ({own.summary.ged_correlated:.3f})"
        for name, own in zip(names, evaluations, strict=True)
        if own.summary.ged_correlated is not None
    ]
    if not known:
        return []
    return [
        "Residual correlation of two annotators given the model's probabilities, and in brackets the unbiased "
        f"GED that it can explain: {', '.join(known)}."
    ]


def _undefined_notes(rows: Sequence[Row], evaluations: Sequence[Evaluation]) -> list[str]:
    notes = []
    for score in case_scores():
        if score.group != "main" or score.name in {"ged", "ged_unbiased"}:  # defined in the same cases as the floor
            continue
        counts = [len(defined(evaluation.cases[score.name])) for evaluation in evaluations]
        if any(0 < count < row.num_cases for count, row in zip(counts, rows, strict=True)):
            each = ", ".join(f"{row.method} {count}" for count, row in zip(counts, rows, strict=True))
            notes.append(
                f"{score.heading} is not defined in every case of {rows[0].num_cases}; means are over: {each}."
            )
    return notes
