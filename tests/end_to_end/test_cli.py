"""The command line in separate processes, from an empty folder to a report."""

import csv
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
import yaml

from helpers.small_volumes import make_volume, write_volumes
from phiseg import __version__
from phiseg.cli.main import COMMANDS
from phiseg.core.bundled import recipe_names
from phiseg.data.store import Dataset
from phiseg.metrics import gamma_map
from phiseg.models import load_model
from phiseg.training.recipe import load_recipe

SCORES = {"ged", "ged_unbiased", "ged_floor", "s_ncc", "dice"}
TRAIN = [
    *("--model.channels", "[4, 4, 8]", "--train.steps", "4", "--train.batch_size=4", "--train.validate_every", "2"),
    *("--train.checkpoint_every", "2", "--train.log_every", "1", "--train.recalibration_batches", "2"),
    *("--train.validation_samples", "2", "--train.accelerator", "cpu"),
]


@pytest.fixture(scope="module")
def tour(phiseg, tmp_path_factory):
    """Prepare, train two models, evaluate both, compare and sample; return the folder and what was printed."""
    folder = tmp_path_factory.mktemp("tour")
    printed = {}

    def step(name, *words):
        done = phiseg(*words, cwd=folder)
        assert done.code == 0, (words, done.err)
        assert "Traceback" not in done.err
        assert "Warning" not in done.err, done.err
        printed[name] = done.out

    step("prepare", "prepare", "phantom", "lesion", "data", "--size", 16, "--num-cases", 15)
    step("train", "train", "phiseg-small", "--data", "data", "--out", "phiseg", "--model.num_levels", 2, *TRAIN)
    step("train unet", "train", "unet-small", "--data", "data", "--out", "unet", *TRAIN)
    for name in ("phiseg", "unet"):
        step(f"evaluate {name}", "evaluate", name, "--data", "data", "--out", f"{name}-eval", "--num-samples", 4)
    step("compare", "compare", "phiseg-eval", "unet-eval", "--out", "report", "--title", "A tour")
    step("sample", "sample", "phiseg", "--data", "data", "--out", "samples", "--num-samples", 3, "--probs")
    step("info", "info")
    return folder, printed


def test_commands_print_results_and_next_step(tour):
    _, printed = tour
    assert "15 cases of 15 patients (9 train, 3 val, 3 test), 4 annotators" in printed["prepare"]
    assert "next:  phiseg train" in printed["prepare"]
    assert "next: phiseg evaluate phiseg --data data" in printed["train"]
    assert "phiseg-small on 3 test cases of 3 patients, 4 samples each" in printed["evaluate phiseg"]
    assert "report: report/report.html" in printed["compare"]
    assert "3 samples for each of 3 test cases" in printed["sample"]
    assert f"phiseg {__version__}" in printed["info"]
    assert all(name in printed["info"] for name in recipe_names())


