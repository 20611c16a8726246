"""The experiment: rows as jobs that are skipped, resumed or reported, and one report of all of them."""

import csv
import gzip
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from phiseg.core.bundled import recipe_names
from phiseg.core.errors import ConfigError, DataError, OutputError
from phiseg.core.files import one_process
from phiseg.data.store import Dataset
from phiseg.evaluation.evaluation_folder import read_evaluation
from phiseg.experiment import runner
from phiseg.experiment.experiment_report import write_experiment_report
from phiseg.experiment.pooling import pool_trainings
from phiseg.experiment.runner import (
    ExperimentJob,
    Plan,
    list_experiment_jobs,
    open_experiment,
    run_all,
    run_job,
    unfinished_jobs,
)
from phiseg.training.budget import seconds_per_step
from phiseg.training.recipe import load_recipe

PLAN = Plan(steps=4, num_samples=6, overrides=("--train.validation_samples=2", "--train.validate_every=2"))


@pytest.fixture(scope="module")
def recipes(make_recipe, tmp_path_factory):
    """Recipes of three methods as files."""
    folder = tmp_path_factory.mktemp("recipes")
    for model in ("phiseg", "probunet", "unet"):
        (folder / f"{model}.yaml").write_text(make_recipe(model).to_yaml())
    return {model: str(folder / f"{model}.yaml") for model in ("phiseg", "probunet", "unet")}


@pytest.fixture(scope="module")
def done(recipes, lesions, tmp_path_factory):
    """An experiment with two methods in both regimes, two seeds of one of them."""
    out = tmp_path_factory.mktemp("experiment") / "out"
    jobs = [
        *list_experiment_jobs([recipes["phiseg"], recipes["probunet"]], regimes=["all"], seeds=[0, 1]),
        *list_experiment_jobs([recipes["phiseg"], recipes["unet"]], regimes=["one"]),
    ]
    open_experiment(out, PLAN, lesions)
    for job in jobs:
        run_job(job, PLAN, lesions, out, progress=False)
    tables = write_experiment_report(lesions, out, set_aside=["probunet"])
    return out, jobs, tables


# Which rows there are --------------------------------------------------------------------------------


def test_deterministic_method_has_one_regime():
    names = [job.name for job in list_experiment_jobs()]
    assert "all/phiseg-small/seed-0" in names
    assert "one/unet-small/seed-0" in names
    assert "all/unet-small/seed-0" not in names, "as in the paper"
    assert len(names) == 2 * len(runner.METHODS) - 1
    small = {name for name in recipe_names() if name.endswith("-small") and load_recipe(name).model.dims == 2}
    assert set(runner.METHODS) == small - {"phiseg-ensemble-small"}, "several trainings are no equal budget"


def test_all_methods_have_the_same_widths_and_augmentation():
    recipes = [load_recipe(name) for name in runner.METHODS]
    assert len({recipe.model.channels for recipe in recipes}) == 1
    assert len({recipe.augment for recipe in recipes}) == 1


def test_rows_are_chosen_by_pattern_and_seed():
    jobs = list_experiment_jobs(
        ["probunet-small", "phiseg-small"], seeds=[0, 1], rows=["*/phiseg*/*", "one/*/seed-1"]
    )
    assert [job.name for job in jobs] == [
        "all/phiseg-small/seed-0",
        "all/phiseg-small/seed-1",
        "one/probunet-small/seed-1",
        "one/phiseg-small/seed-0",
        "one/phiseg-small/seed-1",
    ]


@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        ({"methods": ["phisge-small"]}, "did you mean 'phiseg-small'.*probunet-small, .*hprobunet-small"),
        ({"methods": ["unet-small"], "regimes": ["all"]}, "a deterministic method has only regime one"),
        ({"methods": ["unet-small"], "rows": ["all/*"]}, "no row matches"),
        ({"methods": ["unet-small", "unet-small"]}, "two rows are named 'one/unet-small/seed-0'"),
    ],
)
def test_invalid_rows_are_rejected(choice, reason):
    with pytest.raises(ConfigError, match=reason):
        list_experiment_jobs(**choice)


def test_rows_whose_names_differ_only_in_case_are_rejected(tmp_path):
    files = [tmp_path / "own.yaml", tmp_path / "others" / "Own.yaml"]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.write_text(load_recipe("unet-small").to_yaml())
    with pytest.raises(ConfigError, match="two rows are named 'one/own/seed-0', ignoring case"):
        list_experiment_jobs(list(map(str, files)))


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        ({}, "either steps or minutes"),
        ({"steps": 3, "minutes": 1}, "either steps or minutes"),
        ({"steps": 3, "overrides": ["--train.seed=3"]}, "use --seeds"),
        ({"steps": 3, "overrides": ["--train.annotator", "1"]}, "use --expert"),
    ],
)
def test_plan_rejects_conflicting_settings(plan, reason):
    with pytest.raises(ConfigError, match=reason):
        Plan.parse(plan, where="the test")


