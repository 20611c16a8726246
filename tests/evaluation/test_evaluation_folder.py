import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from helpers.synthetic_evaluations import (
    PROVENANCE,
    forget_further_scores,
    forget_patients,
    make_cases,
    make_evaluation,
    write,
)
from phiseg.comparison.tables import comparison_table
from phiseg.core.errors import DataError, OutputError
from phiseg.evaluation.evaluation_folder import read_evaluation, read_training
from phiseg.evaluation.example_cases import Examples
from phiseg.evaluation.summary import Summary, patients_of
from phiseg.experiment.pooling import pool_trainings
from phiseg.metrics.score_registry import summary_scores
from phiseg.metrics.significance import patient_interval


@pytest.fixture
def folder(tmp_path):
    return write(make_evaluation(tmp_path / "eval", num_cases=6, num_levels=3, size=16, training=True))


def edit_summary(folder, **changes):
    values = json.loads((folder / "summary.json").read_text()) | changes
    (folder / "summary.json").write_text(json.dumps(values))


def edit_examples(folder, **changes):
    with np.load(folder / "examples.npz") as arrays:
        values = dict(arrays) | changes
    np.savez_compressed(folder / "examples.npz", **values)


def refuse(folder, name, match=None):
    with pytest.raises(DataError, match=match) as caught:
        read_evaluation(folder)
    message = str(caught.value)
    assert name in message
    assert "\n" not in message
    return message


def test_written_evaluation_is_read_back(tmp_path):
    cases = make_cases(0.8, num_cases=6) | {"volume": [1.5, None, 3.0, 4.0, 5.0, 6.0]}
    cases["case"][0] = 'slice "3", left'
    cases["case"][2:] = ["ü", "d", "e", "f"]
    cases["s_ncc"][1] = None
    cases["dice"] = [None] * 6
    cases["diversity"] = [None] * 6
    written = make_evaluation(tmp_path / "eval", num_levels=3, num_classes=3, size=16, training=True)
    examples = Examples(**vars(written.examples) | {"cases": np.array(cases["case"][:2])})
    summary = Summary.of(cases, pixel_scores={"ece": written.summary.ece}, method="phiseg", **PROVENANCE)
    written = replace(written, summary=summary, cases=cases, examples=examples)

    read = read_evaluation(write(written))
    assert read.cases == cases
    assert read.summary == summary
    assert read.training == written.training
    np.testing.assert_allclose(read.reliability, written.reliability)
    for name, array in vars(examples).items():
        np.testing.assert_array_equal(getattr(read.examples, name), array)


def test_summary_is_mean_of_defined_values():
    cases = make_cases(0.8, num_cases=4)
    cases["s_ncc"] = [0.5, None, 0.7, None]
    cases["dice"] = [None, None, None, 0.25]
    summary = Summary.of(cases, method="phiseg", **PROVENANCE)
    assert summary.ged == pytest.approx(np.mean(cases["ged"]))
    assert summary.s_ncc == pytest.approx(0.6)
    assert summary.dice == 0.25
    assert summary.intervals["s_ncc"] == patient_interval([0.5, 0.7], ["a", "b"])
    assert "dice" not in summary.intervals
    assert summary.num_cases == 4


def test_summary_intervals_use_patients_and_trainings():
    cases = make_cases(0.8, num_cases=12)
    apart = Summary.of(cases, method="phiseg", **PROVENANCE)
    together = Summary.of(cases | {"patient": list("aaaabbbbcccc")}, method="phiseg", **PROVENANCE)
    assert (apart.num_patients, together.num_patients) == (12, 3)
    means = np.reshape(cases["ged"], (3, 4)).mean(1)
    expected = stats.t.interval(0.95, 2, means.mean(), stats.sem(means))
    assert together.intervals["ged"] == pytest.approx(expected)
    other = cases | {"ged": [value + 0.1 for value in cases["ged"]]}
    seeds = Summary.of(cases, trainings=[cases, other], method="phiseg", **PROVENANCE)
    assert np.ptp(seeds.intervals["ged"]) > 2 * np.ptp(apart.intervals["ged"])


def test_evaluation_without_patients_is_read(tmp_path):
    cases = make_cases(0.8, num_cases=6)
    del cases["patient"]
    read = read_evaluation(write(make_evaluation(tmp_path / "old", cases=cases, size=16)))
    assert "patient" not in read.cases
    assert read.summary.num_patients is None
    assert patients_of(read.cases) == read.cases["case"]


