"""The report of an experiment: a block a regime, a row a method, its trainings pooled."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from phiseg.core.errors import DataError
from phiseg.data.store import Dataset
from phiseg.evaluation.compare import Block, write_comparison
from phiseg.evaluation.examples import chosen_cases
from phiseg.evaluation.experiment import Job, is_finished
from phiseg.evaluation.pooling import pool
from phiseg.evaluation.results import Evaluation, read_evaluation
from phiseg.evaluation.scores import draw_examples
from phiseg.evaluation.tables import Table

TITLES = {"all": "Trained with all experts", "one": "Trained with one expert"}


def write_report(jobs: Sequence[Job], data: Path, out: Path, *, title: str | None = None) -> dict[str, Table]:
    """Put the finished rows into one report with tables and figures.

    The figures show the best, the median and the worst case of the method with the lowest GED, and the case that
    annotators dispute most: the same cases for every method of a regime.

    Args:
        jobs: rows of the experiment, finished or not.
        data: the dataset.
        out: the experiment's folder, which also gets the report.
        title: heading of the report.

    Returns:
        The table of every regime, by its title.

    Raises:
        DataError: no row is finished, or a row is damaged.
    """
    dataset = Dataset.open(data)
    finished = [job for job in jobs if is_finished(job, out)]
    if not finished:
        raise DataError(f"{out} has no finished row to report; run its rows first")
    blocks = []
    for regime in dict.fromkeys(job.regime for job in finished):
        rows: dict[str, list[Job]] = {}
        for job in finished:
            if job.regime == regime:
                rows.setdefault(job.method, []).append(job)
        evaluations = [_evaluation(trainings, out) for trainings in rows.values()]
        evaluations, labels = _with_examples(evaluations, dataset)
        blocks.append(Block(regime, TITLES[regime], evaluations, labels))
    tables = write_comparison(blocks, out, overwrite=True, title=title or f"Experiment on {dataset.info.name}")
    return {block.title: table for block, table in zip(blocks, tables, strict=True)}


def _evaluation(trainings: Sequence[Job], out: Path) -> Evaluation:
    return pool([read_evaluation(out / "rows" / job.name / "eval") for job in trainings])


def _with_examples(evaluations: list[Evaluation], dataset: Dataset) -> tuple[list[Evaluation], dict[str, str]]:
    """Draw the same chosen cases with every method; a sample depends on its seed and case alone."""
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
                seed=evaluation.summary.seed,
            ),
        )
        for evaluation in evaluations
    ]
    return drawn, labels
