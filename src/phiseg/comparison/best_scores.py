"""Scores of a table that are significantly better than those of all other methods (Tab. 1 of the paper)."""

from collections.abc import Mapping, Sequence
from typing import Literal

from phiseg.comparison.comparability import same_calibration, same_training_length
from phiseg.evaluation.evaluation_folder import Evaluation
from phiseg.evaluation.summary import defined, patients_of
from phiseg.metrics.score_registry import SCORES, case_scores
from phiseg.metrics.significance import paired_t_test, patient_t_test

SIGNIFICANCE = 0.01
MIN_PAIRS = 5
"""Minimum number of patients (or cases, in a test over cases) for a significance test."""
Test = Literal["patients", "cases"]
"""The independent units of a test: patients (and trainings, if there are several), or cases as in the paper."""


def tested_scores() -> list[str]:
    """Return the names of the scores that are tested: those of the main table that have a direction."""
    return [score.name for score in case_scores() if score.group == "main" and score.better]


def best_scores(
    evaluations: Sequence[Evaluation],
    metrics: Sequence[str],
    *,
    test: Test = "patients",
    tested: Sequence[bool] | None = None,
    equal_time: bool = False,
) -> list[frozenset[str]]:
    """Return for each evaluation the metrics in which it is better than all its rivals at p < `SIGNIFICANCE`.

    The rivals are all other evaluations that can be compared with it (`same_calibration`, `same_training_length`).

    Args:
        evaluations: evaluations of the same cases; those without a metric are ignored for this metric.
        metrics: names from `tested_scores`.
        test: unit that is treated as independent.
        tested: whether each evaluation is tested; None tests all.
        equal_time: whether all trainings took the same time, so that their numbers of steps may differ.
    """
    tested = tested or [True] * len(evaluations)
    others = [other for other, takes_part in zip(evaluations, tested, strict=True) if takes_part]
    return [
        frozenset(
            metric
            for metric in metrics
            if (rivals := _rivals(own, others, metric, equal_time))
            and all(_beats(own, rival, metric, test) for rival in rivals)
        )
        if takes_part
        else frozenset()
        for own, takes_part in zip(evaluations, tested, strict=True)
    ]


def _rivals(own: Evaluation, others: Sequence[Evaluation], metric: str, equal_time: bool) -> list[Evaluation]:
    return [
        other
        for other in others
        if other is not own
        and same_calibration(own, other)
        and (equal_time or same_training_length(own, other))
        and defined(other.cases[metric])
    ]


def _beats(own: Evaluation, rival: Evaluation, metric: str, test: Test) -> bool:
    place = {case: row for row, case in enumerate(rival.cases["case"])}
    order = [place[case] for case in own.cases["case"]]
    if test == "cases":
        result = paired_t_test(own.cases[metric], [rival.cases[metric][row] for row in order])
    else:
        ours, theirs = ([each[metric] for each in e.trainings or [e.cases]] for e in (own, rival))
        known = own if "patient" in own.cases else rival
        patients = dict(zip(known.cases["case"], patients_of(known.cases), strict=True))
        owners = [patients[case] for case in own.cases["case"]]
        result = patient_t_test(ours, [[scores[row] for row in order] for scores in theirs], owners)
    if result.num_pairs < MIN_PAIRS or result.p_value is None or result.mean_difference is None:
        return False
    return result.p_value < SIGNIFICANCE and result.mean_difference * SCORES[metric].sign > 0


def _fewer_units(evaluations: Sequence[Evaluation], units: Mapping[str, str], test: Test) -> str:
    """Return a sentence on the tested scores that are not defined for all units, such as GED with one annotator."""
    fewer = []
    for metric in tested_scores():
        scored = [
            {units[case] for case, value in zip(e.cases["case"], e.cases[metric], strict=True) if value is not None}
            for e in evaluations
        ]
        count = len(set.intersection(*scored))
        if 0 < count < len(set(units.values())):
            too_few = " (too few for a test)" if count < MIN_PAIRS else ""
            fewer.append(f"{SCORES[metric].heading} {count}{too_few}")
    return f" Scores with fewer {test}: {', '.join(fewer)}." if fewer else ""


def significance_note(evaluations: Sequence[Evaluation], names: Sequence[str], *, test: Test = "patients") -> str:
    """Return the line below a table that describes the test and its limitations.

    Args:
        evaluations: rows of the table.
        names: names of the rows.
        test: unit that is treated as independent.
    """
    if len(evaluations) < 2:
        return "No significance test: there is only one method."
    recorded = [e for e in evaluations if "patient" in e.cases]
    cases = (recorded or evaluations)[0].cases
    units = dict(zip(cases["case"], patients_of(cases) if test == "patients" else cases["case"], strict=True))
    count = len(set(units.values()))
    if count < MIN_PAIRS:
        return f"No significance test: {count} {test} are too few; a paired test needs at least {MIN_PAIRS}."
    note = f"Marked: better than every other method (paired t-test over {count} {test}, p < {SIGNIFICANCE})."
    note += _fewer_units(evaluations, units, test)
    if test == "cases":
        return f"{note} As in the paper, cases of one patient count as independent, and seeds are ignored."
    single = [name for name, own in zip(names, evaluations, strict=True) if own.num_trainings == 1]
    if not recorded:
        note += " Patients were not recorded, so each case counts as a patient; evaluate again to record them."
    if not single:
        return f"{note} The test includes the variance between trainings."
    if len(single) == len(names):
        return f"{note} Each method was trained once, so the test ignores the variance between seeds."
    return f"{note} Trained once, so that the test ignores the variance between their seeds: {', '.join(single)}."