def test_optional_parts_may_be_absent(tmp_path):
    read = read_evaluation(write(make_evaluation(tmp_path / "eval", num_cases=3, size=16)))
    assert read.training == []
    assert read.examples.level_probs is None


def test_old_evaluation_is_read_and_compared(tmp_path):
    old = write(make_evaluation(tmp_path / "old", num_cases=6, size=16))
    expected = read_evaluation(old)
    forget_further_scores(old)
    read = read_evaluation(old)
    for name in ("hm_iou", "best_dice", "diversity", "diversity_annotators", "area_crps", "area_width"):
        assert read.cases[name] == [None] * 6
        assert getattr(read.summary, name) is None
    assert (read.summary.ece, read.reliability) == (None, None)
    new = read_evaluation(write(make_evaluation(tmp_path / "new", num_cases=6, size=16)))
    for name in ("ged", "ged_unbiased", "ged_floor", "s_ncc", "dice"):
        assert read.cases[name] == expected.cases[name]
    assert [row.ged for row in comparison_table([read, new]).rows] == [expected.summary.ged, new.summary.ged]


def test_patient_nodule_and_slice_are_read_as_text(tmp_path):
    names = {"patient": ["007", "7", "p, 1", "", "ü", "6"], "nodule": list("000112"), "slice": list("012010")}
    cases = {**make_cases(0.8, num_cases=6), **names}
    read = read_evaluation(write(make_evaluation(tmp_path / "new", num_cases=6, size=16, cases=cases)))
    assert {name: read.cases[name] for name in names} == names
    forget_patients(tmp_path / "new")
    old = read_evaluation(tmp_path / "new")
    assert not names.keys() & old.cases.keys()
    assert old.cases["ged"] == read.cases["ged"]
    assert old.summary == read.summary


@pytest.mark.parametrize("first", ["with patients", "without patients"])
def test_trainings_are_pooled_with_or_without_patients(tmp_path, first):
    """Also an older evaluation with a newer one; the scores are averaged, the names are those of the first."""
    names = {"patient": list("aabbcc"), "slice": list("010101")}
    known, unknown = make_cases(0.8, num_cases=6) | names, make_cases(0.6, num_cases=6)
    del unknown["patient"]
    pair = [known, unknown] if first == "with patients" else [unknown, known]
    pooled = pool_trainings([make_evaluation(tmp_path, num_cases=6, size=16, cases=cases) for cases in pair])
    np.testing.assert_allclose(pooled.cases["ged"], np.mean([known["ged"], unknown["ged"]], axis=0))
    assert {name: pooled.cases.get(name) for name in names} == (
        names if first == "with patients" else dict.fromkeys(names)
    )


def test_existing_folder_is_kept_without_overwrite(folder):
    with pytest.raises(OutputError, match="--overwrite"):
        write(make_evaluation(folder, num_cases=3, size=16))
    assert read_evaluation(folder).summary.num_cases == 6


def test_folder_of_several_evaluations_names_them(folder):
    for number in (100, 16):
        (folder.parent / "several" / f"samples-{number}").mkdir(parents=True)
        shutil.copy(folder / "summary.json", folder.parent / "several" / f"samples-{number}")
    with pytest.raises(
        DataError, match=r"evaluations \(samples-16, samples-100\); pass one, such as .*samples-100$"
    ):
        read_evaluation(folder.parent / "several")


@pytest.mark.parametrize("name", ["summary.json", "cases.csv", "examples.npz", "reliability.csv"])
def test_missing_file_is_rejected(folder, name):
    (folder / name).unlink()
    refuse(folder, name, "evaluate")


@pytest.mark.parametrize("name", ["summary.json", "cases.csv", "examples.npz", "reliability.csv", "training.jsonl"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.95])
def test_truncated_file_is_rejected(folder, name, share):
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[: int(share * len(data))])
    refuse(folder, name, "evaluate again")


@pytest.mark.parametrize("name", ["summary.json", "cases.csv", "examples.npz", "reliability.csv", "training.jsonl"])
@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"[[[1", b"\x93NUMPY", b"null", b'"a'])
def test_unrelated_file_is_rejected(folder, name, content):
    (folder / name).write_bytes(content)
    if (name, content) != ("training.jsonl", b""):  # a run that has not logged anything yet
        refuse(folder, name)