def test_train_applies_overrides(tour):
    folder, _ = tour
    config = yaml.safe_load((folder / "phiseg" / "config.yaml").read_text())
    assert config["model"]["channels"] == [4, 4, 8]
    assert (config["train"]["steps"], config["train"]["batch_size"]) == (4, 4)
    assert config["augment"] == load_recipe("phiseg-small").augment.model_dump(mode="json")
    steps = [json.loads(line)["step"] for line in (folder / "phiseg" / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 2, 3, 4, 4]


def test_evaluate_writes_documented_files(tour):
    folder, _ = tour
    dataset = Dataset.open(folder / "data")
    for name in ("phiseg", "unet"):
        summary = json.loads((folder / f"{name}-eval" / "summary.json").read_text())
        assert summary.keys() >= {"num_cases", "num_samples"} | SCORES
        assert (summary["num_cases"], summary["num_samples"]) == (3, 4)
        with (folder / f"{name}-eval" / "cases.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert [row["case"] for row in rows] == [dataset.cases[row]["case"] for row in dataset.rows("test")]
        for score in SCORES:
            mean = np.mean([float(row[score]) for row in rows])
            assert summary[score] == pytest.approx(mean)


def test_compare_table_matches_evaluations(tour):
    folder, printed = tour
    with (folder / "report" / "table.csv").open(newline="") as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    assert list(rows) == ["phiseg-small", "unet-small"]
    for name, row in zip(("phiseg", "unet"), rows.values(), strict=True):
        summary = json.loads((folder / f"{name}-eval" / "summary.json").read_text())
        for score in ("ged", "ged_floor", "s_ncc", "dice"):
            assert float(row[score]) == pytest.approx(summary[score], abs=1e-4)
        assert row["method"] in printed["compare"]
    report = (folder / "report" / "report.html").read_text()
    assert "A tour" in report
    assert {path.name for path in (folder / "report").iterdir()} >= {
        "table.md",
        "table.tex",
        "samples.png",
        "curves.png",
    }


def test_sample_matches_model(tour):
    folder, _ = tour
    dataset, model = Dataset.open(folder / "data"), load_model(folder / "phiseg")
    arrays = {path.stem: np.load(path) for path in (folder / "samples").glob("*.npy")}
    assert {name: (array.shape, str(array.dtype)) for name, array in arrays.items()} == {
        "labels": ((3, 3, 16, 16), "uint8"),
        "mean_probs": ((3, 2, 16, 16), "float32"),
        "mean_log_probs": ((3, 2, 16, 16), "float32"),
        "gamma": ((3, 16, 16), "float32"),
        "probs": ((3, 3, 2, 16, 16), "float32"),
    }
    with (folder / "samples" / "cases.csv").open(newline="") as file:
        names = [row["case"] for row in csv.DictReader(file)]
    assert names == [dataset.cases[row]["case"] for row in dataset.rows("test")]
    assert np.array_equal(arrays["probs"].argmax(2), arrays["labels"])
    np.testing.assert_allclose(arrays["probs"].mean(1), arrays["mean_probs"], rtol=1e-5, atol=1e-7)
    gammas = [gamma_map(torch.from_numpy(probs)).numpy() for probs in arrays["probs"]]
    np.testing.assert_allclose(gammas, arrays["gamma"], rtol=1e-4, atol=1e-6)
    assert model.provenance["recipe"] == "phiseg-small"


# The same commands in this process: what else they print


def test_evaluate_and_sample_in_bfloat16(tour, cli, tmp_path, bfloat16):
    folder, _ = tour
    model, data = str(folder / "phiseg"), ("--data", str(folder / "data"), "--precision", bfloat16)
    for command, number in (("evaluate", "4"), ("sample", "3")):
        done = cli(command, model, *data, "--out", str(tmp_path / command), "--num-samples", number)
        assert done.code == 0, done.err
    summaries = [
        json.loads((place / "summary.json").read_text())
        for place in (folder / "phiseg-eval", tmp_path / "evaluate")
    ]
    assert [summary["precision"] for summary in summaries] == ["float32", "bfloat16"]
    assert summaries[0]["dice"] == pytest.approx(summaries[1]["dice"], abs=0.1)
    means = [np.load(place / "mean_probs.npy") for place in (folder / "samples", tmp_path / "sample")]
    assert means[1].dtype == np.float32
    assert not np.array_equal(*means)
    np.testing.assert_allclose(*means, rtol=0, atol=0.05)


def test_info_describes_dataset(tour, cli):
    folder, _ = tour
    told = cli("info", folder / "data").out
    for words in (
        "phantom-lesion",
        "15 (train 9 cases",
        "0 background, 1 lesion",
        "4 per case, 0 of 60",
        "phiseg prepare",
    ):
        assert words in told


def test_info_shows_spacing_along_each_axis(cli, tmp_path):
    columns = ({"slice_spacing_mm": 2.5}, {"slice_spacing_mm": 1.25}, {})
    write_volumes(tmp_path / "data", cases=(make_volume(i, columns=columns[i]) for i in range(3)), splits=None)
    assert "spacing 1.25-2.5 x 0.5 x 0.7 mm (unknown for 1 of 3 cases)" in cli("info", tmp_path / "data").out
    write_volumes(tmp_path / "unknown", spacing_mm=None)
    assert "spacing unknown\n" in cli("info", tmp_path / "unknown").out


def test_info_describes_run_and_model(tour, cli):
    folder, _ = tour
    told = cli("info", folder / "phiseg").out
    for words in ("model: phiseg", "channels: [4, 4, 8]", "recipe: phiseg-small", "posterior: ", "fingerprint"):
        assert words in told
    assert cli("info", folder / "phiseg" / "model").code == 0


@pytest.mark.parametrize("name", ["unet-small", "phiseg-small"])
def test_info_prints_usable_recipe(name, cli, tmp_path):
    told = cli("info", name).out
    path = tmp_path / f"{name}.yaml"
    path.write_text(told)
    assert load_recipe(str(path)) == load_recipe(name)
    assert "total: " in told


def test_config_of_a_run_is_a_recipe(tour, cli, tmp_path):
    folder, _ = tour
    words = ("--data", folder / "data", "--out", tmp_path / "again")
    assert cli("train", folder / "unet" / "config.yaml", *words).code == 0
    first, again = (
        (run / "model" / "model.safetensors").read_bytes() for run in (folder / "unet", tmp_path / "again")
    )
    assert first == again


def test_overwrite_replaces_results(tour, cli, tmp_path):
    folder, _ = tour
    for command in ("sample", "evaluate"):
        words = (folder / "phiseg", "--data", folder / "data", "--num-samples", 2, "--out", tmp_path / command)
        assert cli(command, *words, "--overwrite").code == 0
        assert cli(command, *words).code == 2
        assert cli(command, *words, "--overwrite").code == 0
    assert cli("compare", folder / "phiseg-eval", "--out", folder / "report").code == 2


# Help


HELP = """
import sys
from phiseg.cli.main import COMMANDS, main
for words in [["--help"], ["-h"], ["help"], [], ["--version"], ["prepare", "--help"]] + [
    [*name.split(), "--help"] for name in COMMANDS
]:
    try:
        main(words)
    except SystemExit as exit:
        assert exit.code in (0, None), words
    heavy = {"torch", "lightning_fabric", "matplotlib", "numpy", "scipy"} & sys.modules.keys()
    assert not heavy, (words, heavy)
"""


def test_help_does_not_import_torch():
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for name in COMMANDS:
        assert f"usage: phiseg {name}" in done.stdout, name


def test_command_and_module_are_the_same(phiseg):
    done = phiseg("--help")
    assert (done.code, done.err) == (0, "")
    words = [sys.executable, "-m", "phiseg", "--help"]
    assert subprocess.run(words, capture_output=True, text=True, timeout=300, check=False).stdout == done.out
    assert phiseg("--version").out == f"phiseg {__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_ends_with_examples(name, cli):
    done = cli(*name.split(), "--help")
    assert done.code == 0
    examples = done.out.rpartition("\nExamples:\n")[2].splitlines()
    assert examples
    assert all(line.startswith(f"  phiseg {name}") for line in examples)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_states_what_happens_without_an_option(name, cli):
    shown = " ".join(cli(*name.split(), "--help").out.replace("│", " ").replace("|", " ").split())
    assert "(default: None)" not in shown
    assert "(default: )" not in shown
    assert "(default: False)" not in shown


def test_help_is_wrapped_to_the_terminal(cli, monkeypatch):
    for columns in (60, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        description = cli("predict", "--help").out.partition("positional arguments")[0].split("\n\n", 1)[1]
        assert max(map(len, description.splitlines())) <= min(columns, 100)


def test_help_of_an_option_is_one_paragraph(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    shown = cli("prepare", "lidc", "--help").out
    assert "with empty masks, so that a model can learn where nodules end." in shown  # two lines in the source


@pytest.mark.slow
def test_second_demo_reuses_results(phiseg, tmp_path):
    words = ("demo", "--out", tmp_path / "demo", "--steps", 2, "--size", 16, "--num-cases", 10, "--num-samples", 4)
    first = phiseg(*words)
    assert first.code == 0, first.err
    kept = [path for pattern in ("*/model/*", "*-eval/*", "data/*") for path in (tmp_path / "demo").glob(pattern)]
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in kept}
    assert len(before) > 15
    second = phiseg(*words)
    assert second.code == 0, second.err
    assert second.out == first.out
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in kept} == before
