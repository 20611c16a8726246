"""The demo: from an empty folder to a report, and reuse of finished parts."""

import csv
import json
import math

import pytest

from phiseg.core.errors import ConfigError, DataError
from phiseg.experiment import demo as module
from phiseg.experiment.demo import METHODS, demo
from phiseg.training.recipe import load_recipe

SCORES = ("ged", "ged_unbiased", "ged_floor", "s_ncc", "dice")


@pytest.fixture(autouse=True, scope="module")
def tiny_recipes():
    """Give the demo's two recipes networks that train in a second."""
    tiny = ["--model.channels=[4, 4, 8]", "--train.batch_size=4", "--train.recalibration_batches=2"]

    def load(name, overrides=()):
        if name not in METHODS:
            return load_recipe(name)
        levels = ["--model.num_levels=2"] if name.startswith("phiseg") else []
        return load_recipe(name, [*overrides, *tiny, *levels])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "load_recipe", load)
        yield


def run(folder, **changes):
    settings = {"size": 16, "num_cases": 10, "steps": 2, "num_samples": 3} | changes
    return demo(folder, **settings, progress=False)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return the folder and the table of a finished demo; copy it before changing it."""
    folder = tmp_path_factory.mktemp("finished") / "demo"
    return folder, run(folder)


@pytest.fixture
def no_report(monkeypatch):
    """Leave out the last step, whose drawing takes longer than everything else."""
    monkeypatch.setattr(module, "compare", lambda *_, **__: None)


def times(folder, pattern):
    return {path: path.stat().st_mtime_ns for path in folder.glob(pattern) if path.is_file()}


def test_demo_writes_runs_evaluations_table_and_report(finished):
    folder, table = finished
    for name in METHODS:
        summary = json.loads((folder / f"{name}-eval" / "summary.json").read_text())
        assert summary["method"] == name
        assert summary["num_samples"] == 3
        assert summary.keys() >= {"num_cases", "num_samples", *SCORES}
        with (folder / f"{name}-eval" / "cases.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == summary["num_cases"] == 2
        assert rows[0].keys() >= {"case", *SCORES}
        assert (folder / name / "model" / "model.safetensors").exists()
    with (folder / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == list(METHODS)
    assert rows[0].keys() >= {"method", "ged", "ged_floor", "s_ncc", "dice"}
    assert "<html" in (folder / "report.html").read_text()
    assert len(table.rows) == 2


def test_demo_rejects_other_number_of_steps(finished):
    folder, _ = finished
    before = times(folder, "**/*")
    with pytest.raises(DataError, match=r"other settings \(steps 2\); choose another --out or remove it"):
        run(folder, steps=4)
    assert times(folder, "**/*") == before


@pytest.mark.usefixtures("no_report")
def test_demo_validates_and_saves_three_times(tmp_path, monkeypatch):
    recipes = []
    monkeypatch.setattr(module, "train", lambda recipe, *_, **__: recipes.append(recipe))
    monkeypatch.setattr(module, "evaluate", lambda *_, **__: None)
    run(tmp_path / "demo", steps=500)
    for recipe in recipes:
        assert math.ceil(recipe.train.steps / recipe.train.validate_every) == 3
        assert recipe.train.checkpoint_every <= recipe.train.validate_every
    assert len(recipes) == len(METHODS)


def test_demo_methods_have_the_same_budget(finished):
    folder, _ = finished
    first, second = (load_recipe(str(folder / name / "config.yaml")) for name in METHODS)
    assert first.train == second.train.model_copy(update={"learning_rate": first.train.learning_rate})
    assert first.augment == second.augment


def test_second_demo_reuses_results(finished):
    folder, first = finished
    patterns = ("data/*", "*/model/*", "*/state/*", "*-eval/*")
    before = [times(folder, pattern) for pattern in patterns]
    assert all(before)
    table = (folder / "table.csv").read_bytes()
    assert run(folder) == first
    assert [times(folder, pattern) for pattern in patterns] == before
    assert (folder / "table.csv").read_bytes() == table


@pytest.mark.usefixtures("no_report")
def test_other_number_of_samples_keeps_trainings(finished, copy):
    folder = copy(finished[0])
    before = times(folder, "*/model/*")
    run(folder, num_samples=4)
    assert times(folder, "*/model/*") == before
    for name in METHODS:
        assert json.loads((folder / f"{name}-eval" / "summary.json").read_text())["num_samples"] == 4


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.usefixtures("no_report")
def test_interrupted_demo_resumes_to_the_same_scores(finished, tmp_path, monkeypatch):
    train, evaluate = module.train, module.evaluate
    for name, original in (("train", train), ("evaluate", evaluate)):  # ends after the first training or evaluation
        with monkeypatch.context() as patch:
            patch.setattr(module, name, lambda *a, original=original, **k: _raise_after(original(*a, **k)))
            with pytest.raises(Killed):
                run(tmp_path / "demo")
    run(tmp_path / "demo")
    for file in (f"{name}-eval/cases.csv" for name in METHODS):
        assert (tmp_path / "demo" / file).read_bytes() == (finished[0] / file).read_bytes()


def _raise_after(_):
    raise Killed


@pytest.mark.parametrize(
    ("changes", "found"), [({"size": 18}, "size 16"), ({"num_cases": 11}, "num_cases 10"), ({"seed": 1}, "seed 0")]
)
def test_demo_rejects_folder_with_other_settings(changes, found, tmp_path):
    module.prepare_phantom("lesion", tmp_path / "demo" / "data", size=16, num_cases=10, progress=False)
    with pytest.raises(DataError, match=rf"demo was made with other settings \({found}\); choose another --out"):
        run(tmp_path / "demo", **changes)
    assert [path.name for path in (tmp_path / "demo").iterdir()] == ["data"]


@pytest.mark.parametrize("changes", [{"steps": 0}, {"num_samples": 0}, {"num_cases": 0}, {"size": 8}], ids=str)
def test_demo_rejects_numbers_out_of_range(changes, tmp_path):
    with pytest.raises(ConfigError):
        run(tmp_path / "demo", **changes)
    assert not list(tmp_path.glob("demo/*"))