# What a row is ---------------------------------------------------------------------------------------


def test_row_uses_its_regime_seed_and_budget(done):
    out, _, _ = done
    every = load_recipe(str(out / "rows/all/phiseg/seed-1/run/config.yaml")).train
    assert (every.annotator, every.seed, every.steps, every.select_by) == ("random", 1, 4, "ged_unbiased")
    one = load_recipe(str(out / "rows/one/phiseg/seed-0/run/config.yaml")).train
    assert (one.annotator, one.select_by) == (0, "loss"), "no other expert has a say"
    evaluation = read_evaluation(out / "rows/one/phiseg/seed-0/eval")
    assert evaluation.summary.dice_annotator == 0, "Dice is against the expert that was learned from"
    assert evaluation.summary.num_samples == 6


def test_row_records_provenance(done):
    out, _, _ = done
    row = json.loads((out / "rows/all/probunet/seed-0/row.json").read_text())
    assert row["steps"] == 4
    assert row["plan"]["num_samples"] == 6
    assert row["packages"].keys() >= {"phiseg", "torch"}
    assert "commit" in row
    noted = json.loads((out / "experiment.json").read_text())
    assert row["dataset"] == noted["dataset"]["fingerprint"]


def test_finished_row_is_unchanged(done, lesions):
    out, jobs, _ = done
    files = {path: path.stat().st_mtime_ns for path in (out / "rows").rglob("*") if path.is_file()}
    run_job(jobs[0], PLAN, lesions, out, progress=False)
    assert {path: path.stat().st_mtime_ns for path in files} == files


@pytest.mark.parametrize("part", ["train", "evaluate"])
def test_interrupted_row_resumes_to_identical_result(part, done, lesions, tmp_path, monkeypatch):
    out, jobs, _ = done
    original = getattr(runner, part)

    def stops(*arguments, **options):
        if part == "train":  # in the middle: after its second step
            recipe, *others = arguments
            short = recipe.model_copy(update={"train": recipe.train.model_copy(update={"steps": 2})})
            original(short, *others, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, part, stops)
    with pytest.raises(KeyboardInterrupt):
        run_job(jobs[0], PLAN, lesions, tmp_path, progress=False)
    monkeypatch.undo()
    assert unfinished_jobs(jobs[:1], PLAN, lesions, tmp_path) == jobs[:1]
    run_job(jobs[0], PLAN, lesions, tmp_path, progress=False)
    for name in ("run/metrics.jsonl", "run/model/model.safetensors", "eval/cases.csv", "eval/summary.json"):
        files = [folder / "rows" / jobs[0].name / name for folder in (tmp_path, out)]
        if part == "evaluate" or name != "run/metrics.jsonl":  # the short run logged and validated its own end
            assert files[0].read_bytes() == files[1].read_bytes()


def test_row_of_another_recipe_with_same_name_is_rejected(done, recipes, lesions, tmp_path):
    out, jobs, _ = done
    other = tmp_path / "phiseg.yaml"
    other.write_text(load_recipe(recipes["phiseg"], ["--model.latent_channels=3"]).to_yaml())
    with pytest.raises(ConfigError, match=r"started with model\.latent_channels = 2, but now it is 3"):
        unfinished_jobs([ExperimentJob("all", str(other), 0)], PLAN, lesions, out)
    assert unfinished_jobs(jobs, PLAN, lesions, out) == []


def test_budget_in_minutes_is_converted_once(recipes, lesions, tmp_path, monkeypatch):
    plan = PLAN.model_copy(update={"steps": None, "minutes": 0.5})
    job = ExperimentJob("all", recipes["unet"], 0)
    monkeypatch.setattr(runner, "seconds_per_step", lambda *_: 6.0)
    run_job(job, plan, lesions, tmp_path, progress=False)
    assert load_recipe(str(tmp_path / "rows" / job.name / "run/config.yaml")).train.steps == 5
    monkeypatch.setattr(runner, "seconds_per_step", lambda *_: 1.0)
    shutil.rmtree(tmp_path / "rows" / job.name / "eval")
    run_job(job, plan, lesions, tmp_path, progress=False)
    row = json.loads((tmp_path / "rows" / job.name / "row.json").read_text())
    assert (row["steps"], row["measured_seconds_per_step"]) == (5, 6.0)


@pytest.mark.parametrize("model", ["phiseg", "unet"])
def test_step_time_is_positive(recipes, lesions, model):
    seconds = seconds_per_step(load_recipe(recipes[model]), Dataset.open(lesions), num_steps=2)
    assert 0 < seconds < 60


