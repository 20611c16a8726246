"""`phiseg data check`, `data show` and `data split`."""

import hashlib
import json

import numpy as np
import pytest
from matplotlib.image import imread

from phiseg.core.errors import TrainingError
from phiseg.core.files import OVERWRITE
from phiseg.data.store import Dataset
from phiseg.training.loop import train


def test_check_prints_a_report_and_writes_it_as_json(cli, gaps, tmp_path):
    done = cli("data", "check", gaps, "--json", tmp_path / "report.json")
    assert done.code == 0
    for text in ("15 cases of 15 patients", "GED floor, if annotators", "no problems found", "lesion"):
        assert text in done.out
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["problems"] == []
    assert f"over all {report['agreement']['pairs']} pairs: {report['agreement']['iou']:.3f}" in done.out
    again = cli("data", "check", gaps, "--json", tmp_path / "report.json")
    assert (again.code, again.out) == (2, "")
    assert again.err.strip().endswith(f"already exists; choose another name or {OVERWRITE}")
    assert cli("data", "check", gaps, "--json", tmp_path / "report.json", "--overwrite").code == 0


@pytest.mark.parametrize("names", [None, ["1", "2", "anna", "ben"]])
def test_check_names_annotators_as_the_dataset_does(cli, gaps, copy, names):
    folder = copy(gaps)
    info = json.loads((folder / "dataset.json").read_text())
    info["source"] |= {"raters": names} if names else {}
    (folder / "dataset.json").write_text(json.dumps(info))
    lines = cli("data", "check", folder).out.splitlines()
    start = lines.index("annotators: cases annotated, missing, empty") + 1
    rows = [line.rsplit(maxsplit=3) for line in lines[start : start + 4]]
    assert [name.strip() for name, *_ in rows] == (names or [f"annotator {number}" for number in range(4)])
    missing = (~Dataset.open(gaps).valid).sum(axis=0).tolist()
    assert [int(number) for _, _, number, _ in rows] == missing


def test_check_lists_all_problems_and_ends_with_one_line(cli, copy, lesions, replace_arrays, tmp_path):
    folder = copy(lesions)
    labels = np.load(folder / "labels.npy")
    labels[[2, 5], 1, 0, 0] = 9
    replace_arrays(folder, labels=labels)
    done = cli("data", "check", folder, "--json", tmp_path / "report.json")
    assert done.code == 2
    assert done.out.count("problem: ") == done.out.count("label 9 is not one of the classes") == 2
    assert done.err.splitlines()[-1] == f"phiseg: error: 2 problems in {folder}; fix what is listed above"
    assert len(json.loads((tmp_path / "report.json").read_text())["problems"]) == 2


def test_show_writes_picture_and_keeps_existing_file(cli, zones, tmp_path):
    out = tmp_path / "sheets" / "sheet.png"
    done = cli("data", "show", zones, "--out", out, "--num", "3", "--order", "disagreement")
    assert (done.code, done.out) == (0, f"{out}: 3 of 10 cases\n")
    assert min(imread(out).shape[:2]) > 300
    before = out.read_bytes()
    refused = cli("data", "show", zones, "--out", out)
    assert refused.code == 2
    assert refused.err == f"phiseg: error: {out} already exists; choose another name or {OVERWRITE}\n"
    assert out.read_bytes() == before
    assert cli("data", "show", zones, "--out", out, "--num", "1", "--overwrite").code == 0
    assert out.read_bytes() != before
    assert [path.name for path in out.parent.iterdir()] == ["sheet.png"]


def test_show_rejects_invalid_output(cli, lesions, tmp_path):
    (tmp_path / "folder.png").mkdir()
    for out, problem in (
        (tmp_path / "sheet.pdf", "ends in .png"),
        (tmp_path / "folder.png", "is a folder; pass the name of a file"),
        (lesions / "dataset.json" / "sheet.png", "is not a writable directory"),
    ):
        done = cli("data", "show", lesions, "--out", out)
        assert done.code == 2
        assert problem in done.err
        assert done.err.count("\n") == 1


