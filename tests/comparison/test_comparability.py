"""Rows of a table that are not comparable."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers.synthetic_evaluations import make_cases, make_evaluation
from phiseg.comparison.table_formats import to_latex, to_markdown
from phiseg.comparison.tables import comparison_table
from phiseg.core.errors import ConfigError
from phiseg.models.temperatures import Calibration


def row(name, shift, *, temperature=1.0, weights=None, steps=None, selected=4000):
    """Return an evaluation whose S_NCC is better by `shift`, with little noise."""
    cases = make_cases(0.8, num_cases=25)
    cases["s_ncc"] = (0.7 + shift + np.random.default_rng(len(name)).normal(0, 0.01, 25)).tolist()
    found = make_evaluation(Path(f"/evals/{name}"), name, 0.8, size=8, cases=cases)
    model = found.summary.model.model_copy(
        update={"calibration": Calibration(logits=temperature), "sha256": weights or name, "step": selected}
    )
    training = [{"step": steps, "kind": "train", "loss": 1.0}] if steps else []
    return replace(found, summary=found.summary.model_copy(update={"model": model}), training=training)


def marked(table):
    return [row.method for row in table.rows if "s_ncc" in row.best]


def test_a_calibrated_row_is_not_marked_against_uncalibrated_ones():
    plain, rival = row("plain", 0.1), row("rival", 0.0)
    assert marked(comparison_table([plain, rival])) == ["plain"]
    table = comparison_table([row("tempered", 0.1, temperature=2.0), rival])
    assert marked(table) == []
    assert any("Not comparable: tempered sampled with fitted temperatures" in note for note in table.notes)
    both = comparison_table([row("tempered", 0.1, temperature=2.0), row("rival", 0.0, temperature=1.5)])
    assert marked(both) == ["tempered"]
    assert not any("Not comparable" in note for note in both.notes)


def test_note_states_rows_of_different_precision():
    exact, low = row("exact", 0.1), row("low", 0.0)
    assert not any("precision" in note for note in comparison_table([exact, low]).notes)
    low = replace(low, summary=low.summary.model_copy(update={"precision": "bfloat16"}))
    (note,) = [note for note in comparison_table([exact, low]).notes if "precision" in note]
    assert note.startswith("Rows were sampled in different precisions: exact float32, low bfloat16.")


def test_rows_of_the_same_calibration_are_marked_in_a_mixed_table():
    rows = [row("plain", 0.1), row("rival", 0.0), row("tempered", 0.2, temperature=2.0)]
    assert marked(comparison_table(rows)) == ["plain"]
    rows.append(row("tempered rival", 0.3, temperature=1.5))
    assert marked(comparison_table(rows)) == ["plain", "tempered rival"]


def test_the_same_weights_are_tested_with_and_without_temperatures():
    table = comparison_table([row("tempered", 0.1, temperature=2.0, weights="w"), row("plain", 0.0, weights="w")])
    assert marked(table) == ["tempered"]


def test_set_aside_row_is_marked_and_not_tested():
    rows = [row("good", 0.1), row("broken", 0.1), row("worse", 0.0)]
    assert marked(comparison_table(rows)) == []
    table = comparison_table(rows, set_aside=["broken"])
    assert marked(table) == ["good"]
    assert [row.method for row in table.rows] == ["good", "broken †", "worse"]
    assert "†: unsuitable settings (broken)" in to_markdown({"": table})
    assert r"broken $\dagger$" in to_latex({"": table})
    assert marked(comparison_table([row("broken", 0.2), *rows[::2]], set_aside=["broken"])) == ["good"]


@pytest.mark.parametrize(("names", "says"), [(["brokn"], "did you mean 'broken'"), (["good", "broken"], "keep at")])
def test_unknown_or_all_methods_cannot_be_set_aside(names, says):
    with pytest.raises(ConfigError, match=says):
        comparison_table([row("good", 0.1), row("broken", 0.0)], set_aside=names)


def test_different_training_lengths_and_early_selection_are_noted():
    table = comparison_table(
        [row("short", 0, steps=3000, selected=500), row("long", 0, steps=10_000, selected=9000)]
    )
    text = " ".join(table.notes)
    assert "Trained for different numbers of steps: short 3,000, long 10,000." in text
    assert "Selected in the first half of the training: short (500 of 3,000)." in text
    equal = comparison_table([row("one", 0, steps=3000, selected=3000), row("two", 0, steps=3000, selected=2500)])
    assert not any("steps" in note or "Selected" in note for note in equal.notes)


def test_rows_of_different_training_length_are_tested_only_at_equal_time():
    rows = [row("short", 0.0, steps=3000), row("long", 0.1, steps=10_000)]
    table = comparison_table(rows)
    assert marked(table) == []
    assert any("not tested against each other" in note for note in table.notes)
    table = comparison_table(rows, equal_time=True)
    assert marked(table) == ["long"]
    assert any("The training time was the same." in note for note in table.notes)
    assert marked(comparison_table([rows[0], row("unknown", 0.1)])) == ["unknown"]  # samples of other programs
    assert marked(comparison_table([*rows, row("longer", 0.2, steps=10_000)])) == ["longer"]


def test_compare_sets_methods_aside(cli, tmp_path, trained, lesions):
    for name in ("one", "two"):
        words = ("--data", lesions, "--num-samples", "2", "--method", name, "--out", tmp_path / name)
        assert cli("evaluate", trained(), *words).code == 0
    folders = [tmp_path / "one", tmp_path / "two"]
    done = cli("compare", *folders, "--out", tmp_path / "report", "--set-aside", "two")
    assert done.code == 0
    assert "two †" in done.out
    assert "two" in cli("compare", *folders, "--out", tmp_path / "other", "--set-aside", "tow").err