@pytest.mark.parametrize("setting", ["devices", "num_nodes"])
def test_several_processes_are_rejected(setting, recipes, lesions, tmp_path):
    plan = PLAN.model_copy(update={"overrides": (f"--train.{setting}=2",)})
    jobs = [ExperimentJob("all", recipes["unet"], 0)]
    with pytest.raises(ConfigError, match="trained by one process; to use several devices, start"):
        unfinished_jobs(jobs, plan, lesions, tmp_path)


def test_row_is_locked_by_a_process(recipes, lesions, tmp_path):
    job = ExperimentJob("all", recipes["unet"], 0)
    locked = one_process(tmp_path / "rows" / job.name, "running this row")
    with locked, pytest.raises(OutputError, match="another process is running"):
        run_job(job, PLAN, lesions, tmp_path, progress=False)


def test_other_data_or_plan_is_rejected(done, lesions, zones, tmp_path):
    out, _, _ = done
    open_experiment(out, PLAN, lesions)
    with pytest.raises(DataError, match="another plan"):
        open_experiment(out, PLAN.model_copy(update={"num_samples": 7}), lesions)
    with pytest.raises(DataError, match="another dataset"):
        open_experiment(out, PLAN, zones)
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "report.html").touch()
    with pytest.raises(OutputError, match="is not the folder of an experiment"):
        open_experiment(tmp_path / "used", PLAN, lesions)
    with pytest.raises(ConfigError, match="no annotator 4; use --expert 0 to 3"):
        open_experiment(tmp_path / "new", PLAN.model_copy(update={"expert": 4}), lesions)


def test_experiment_killed_at_start_can_restart(lesions, tmp_path):
    left = tmp_path / "out" / ".experiment.json.999999999.tmp"
    left.parent.mkdir()
    left.write_text('{"plan"')
    open_experiment(tmp_path / "out", PLAN, lesions)
    assert [path.name for path in left.parent.iterdir()] == ["experiment.json"]


# All rows --------------------------------------------------------------------------------------------


def test_failed_row_is_reported_and_others_continue(tmp_path, capfd):
    jobs = [ExperimentJob("all", name, 0) for name in ("good", "bad", "killed")]
    commands = {
        "good": ["sh", "-c", "echo fine"],
        "bad": ["sh", "-c", "echo first; echo phiseg: error: no such thing >&2; exit 2"],
        "killed": ["sh", "-c", "kill -9 $$"],
    }
    failed = run_all(jobs, lambda job: commands[job.method], tmp_path, workers=2, progress=False)
    assert set(failed) == {"all/bad/seed-0", "all/killed/seed-0"}
    assert "phiseg: error: no such thing (exit code 2" in failed["all/bad/seed-0"]
    assert "row all/bad/seed-0 failed" in capfd.readouterr().err
    assert (tmp_path / "rows/all/good/seed-0/log.txt").read_text() == "fine\n"


SCRIPT = """
import signal
from pathlib import Path
from phiseg.experiment.runner import ExperimentJob, run_all
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
jobs = [ExperimentJob("all", str(n), 0) for n in range(4)]
run_all(jobs, lambda job: ["sh", "-c", "echo begun; exec sleep 1000"], Path({folder!r}), progress=False)
"""


@pytest.mark.parametrize("whole_group", [True, False])
def test_ctrl_c_ends_the_running_rows(tmp_path, whole_group):
    """A terminal interrupts the whole group of processes, `kill` only the one that it names."""
    words = [sys.executable, "-c", SCRIPT.format(folder=str(tmp_path))]
    process = subprocess.Popen(words, start_new_session=True, stderr=subprocess.PIPE)
    while not any(log.stat().st_size for log in tmp_path.rglob("log.txt")):
        time.sleep(0.05)
    (os.killpg if whole_group else os.kill)(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=300)  # a loaded machine needs more than a minute
    assert b"KeyboardInterrupt" in said
    assert len(list(tmp_path.rglob("log.txt"))) <= 2  # one more may have begun before the interrupt was seen


# The report ------------------------------------------------------------------------------------------


def test_report_has_table_and_figures_per_regime(done):
    out, _, tables = done
    assert list(tables) == ["Trained with all experts", "Trained with one expert"]
    assert [row.method for row in tables["Trained with all experts"].rows] == ["phiseg", "probunet †"]
    assert {"all-samples.png", "all-scores.png", "one-curves.png", "report.html", "table.md"} <= {
        path.name for path in out.iterdir()
    }
    page = (out / "report.html").read_text()
    assert page.count("Further scores") == 2
    assert "Trained with one expert" in page
    assert "Every row: 4 steps" in page
    assert "Dice is that of the mean prediction with annotator 0" in page
    rows = list(csv.DictReader((out / "table.csv").open()))
    assert [(row["block"], row["method"]) for row in rows][-1] == ("Trained with one expert", "unet")