@pytest.mark.parametrize("fractions", ["40,20,40", "0.4,0.2,0.4", "0.4 0.2 0.4"])
def test_split_replaces_splits_and_prints_counts(fractions, cli, copy, lesions):
    folder = copy(lesions)
    manifest = (folder / "dataset.json").read_bytes()
    done = cli("data", "split", folder, "--seed", "3", "--fractions", fractions)
    assert done.code == 0
    assert done.out.splitlines() == [
        "before: train 9 cases of 9 patients, val 3 cases of 3 patients, test 3 cases of 3 patients",
        "after:  train 6 cases of 6 patients, val 3 cases of 3 patients, test 6 cases of 6 patients",
    ]
    assert done.err == (
        "phiseg: warning: models trained on the old splits have seen other patients; retrain them\n"
    )
    dataset = Dataset.open(folder)
    assert (folder / "dataset.json").read_bytes() == manifest
    assert json.loads((folder / "splits.json").read_text())["seed"] == 3
    assert sorted(patient for part in dataset.splits.values() for patient in part) == sorted(
        case["patient"] for case in dataset.cases
    )
    again = cli("data", "split", folder, "--seed", "3", "--fractions", fractions)
    assert "the splits are unchanged" in again.out
    assert again.err == ""


@pytest.mark.parametrize(
    ("fractions", "problem"),
    [
        ("0,50,50", "a positive share of train"),
        ("60,20", "60,20 are 2 numbers; give three"),
        ("60,20,30", "60,20,30 are invalid; they must sum to 1 or 100"),
        ("most,some,few", "'most,some,few' are not numbers"),
        ("-20,60,60", "without negative numbers"),
    ],
)
def test_split_rejects_invalid_fractions(fractions, problem, cli, copy, lesions):
    folder = copy(lesions)
    before = (folder / "splits.json").read_bytes()
    done = cli("data", "split", folder, f"--fractions={fractions}")
    assert done.code == 2
    assert problem in done.err
    assert done.err.count("\n") == 1
    assert (folder / "splits.json").read_bytes() == before


def test_split_rejects_empty_train_split(cli, copy, lesions):
    folder = copy(lesions)
    table = (folder / "cases.csv").read_text().splitlines()
    rows = [line.split(",") for line in table[1:]]
    one_patient = [",".join([name, "someone", *rest]) for name, _, *rest in rows]
    (folder / "cases.csv").write_text("\n".join([table[0], *one_patient]))
    (folder / "splits.json").write_text('{"train": ["someone"]}')
    done = cli("data", "split", folder, "--fractions", "10,80,10")
    assert done.code == 2
    assert "which has 1;" in done.err
    assert "train would contain no patient" in done.err
    assert Dataset.open(folder).splits == {"train": ["someone"]}


def test_old_split_prevents_resume_and_warns_in_evaluation(cli, copy, lesions, trained, make_recipe, tmp_path):
    folder = copy(lesions, "data")
    run = copy(trained(), "run")
    words = ("evaluate", run, "--data", folder, "--num-samples", "2")
    assert "leak" not in cli(*words, "--out", tmp_path / "before").err
    seen = set(Dataset.open(folder).splits["train"])
    assert cli("data", "split", folder, "--seed", "3").code == 0
    tested = Dataset.open(folder).splits["test"]
    leaked = len(seen.intersection(tested))
    assert leaked > 0
    warnings = [line for line in cli(*words, "--out", tmp_path / "after").err.splitlines() if "trained on" in line]
    assert warnings == [
        f"phiseg: warning: leak: {leaked} of the {len(tested)} patients in split 'test' were trained on, "
        "so these are not test scores"
    ]
    with pytest.raises(TrainingError, match="another split"):
        train(make_recipe(steps=9), folder, run, resume=True, progress=False)


def evaluate_warnings(cli, run, data, split, out):
    done = cli("evaluate", run, "--data", data, "--split", split, "--num-samples", "2", "--out", out)
    assert done.code == 0, done.err
    return [line for line in done.err.splitlines() if "leak" in line]


