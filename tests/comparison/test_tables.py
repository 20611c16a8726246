import csv
import io
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ttest_1samp, ttest_rel

from helpers.synthetic_evaluations import make_cases, make_evaluation
from phiseg.comparison.table_formats import further_columns, main_columns, to_csv, to_latex, to_markdown, to_text
from phiseg.comparison.tables import comparison_table, method_names
from phiseg.core.errors import DataError
from phiseg.evaluation.summary import DatasetRef
from phiseg.experiment.pooling import pool_trainings


def evaluation(name, quality=0.8, **changes):
    return make_evaluation(Path(f"/evals/{name}"), changes.pop("method", name), quality, size=8, **changes)


def with_scores(name, rng, shift):
    cases = make_cases(0.8, num_cases=25)
    cases["ged"] = (0.3 - shift + rng.normal(0, 0.05, 25)).tolist()
    cases["s_ncc"] = (0.7 + shift + rng.normal(0, 0.05, 25)).tolist()
    cases["dice"] = (0.6 + shift + rng.normal(0, 0.05, 25)).tolist()
    return evaluation(name, cases=cases)


def scipy_says_best(evaluations, index, metric, sign):
    own = np.array(evaluations[index].cases[metric])
    tests = [
        ttest_rel(sign * own, sign * np.array(other.cases[metric]))
        for place, other in enumerate(evaluations)
        if place != index
    ]
    return all(test.pvalue < 0.01 and test.statistic > 0 for test in tests)


def test_marks_match_scipy():
    seen = set()
    for seed in range(25):
        rng = np.random.default_rng(seed)
        methods = [with_scores(name, rng, shift) for name, shift in (("a", 0.045), ("b", 0.0), ("c", 0.01))]
        table = comparison_table(methods)
        for index, row in enumerate(table.rows):
            for metric, sign in (("ged", -1), ("s_ncc", 1), ("dice", 1)):
                expected = scipy_says_best(methods, index, metric, sign)
                assert (metric in row.best) == expected
                seen.add((index, expected))
    assert {(0, True), (0, False), (1, False)} <= seen  # the rule was tried on both sides


@pytest.mark.parametrize(("number", "stated"), [(4, "GED 4 (too few for a test)"), (6, "GED 6")])
def test_note_states_how_many_cases_have_a_score(number, stated):
    methods = [with_scores(name, np.random.default_rng(seed), 0) for seed, name in enumerate("ab")]
    for method in methods:
        for score in ("ged", "ged_unbiased", "ged_floor"):
            method.cases[score][number:] = [None] * (25 - number)
    (note,) = (note for note in comparison_table(methods).notes if note.startswith("Marked"))
    assert "over 25 patients" in note
    assert f"Scores with fewer patients: {stated}" in note
    assert "S_NCC" not in note


def clustered_methods(*, patients=True, trainings=1):
    """Return two methods that differ by chance alone: one difference per patient, five patients of eight cases."""
    rng = np.random.default_rng(2)
    owners = np.repeat(np.arange(5), 8)
    base = make_cases(0.8, num_cases=40) | {"patient": [f"p{owner}" for owner in owners]}
    luck = np.array([0.05, 0.03, 0.04, -0.01, 0.02])[owners]
    if not patients:
        del base["patient"]
    runs = []
    for name, better in (("a", luck), ("b", 0 * luck)):
        seeds = [
            evaluation(f"{name}/{seed}", cases=base | {"ged": (0.4 - better + rng.normal(0, 0.01, 40)).tolist()})
            for seed in range(trainings)
        ]
        runs.append(pool_trainings(seeds))
    return runs


def test_marks_use_patients_by_default():
    methods = clustered_methods()
    table, by_case = comparison_table(methods), comparison_table(methods, test="cases")
    assert "ged" not in table.rows[0].best
    assert "ged" in by_case.rows[0].best
    assert "over 5 patients" in table.notes[0]
    assert "over 40 cases" in by_case.notes[0]
    differences = np.subtract(methods[0].cases["ged"], methods[1].cases["ged"])
    assert ttest_1samp(differences.reshape(5, 8).mean(1), 0).pvalue > 0.01
    assert ttest_1samp(differences, 0).pvalue < 0.01


def test_notes_state_units_of_the_test():
    single, several = (comparison_table(clustered_methods(trainings=n)).notes[0] for n in (1, 3))
    assert "trained once, so the test ignores the variance between seeds" in single
    assert "seeds" not in several
    assert "The test includes the variance between trainings" in several
    mixed = [clustered_methods(trainings=3)[0], clustered_methods()[1]]
    assert "the variance between their seeds: b/0." in comparison_table(mixed).notes[0]
    old = comparison_table(clustered_methods(patients=False))
    assert "ged" in old.rows[0].best  # 40 cases that pass for as many patients
    assert "Patients were not recorded, so each case counts as a patient" in old.notes[0]
    half_old = [clustered_methods(patients=False)[0], clustered_methods()[1]]
    assert "ged" not in comparison_table(half_old).rows[0].best  # one of them knows the patients
    assert "not recorded" not in comparison_table(half_old).notes[0]


