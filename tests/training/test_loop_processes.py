"""Training on two processes gives the results of one process."""

import json
import subprocess
import sys

import pytest

from helpers.comparing_runs import lines, state
from phiseg.models import load_model
from phiseg.training.loop import train

TRAIN = {"steps": 4, "validate_every": 4, "checkpoint_every": 2}


@pytest.fixture(scope="module")
def recipes(make_recipe, tmp_path_factory):
    """Return a function that writes a recipe for one device to a file."""
    folder = tmp_path_factory.mktemp("recipes")

    def write(model):
        path = folder / f"tiny-{model}.yaml"
        path.write_text(make_recipe(model, **TRAIN).to_yaml())
        return path

    return write


@pytest.fixture(scope="module")
def pairs(phiseg, recipes, make_recipe, lesions, tmp_path_factory):
    """Return a function that trains a model on one and on two processes."""
    folder = tmp_path_factory.mktemp("processes")

    def run(model):
        one, two = folder / f"{model}-1", folder / f"{model}-2"
        if not one.exists():
            train(make_recipe(model, **TRAIN), lesions, one, progress=False)
            done = phiseg("train", recipes(model), "--data", lesions, "--out", two, "--train.devices", 2)
            assert done.code == 0, done.err
            assert done.out.count("best model: ") == 1, "only one process speaks"
        return one, two

    return run


def assert_close(first, second, rel):
    """Compare losses and scores; the gradient norm amplifies rounding and is compared with a larger tolerance."""
    assert len(first) == len(second) > 0
    for a, b in zip(first, second, strict=True):
        assert a.keys() == b.keys()
        for name in a.keys() - {"kind"}:
            assert a[name] == pytest.approx(b[name], rel=1e-2 if name == "gradient_norm" else rel), (
                a["step"],
                name,
            )


@pytest.mark.parametrize(
    "model", ["phiseg", *(pytest.param(name, marks=pytest.mark.slow) for name in ("probunet", "hprobunet", "ssn"))]
)
def test_two_processes_give_same_losses_and_scores(model, pairs):
    one, two = pairs(model)
    assert_close(lines(one, "train"), lines(two, "train"), rel=1e-4)
    assert_close(lines(one, "val"), lines(two, "val"), rel=1e-3)
    assert json.loads((two / "environment.json").read_text())["processes"] == 2


def test_two_processes_give_same_weights_up_to_rounding(pairs):
    one, two = pairs("phiseg")
    found = load_model(two).state_dict()
    for name, tensor in load_model(one).state_dict().items():
        # The first steps of Adam have the size of the learning rate; where the gradient is nearly zero, their
        # direction depends on rounding
        assert (found[name].float() - tensor.float()).abs().max() < 5e-3, name


def test_state_of_two_processes_resumes_on_one(pairs, make_recipe, lesions, copy):
    one, two = pairs("phiseg")
    longer = make_recipe("phiseg", **TRAIN | {"steps": 8})
    first, second = copy(one, "one"), copy(two, "two")
    for folder in (first, second):
        train(longer, lesions, folder, resume=True, progress=False)
    assert state(second).step == 8
    assert_close(lines(first, "train"), lines(second, "train"), rel=1e-2)


NAN_IN_ONE_PROCESS = """
import math
import sys
from pathlib import Path

from phiseg.data.loader import TrainingStream
from phiseg.training.loop import train
from phiseg.training.recipe import load_recipe

original = TrainingStream.batch


def batch(self, step, device="cpu"):
    found = original(self, step, device)
    if step == 2 and self._share.start > 0:
        found.image[0, 0, 0, 0] = math.nan
    return found


TrainingStream.batch = batch
recipe, data, out = sys.argv[1:]
overrides = ["--train.devices=2", "--model.norm=group"]  # batch norm would propagate the NaN to the other process
train(load_recipe(recipe, overrides), Path(data), Path(out), progress=False)
"""


@pytest.mark.slow
def test_non_finite_step_in_one_process_is_skipped_by_both(recipes, lesions, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(NAN_IN_ONE_PROCESS)
    words = [sys.executable, script, recipes("phiseg"), lesions, tmp_path / "run"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = lines(tmp_path / "run", "train")
    assert [line["skipped"] for line in found] == [0, 0, 1, 1]
    assert all(tensor.isfinite().all() for tensor in state(tmp_path / "run").weights.values())


@pytest.mark.slow
def test_killed_run_of_two_processes_resumes_on_two(pairs, phiseg, recipes, lesions, copy, make_recipe):
    _, two = pairs("phiseg")
    folder = copy(two, "two")
    words = ("--data", lesions, "--out", folder, "--train.devices", 2, "--train.steps", 6, "--resume")
    done = phiseg("train", recipes("phiseg"), *words)
    assert done.code == 0, done.err
    assert state(folder).step == 6
    assert [line["step"] for line in lines(folder, "train")] == [1, 2, 3, 4, 5, 6]


@pytest.mark.slow
def test_state_of_one_process_resumes_on_two(pairs, phiseg, recipes, lesions, copy):
    one, two = pairs("phiseg")
    folders = copy(one, "one"), copy(two, "two")
    for folder in folders:
        words = ("--data", lesions, "--out", folder, "--train.devices", 2, "--train.steps", 6, "--resume")
        done = phiseg("train", recipes("phiseg"), *words)
        assert done.code == 0, done.err
    assert_close(*(lines(folder, "train") for folder in folders), rel=1e-3)
