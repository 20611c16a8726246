"""Several trainings of one method as one row of a table."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from phiseg.evaluation.results import TEXT_COLUMNS, Evaluation, Provenance, Summary, defined
from phiseg.evaluation.tables import check_comparable
from phiseg.metrics.case import FURTHER_SCORES, SCORES


def pool(evaluations: Sequence[Evaluation]) -> Evaluation:
    """Average the scores of every case over trainings with different seeds.

    So a test over the cases compares methods, not lucky trainings. Figures show the first training.

    Args:
        evaluations: of one method, on the same cases.

    Returns:
        One evaluation, with the standard deviation between trainings of every mean in `spread`.
    """
    first = evaluations[0]
    if len(evaluations) == 1:
        return first
    check_comparable(evaluations)
    order = [{case: row for row, case in enumerate(other.cases["case"])} for other in evaluations]
    cases: dict[str, list[Any]] = {name: first.cases[name] for name in TEXT_COLUMNS if name in first.cases}
    for name in first.cases.keys() - cases.keys():
        values = [
            [other.cases[name][place[case]] for other, place in zip(evaluations, order, strict=True)]
            for case in first.cases["case"]
        ]
        cases[name] = [float(np.mean(known)) if (known := defined(seeds)) else None for seeds in values]
    provenance = {name: getattr(first.summary, name) for name in Provenance.model_fields}
    names = (*SCORES, *FURTHER_SCORES, "ece")
    means = {name: defined([getattr(other.summary, name) for other in evaluations]) for name in names}
    spread = {name: float(np.std(values, ddof=1)) for name, values in means.items() if len(values) > 1}
    ece = float(np.mean(means["ece"])) if means["ece"] else None
    tables = [other.reliability for other in evaluations if other.reliability is not None]
    return replace(
        first,
        reliability=np.sum(tables, axis=0) if tables else None,
        summary=Summary.of(cases, **provenance, ece=ece),
        cases={name: cases[name] for name in first.cases},
        spread=spread,
        num_trainings=len(evaluations),
    )