def test_trainings_are_pooled_with_spread(done):
    out, _, tables = done
    trainings = [read_evaluation(out / f"rows/all/phiseg/seed-{seed}/eval") for seed in (0, 1)]
    row = tables["Trained with all experts"].rows[0]
    values = [training.summary.ged for training in trainings]
    assert row.ged == pytest.approx(np.mean(values))
    assert row.spread["ged"] == pytest.approx(abs(values[0] - values[1]) / np.sqrt(2))
    assert "±" in (out / "table.md").read_text()
    assert tables["Trained with one expert"].rows[0].spread == {}
    with gzip.open(out / "cases.csv.gz", "rt", newline="") as file:
        scores = [row for row in csv.DictReader(file) if row["block"] == "Trained with all experts"]
    second = [row for row in scores if (row["method"], row["training"]) == (trainings[1].summary.method, "2")]
    assert [float(row["ged"]) for row in second] == trainings[1].cases["ged"]
    assert [row["patient"] for row in second] == trainings[1].cases["patient"]
    pooled = pool_trainings(trainings)
    assert pooled.cases["ged"][2] == pytest.approx(np.mean([training.cases["ged"][2] for training in trainings]))


def test_report_requires_a_finished_row(lesions, tmp_path):
    with pytest.raises(DataError, match="no finished row"):
        write_experiment_report(lesions, tmp_path)


# The command -----------------------------------------------------------------------------------------


def test_dry_run_prints_commands_of_rows(recipes, lesions, tmp_path, cli):
    words = ["experiment", "table1", "--data", lesions, "--out", tmp_path / "out", "--steps", 2, "--num-samples", 3]
    words += ["--methods", recipes["phiseg"], recipes["unet"], "--regimes", "one", "--train.validation_samples", 2]
    printed = cli(*words, "--dry-run")
    assert not (tmp_path / "out").exists()
    first, second, last = printed.out.splitlines()
    assert last.startswith("# then, for the report: phiseg experiment table1")
    for line in (first, second):
        done = cli(*shlex.split(line)[1:])
        assert done.code == 0, done.err
    assert not (tmp_path / "out" / "report.html").exists()
    done = cli(*words)
    assert done.code == 0, done.err
    assert "Trained with one expert" in done.out
    assert (tmp_path / "out" / "report.html").is_file()


def test_failed_row_fails_the_command_after_the_report(recipes, lesions, tmp_path, cli):
    words = ["experiment", "table1", "--data", lesions, "--out", tmp_path / "out", "--steps", 2, "--num-samples", 3]
    words += ["--regimes", "one", "--methods", recipes["unet"], recipes["phiseg"], "--train.batch_size", 2]
    assert cli(*words, "--rows", "one/unet/*").code == 0
    (tmp_path / "out/rows/one/phiseg/seed-0").mkdir(parents=True)
    (tmp_path / "out/rows/one/phiseg/seed-0/run").write_text("a file where a folder belongs")
    done = cli(*words)
    assert done.code == 2
    assert "1 of 2 rows failed (one/phiseg/seed-0)" in done.err
    assert "unet" in done.out


def test_command_names_all_failed_rows(recipes, lesions, tmp_path, cli):
    words = ["experiment", "table1", "--data", lesions, "--out", tmp_path / "out", "--steps", 2, "--regimes", "one"]
    words += ["--methods", recipes["unet"], recipes["phiseg"], "--augment.quarter_turns", "true"]
    words += ["--train.learning_rate", "1e30"]
    done = cli(*words)
    assert done.code == 2
    assert "2 of 2 rows failed (one/unet/seed-0, one/phiseg/seed-0)" in done.err.splitlines()[-1]


def test_dataset_with_one_annotator_has_dice(recipes, lesions, tmp_path):
    """Regime `all` is that of its one annotator, and is selected by the loss."""
    from phiseg.data.writer import Case, write_dataset

    source = Dataset.open(lesions)
    one = write_dataset(
        tmp_path / "data",
        name="one",
        classes=source.info.classes,
        num_annotators=1,
        image_shape=source.images.shape[1:],
        image_dtype=source.images.dtype,
        intensity=source.info.intensity,
        cases=(
            Case(case["case"], case["patient"], source.images[row], source.labels[row, :1], np.array([True]))
            for row, case in enumerate(source.cases)
        ),
        splits=source.splits,
    )
    job = ExperimentJob("all", recipes["phiseg"], 0)
    run_job(job, PLAN, one.path, tmp_path / "out", progress=False)
    (table,) = write_experiment_report(one.path, tmp_path / "out").values()
    assert (table.rows[0].ged, table.rows[0].s_ncc) == (None, None)
    assert 0 <= table.rows[0].dice <= 1
    assert any("no case has two annotators" in note for note in table.notes)
