"""Cases shown in figures: best, median and worst of a method, and the most disputed one."""

from pathlib import Path

import pytest

from helpers.synthetic_evaluations import make_cases, make_evaluation
from phiseg.comparison.examples import chosen_cases


def evaluation(ged, within, floor=None):
    """Return an evaluation of cases a, b, c, ... with these scores."""
    cases = make_cases(0.5, num_cases=len(ged)) | {
        "case": [chr(ord("a") + place) for place in range(len(ged))],
        "ged": ged,
        "ged_floor": floor or [0.0] * len(ged),
        "ged_within_annotations": within,
    }
    return make_evaluation(Path("/evals/x"), "ours", cases=cases, num_cases=len(ged), size=8)


def test_best_median_worst_and_most_ambiguous():
    chosen = chosen_cases(evaluation([0.4, 0.1, 0.9, 0.3, 0.2], within=[0.1, 0.1, 0.2, 0.2, 0.5]))
    assert chosen == {"b": "best of ours", "d": "median of ours", "c": "worst of ours", "e": "most ambiguous"}
    assert list(chosen) == ["b", "d", "c", "e"]


def test_examples_use_ged_above_floor():
    chosen = chosen_cases(evaluation([0.9, 0.5, 0.3], within=[0.5, 0.4, 0.3], floor=[0.8, 0.2, 0.1]))
    assert chosen == {
        "a": "best of ours, most ambiguous",
        "c": "median of ours",
        "b": "worst of ours",
    }


def test_median_of_even_number_is_the_lower():
    chosen = chosen_cases(evaluation([0.4, 0.1, 0.3, 0.2], within=[0.1, 0.2, 0.3, 0.4]))
    assert chosen["d"] == "median of ours, most ambiguous"


def test_case_without_ged_is_not_chosen():
    chosen = chosen_cases(evaluation([None, 0.3, 0.2], within=[0.9, 0.1, 0.2]))
    assert chosen == {"c": "best of ours, median of ours, most ambiguous", "b": "worst of ours"}


def test_single_case_has_all_labels():
    assert list(chosen_cases(evaluation([0.3], within=[0.0]))) == ["a"]


def test_ties_choose_the_first_case():
    chosen = chosen_cases(evaluation([0.2, 0.2, 0.1, 0.1], within=[0.1, 0.3, 0.3, 0.1]))
    assert chosen == {"c": "best of ours", "d": "median of ours", "a": "worst of ours", "b": "most ambiguous"}


@pytest.mark.parametrize("ged", [[None], [None, None]])
def test_nothing_is_chosen_without_ged(ged):
    assert chosen_cases(evaluation(ged, within=[0.0] * len(ged))) == {}