def test_unbiased_ged_is_tested():
    cases = make_cases(0.8, num_cases=30)
    better = dict(cases, ged_unbiased=[value - 0.001 for value in cases["ged_unbiased"]])
    rows = comparison_table([evaluation("a", cases=cases), evaluation("b", cases=better)]).rows
    assert [row.best for row in rows] == [frozenset(), frozenset({"ged_unbiased"})]


def test_cases_are_paired_by_name():
    cases = make_cases(0.8, num_cases=30)
    better = dict(cases, ged=[value - 0.001 for value in cases["ged"]])
    order = np.random.default_rng(0).permutation(30)
    shuffled = {name: [column[i] for i in order] for name, column in better.items()}
    table = comparison_table([evaluation("a", cases=cases), evaluation("b", cases=shuffled)])
    assert [("ged" in row.best) for row in table.rows] == [False, True]


def test_cases_without_value_are_omitted_with_note():
    cases = make_cases(0.9, num_cases=30)
    holes = dict(make_cases(0.2, num_cases=30))
    holes["s_ncc"] = [None] * 10 + holes["s_ncc"][10:]
    table = comparison_table([evaluation("a", cases=cases), evaluation("b", cases=holes)])
    assert "s_ncc" in table.rows[0].best
    assert any("S_NCC" in note and "a 30, b 20" in note for note in table.notes)
    nothing = dict(holes, s_ncc=[None] * 30)
    table = comparison_table([evaluation("a", cases=cases), evaluation("b", cases=nothing)])
    assert table.rows[1].s_ncc is None
    assert not any("s_ncc" in row.best for row in table.rows)  # nobody to be better than
    assert " - " in to_text(table)


def test_one_method_or_case_has_note_without_marks():
    alone = comparison_table([evaluation("a")])
    assert not alone.rows[0].best
    assert "only one method" in alone.notes[0]
    one_case = comparison_table([evaluation("a", 0.9, num_cases=1), evaluation("b", 0.1, num_cases=1)])
    assert not any(row.best for row in one_case.rows)
    assert "are too few; a paired test needs" in one_case.notes[0]


def test_excess_uses_cases_with_floor():
    cases = make_cases(0.8, num_cases=3)
    cases["ged"], cases["ged_floor"] = [0.5, 0.4, 9.0], [0.1, 0.2, None]
    table = comparison_table([evaluation("a", cases=cases)])
    assert table.rows[0].ged_excess == pytest.approx(0.3)
    assert any("(1/M + 1/N)" in note for note in table.notes)


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"dataset": DatasetRef(name="other", fingerprint="0123")}, "other 0123"),
        ({"split": "val"}, "test and val"),
        ({"num_cases": 39}, "case-0039"),
        ({"num_samples": 16}, "100 and 16 samples, but GED decreases with the number of samples"),
    ],
)
def test_incomparable_evaluations_are_rejected(changes, difference):
    with pytest.raises(DataError, match=re.escape(difference)) as caught:
        comparison_table([evaluation("a"), evaluation("b"), evaluation("c", **changes)])
    assert "/evals/b and /evals/c" in str(caught.value)


def test_dice_of_different_annotators_is_not_tested():
    same = comparison_table([evaluation("a", 0.9, dice_annotator=2), evaluation("b", 0.1, dice_annotator=2)])
    assert same.rows[0].best == {"ged", "ged_unbiased", "s_ncc", "dice"}
    other = comparison_table([evaluation("a", 0.9, dice_annotator=2), evaluation("b", 0.1)])
    assert other.rows[0].best == {"ged", "ged_unbiased", "s_ncc"}
    assert other.rows[0].dice == same.rows[0].dice
    reason = "because it has different reference annotators, as has the surface distance"
    note = f"Dice is not compared, {reason}: a 2, b all."
    assert note in other.notes
    assert note not in same.notes
    assert note in " ".join(to_text(other).split())


def test_no_folder_and_repeated_folder_are_rejected():
    with pytest.raises(DataError, match="nothing to compare"):
        comparison_table([])
    with pytest.raises(DataError, match="twice"):
        comparison_table([evaluation("a"), evaluation("a")])


def test_equal_names_are_distinguished_by_folder():
    same = [evaluation(path, method="phiseg") for path in ("run1/eval", "run2/eval")]
    assert method_names([*same, evaluation("x")]) == ["phiseg (run1/eval)", "phiseg (run2/eval)", "x"]
    near = [evaluation(path, method="phiseg") for path in ("one", "two")]
    assert method_names(near) == ["phiseg (one)", "phiseg (two)"]