def test_training_patients_are_recognised_in_reprepared_dataset(cli, copy, lesions, trained, gaps, tmp_path):
    """The gaps are the lesions' patients with other labels, and so with another fingerprint."""
    assert Dataset.open(gaps).fingerprint != Dataset.open(lesions).fingerprint
    number = len(Dataset.open(gaps).splits["train"])
    (warning,) = evaluate_warnings(cli, trained(), gaps, "train", tmp_path / "gaps")
    assert (
        f"{number} of the {number} patients in split 'train' have the ids of patients that were trained" in warning
    )
    assert "unless these are other people" in warning
    folder = copy(gaps, "renamed")
    for name in ("cases.csv", "splits.json"):
        text = (folder / name).read_text()
        (folder / name).write_text(text.replace("lesion-", "Lesion_"))
    assert Dataset.open(folder).splits["train"][0].startswith("Lesion_")
    assert evaluate_warnings(cli, trained(), folder, "train", tmp_path / "eval") == [warning]
    config = (trained() / "model" / "config.json").read_text()
    assert not any(name in config for name in Dataset.open(gaps).splits["train"])


def test_evaluate_warns_on_selection_or_calibration_split(cli, copy, lesions, trained, tmp_path):
    run = copy(trained(), "run")
    assert evaluate_warnings(cli, run, lesions, "test", tmp_path / "test") == []
    (selected,) = evaluate_warnings(cli, run, lesions, "val", tmp_path / "val")
    assert "were used to select the model" in selected
    assert cli("calibrate", run, "--data", lesions, "--split", "test", "--num-samples", "2").code == 0
    path = run / "model" / "calibration.json"
    assert evaluate_warnings(cli, run, lesions, "test", tmp_path / "unused") == []  # it changed nothing
    path.write_text(json.dumps(json.loads(path.read_text()) | {"logits": 1.5}))
    (calibrated,) = evaluate_warnings(cli, run, lesions, "test", tmp_path / "calibrated")
    assert "were used to calibrate the model" in calibrated


def test_model_without_salt_recognises_its_own_patients(cli, copy, lesions, gaps, trained, tmp_path):
    run = copy(trained(), "run")
    dataset = Dataset.open(lesions)
    path = run / "model" / "config.json"
    stored = json.loads(path.read_text())
    del stored["provenance"]["patient_salt"], stored["provenance"]["val_patients"]
    stored["provenance"]["train_patients"] = [
        hashlib.sha256(f"{dataset.fingerprint}/{patient}".encode()).hexdigest()[:16]
        for patient in dataset.splits["train"]
    ]
    path.write_text(json.dumps(stored))
    (warning,) = evaluate_warnings(cli, run, lesions, "train", tmp_path / "own")
    assert "were trained on" in warning
    assert evaluate_warnings(cli, run, gaps, "train", tmp_path / "other") == []
    assert cli("calibrate", run, "--data", lesions, "--split", "test", "--num-samples", "2").code == 0
    path = run / "model" / "calibration.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"logits": 1.5}))
    (warning,) = evaluate_warnings(cli, run, lesions, "test", tmp_path / "calibrated")
    assert "were used to calibrate the model" in warning


@pytest.mark.parametrize("command", ["check", "show", "split"])
def test_help_of_data_commands_has_example(command, cli):
    done = cli("data", command, "--help")
    assert done.code == 0
    assert f"phiseg data {command} data" in done.out


def test_prepare_warns_about_missing_splits(cli, tmp_path):
    arrays = {
        "images": np.zeros((6, 8, 8), dtype=np.uint8),
        "masks": np.zeros((6, 1, 8, 8), dtype=np.uint8),
        "split": np.array(["train"] * 4 + ["validation"] * 2),
    }
    np.savez(tmp_path / "crops.npz", **arrays)
    done = cli("prepare", "arrays", tmp_path / "crops.npz", tmp_path / "data")
    assert done.code == 0
    for name in ("val", "test"):
        assert f"warning: split '{name}', needed for " in done.err
    assert "split 'train'" not in done.err


def test_group_help_lists_its_commands(cli):
    done = cli("data", "--help")
    assert done.code == 0
    assert "usage: phiseg data COMMAND" in done.out
    assert "data split" in done.out
    assert "prepare" not in done.out
