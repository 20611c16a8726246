"""Pool several trainings of a method into one row of a table."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from phiseg.comparison.tables import check_comparable
from phiseg.evaluation.evaluation_folder import Evaluation
from phiseg.evaluation.summary import TEXT_COLUMNS, Cases, Provenance, Summary, defined
from phiseg.metrics.score_registry import pixel_scores, summary_scores


def pool_trainings(evaluations: Sequence[Evaluation]) -> Evaluation:
    """Average the scores of every case over trainings with different seeds.

    The scores of each training are kept in `trainings`, for tests and intervals that include the variance between
    seeds. Figures show the first training.

    Args:
        evaluations: evaluations of one method on the same cases.

    Returns:
        The pooled evaluation. `spread` contains the standard deviation of each mean between trainings.
    """
    first = evaluations[0]
    if len(evaluations) == 1:
        return first
    check_comparable(evaluations)
    order = [{case: row for row, case in enumerate(other.cases["case"])} for other in evaluations]
    trainings: list[Cases] = [
        {
            name: column
            if name in TEXT_COLUMNS
            else [other.cases[name][place[case]] for case in first.cases["case"]]
            for name, column in first.cases.items()
        }
        for other, place in zip(evaluations, order, strict=True)
    ]
    cases: Cases = {
        name: column
        if name in TEXT_COLUMNS
        else [
            float(np.mean(known)) if (known := defined(values)) else None
            for values in zip(*(training[name] for training in trainings), strict=True)
        ]
        for name, column in first.cases.items()
    }
    provenance = {name: getattr(first.summary, name) for name in Provenance.model_fields}
    means = {
        score.name: defined([other.summary.scores.get(score.name) for other in evaluations])
        for score in summary_scores()
    }
    spread = {name: float(np.std(values, ddof=1)) for name, values in means.items() if len(values) > 1}
    pixels = {score.name: float(np.mean(values)) for score in pixel_scores() if (values := means.get(score.name))}
    tables = [other.reliability for other in evaluations if other.reliability is not None]
    return replace(
        first,
        reliability=np.sum(tables, axis=0) if tables else None,
        summary=Summary.of(
            cases,
            trainings=trainings,
            pixel_scores=pixels,
            **provenance,
        ),
        cases=cases,
        spread=spread,
        trainings=tuple(trainings),
    )