def test_damaged_examples_are_detected(folder):
    data = bytearray((folder / "examples.npz").read_bytes())
    data[len(data) // 2] ^= 0xFF
    (folder / "examples.npz").write_bytes(data)
    refuse(folder, "examples.npz")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"format": "other"}, "is not the summary of an evaluation"),
        ({"version": 2}, "version 2, but only version 1 is supported"),
        ({"num_cases": 7}, "6 rows, but summary.json states 7"),
        ({"num_cases": "many"}, "num_cases"),
        ({"ged": 0.123}, "mean of 'ged'"),
        ({"dice": None}, "mean of 'dice'"),
        ({"ged": float("nan")}, "ged"),
        ({"hm_iou": None}, "mean of 'hm_iou'"),
        ({"ece": 0.5}, "calibration error differs from summary.json"),
        ({"metod": "x"}, "did you mean 'method'"),
        ({"method": "two\nlines"}, "method"),
        ({"method": ""}, "method"),
    ],
)
def test_invalid_summary_is_rejected(folder, changes, match):
    edit_summary(folder, **changes)
    refuse(folder, str(folder), match)


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ("case-0001", "case-0000", "twice"),
        ("s_ncc_constant", "other", "column 's_ncc_constant' is missing"),
        (",4.0,", ",four,", "not a table of numbers"),
        (",4.0,", ",inf,", "not finite"),
        (",4.0,", ",", "not a table of numbers"),
        (",4.0,", ",4.0,4.0,", "incomplete"),
    ],
)
def test_invalid_cases_csv_is_rejected(folder, old, new, match):
    text = (folder / "cases.csv").read_text()
    assert old in text
    (folder / "cases.csv").write_text(text.replace(old, new, 1))
    refuse(folder, "cases.csv", match)


def test_invalid_examples_are_rejected(folder):
    shape = (2, 16, 16)
    for changes, match in [
        ({"gamma": np.zeros((2, 16, 15), np.float32)}, "'gamma' has W = 15"),
        ({"gamma": np.zeros((16, 16), np.float32)}, "'gamma'"),
        ({"gamma": np.full(shape, np.nan, np.float32)}, "not finite"),
        ({"samples": np.zeros((2, 8, 16, 16), np.float32)}, "'samples' is float32"),
        ({"cases": np.array(["case-0000", "nobody"])}, "'nobody' is not in cases.csv"),
        ({"image": np.array([[["x" * 3]]], dtype=object)}, "allow_pickle"),
        ({"annotators": np.array(["anna", "ben"])}, "'annotators' has A = 2, but other arrays have 4"),
        ({"classes": np.array([0, 1])}, "'classes' is int64"),
    ]:
        original = (folder / "examples.npz").read_bytes()
        edit_examples(folder, **changes)
        refuse(folder, "examples.npz", match)
        (folder / "examples.npz").write_bytes(original)
    read_evaluation(folder)


def test_examples_without_names_have_numbers(folder):
    examples = read_evaluation(folder).examples  # as in older evaluations
    assert examples.annotator_names == ["annotator 0", "annotator 1", "annotator 2", "annotator 3"]
    assert examples.class_names == ["class 0", "class 1"]
    edit_examples(folder, annotators=np.array(["1", "2", "ü", "d"]), classes=np.array(["background", "lesion"]))
    examples = read_evaluation(folder).examples
    assert examples.annotator_names == ["1", "2", "ü", "d"]
    assert examples.class_names == ["background", "lesion"]


def test_levels_come_with_their_residuals(folder):
    examples = read_evaluation(folder).examples
    with pytest.raises(ValueError, match="both be present or absent"):
        Examples(**vars(examples) | {"level_probs": None})


def test_training_keeps_finite_numbers_only(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "kind": "train", "loss": 2.5, "kl/0": NaN, "note": "x", "flag": true}\n')
    assert read_training(path) == [{"step": 1, "kind": "train", "loss": 2.5}]
    path.write_text('{"step": "one", "kind": "train"}\n')
    with pytest.raises(DataError, match="line 1"):
        read_training(path)


def test_summary_has_every_score_as_key_and_attribute(folder):
    written = json.loads((folder / "summary.json").read_text())
    names = [score.name for score in summary_scores(2)]
    assert [key for key in written if key in names] == names
    summary = read_evaluation(folder).summary
    assert {name: getattr(summary, name) for name in names} == {name: written[name] for name in names}
    for name in ("gedd", "num_annotators", "ged_excess"):  # the last two are scores, but not in the summary
        with pytest.raises(AttributeError, match=f"no '{name}'"):
            getattr(summary, name)