def test_csv_has_full_precision():
    evaluations = [evaluation("a", 0.9, num_parameters=None), evaluation("b, the 2nd", 0.2)]
    table = comparison_table(evaluations)
    rows = list(csv.DictReader(io.StringIO(to_csv({"": table}))))
    assert [row["method"] for row in rows] == ["a", "b, the 2nd"]
    assert rows[0]["num_parameters"] == ""
    for row, source in zip(rows, evaluations, strict=True):
        for metric in ("ged", "ged_unbiased", "ged_floor", "s_ncc", "dice"):
            assert float(row[metric]) == getattr(source.summary, metric)
            bounds = (float(row[f"{metric}_low"]), float(row[f"{metric}_high"]))
            assert bounds == source.summary.intervals[metric]
        assert float(row["ged_excess"]) == pytest.approx(source.summary.ged - source.summary.ged_floor)
        assert (int(row["num_cases"]), int(row["num_samples"])) == (40, 100)
    assert [rows[0][f"{metric}_marked"] for metric in ("ged", "s_ncc", "dice")] == ["true"] * 3
    assert [rows[1][f"{metric}_marked"] for metric in ("ged", "s_ncc", "dice")] == ["false"] * 3


def test_latex_escapes_special_characters():
    table = comparison_table([evaluation("a_b", 0.9, method=r"a_b & 5% #1 \x {y} $z$ ~^ <>"), evaluation("c", 0.1)])
    text = to_latex({"": table})
    name = r"a\_b \& 5\% \#1 \textbackslash{}x \{y\} \$z\$ \textasciitilde{}\textasciicircum{} $<$$>$"
    assert f"{name} & 1.23 M & \\textbf{{{table.rows[0].ged:.4f}}}" in text
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {
        len(columns) - 1 for columns in (main_columns(), further_columns([table]))
    }
    assert text.isascii()


def test_markdown_is_bold_and_escapes_names():
    table = comparison_table([evaluation("a", 0.9, method="a|b <b> *c*"), evaluation("c", 0.1)])
    lines = to_markdown({"": table}).splitlines()
    assert lines[2].startswith(rf"| a\|b \<b\> \*c\* | 1.23 M | **{table.rows[0].ged:.4f}** |")
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines[:4]} == {len(main_columns()) + 1}


def test_further_score_without_a_value_in_any_row_has_no_column():
    cases = make_cases(0.8)
    unknown, known = (
        evaluation("a"),
        evaluation("b", cases=cases | {"surface_distance": [1.5] * len(cases["case"])}),
    )
    for methods, shown in (([unknown], False), ([unknown, known], True)):
        table = comparison_table(methods)
        text = to_markdown({"": table})
        assert ("surface distance / mm |" in text) == shown
        assert ("Surface distance / mm: " in text) == shown
        assert "surface_distance," in to_csv({"": table})
    assert "| 1.50 |" in text


def test_text_is_aligned_with_stars():
    table = comparison_table([evaluation("a-long-name", 0.9), evaluation("c", 0.1)])
    lines = to_text(table).splitlines()
    assert f"{table.rows[0].ged:.4f}*" in lines[2]
    assert "*" not in lines[3]
    assert lines[2].index(".") == lines[3].index(".")
    assert lines[5].startswith("*: better than every other method")


def test_parameter_counts_are_readable():
    numbers = {None: "-", 950: "950", 12_345: "12.3 k", 999_700: "1 M", 4_560_000: "4.56 M", 999_900_000: "1,000 M"}
    table = [comparison_table([evaluation("a", num_parameters=n)]) for n in numbers]
    shown = [to_text(each).splitlines()[2].split("  ")[1:] for each in table]
    assert [next(cell.strip() for cell in row if cell.strip()) for row in shown] == [*numbers.values()]


def test_one_annotator_gives_note_instead_of_ged(tmp_path):
    alone = evaluation("a", 0.9)
    for name in ("ged", "ged_floor", "ged_unbiased", "s_ncc"):
        alone.cases[name] = [None] * len(alone.cases[name])
    alone.cases["num_annotators"] = [1.0] * len(alone.cases["case"])
    scores = alone.summary.scores | dict.fromkeys(("ged", "ged_floor", "ged_unbiased", "s_ncc"))
    alone = replace(alone, summary=alone.summary.model_copy(update={"scores": scores}))
    table = comparison_table([alone])
    assert table.rows[0].ged is None
    assert table.rows[0].dice is not None
    assert any("no case has two annotators" in note for note in table.notes)


def test_residual_correlation_is_noted():
    known = evaluation("a", 0.9, residual_correlation=0.2)
    delta = known.summary.diversity_annotators
    notes = comparison_table([known, evaluation("b", 0.1)]).notes
    (note,) = [note for note in notes if "Residual correlation" in note]
    assert note.endswith(f"a 0.20 ({delta * 0.25:.3f}).")
    assert any("independent given the image" in note and "upper bound" in note for note in notes)
    assert not any("Residual correlation" in note for note in comparison_table([evaluation("b", 0.1)]).notes)
