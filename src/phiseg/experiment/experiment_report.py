"""The report of an experiment: one section per regime, one row per method with its trainings pooled."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from phiseg.comparison.best_scores import Test
from phiseg.comparison.compare import Section, write_comparison
from phiseg.comparison.examples import chosen_cases
from phiseg.comparison.tables import Table
from phiseg.core.errors import DataError
from phiseg.data.store import Dataset
from phiseg.evaluation.evaluation_folder import MARKER, Evaluation, read_evaluation
from phiseg.evaluation.model_evaluation import draw_examples
from phiseg.experiment.pooling import pool_trainings
from phiseg.experiment.runner import METHODS, read_json

TITLES = {"all": "Trained with all experts", "one": "Trained with one expert"}


def write_experiment_report(
    data: Path,
    out: Path,
    *,
    title: str | None = None,
    test: Test = "patients",
    set_aside: Sequence[str] = (),
) -> dict[str, Table]:
    """Write a report with tables and figures of all finished rows of an experiment.

    The figures show the best, median and worst case of the method with the lowest GED, and the case with the
    largest annotator disagreement. All methods of a regime have the same cases.

    Args:
        data: dataset.
        out: folder of the experiment, which also receives the report.
        title: title of the report.
        test: unit that the significance test treats as independent.
        set_aside: methods with unsuitable settings; they are shown, but not tested, except in a section without
            other methods.

    Returns:
        The table of each regime, by title.

    Raises:
        DataError: no row is finished, or a row is damaged.
    """
    dataset = Dataset.open(data)
    sections = []
    for regime, heading in TITLES.items():
        rows = {folder.name: _trainings(folder) for folder in (out / "rows" / regime).glob("*")}
        finished = {name: rows[name] for name in sorted(rows, key=_place) if rows[name]}
        if finished:
            pooled = [
                pool_trainings([read_evaluation(row / "eval") for row in trainings])
                for trainings in finished.values()
            ]
            evaluations, labels = _with_examples(pooled, dataset)
            aside = [name for name in set_aside if name in finished and not finished.keys() <= set(set_aside)]
            sections.append(
                Section(regime, heading, evaluations, labels, [_how(finished)], set_aside=aside, equal_time=True)
            )
    if not sections:
        raise DataError(f"{out} has no finished row; run the rows first")
    title = title or f"Experiment on {dataset.info.name}"
    tables = write_comparison(sections, out, overwrite=True, title=title, test=test)
    return {section.title: table for section, table in zip(sections, tables, strict=True)}


def _trainings(folder: Path) -> list[Path]:
    """Return the finished trainings of a method, by seed."""
    finished = [path.parent.parent for path in folder.glob(f"seed-*/eval/{MARKER}")]
    return sorted(finished, key=lambda path: int(path.name.removeprefix("seed-")))


def _place(method: str) -> tuple[int, str]:
    """Return a sort key: methods in the order of the experiment, then others."""
    return METHODS.index(method) if method in METHODS else len(METHODS), method


def _how(rows: Mapping[str, Sequence[Path]]) -> str:
    """Describe in one line how the rows were trained."""
    records = [read_json(row / "row.json") for trainings in rows.values() for row in trainings]
    plan = records[0]["plan"]
    budget = f"{plan['steps']} steps" if plan["steps"] else f"{plan['minutes']:g} minutes of training steps"
    seeds = {name: ", ".join(row.name.removeprefix("seed-") for row in found) for name, found in rows.items()}
    listed = sorted(set(seeds.values()))
    trained = f"seeds {listed[0]}" if len(listed) == 1 else "; ".join(f"{n}: seeds {s}" for n, s in seeds.items())
    versions = sorted({f"torch {record['packages']['torch']}, commit {record['commit']}" for record in records})
    overrides = f"; {' '.join(plan['overrides'])}" if plan["overrides"] else ""
    return f"Every row: {budget}{overrides}; {trained}; {'; '.join(versions)}."


def _with_examples(evaluations: list[Evaluation], dataset: Dataset) -> tuple[list[Evaluation], dict[str, str]]:
    """Draw the samples of the example cases with every method. Samples depend only on the seed and the case."""
    scored = [evaluation for evaluation in evaluations if evaluation.summary.ged is not None]
    if not scored:
        return evaluations, {}
    reference = min(scored, key=lambda evaluation: evaluation.summary.ged or 0.0)
    labels = chosen_cases(reference)
    rows = {case["case"]: row for row, case in enumerate(dataset.cases)}
    drawn = [
        replace(
            evaluation,
            examples=draw_examples(
                evaluation.path.parent / "run",
                dataset,
                [rows[case] for case in labels],
                num_samples=evaluation.summary.num_samples,
                seed=evaluation.summary.seed or 0,
            ),
        )
        for evaluation in evaluations
    ]
    return drawn, labels
