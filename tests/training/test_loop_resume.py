"""A killed and resumed run is bitwise identical to an uninterrupted run."""

import json
import os
import signal
import subprocess
import time

import pytest
from lightning_fabric.plugins.precision import Precision

from helpers.comparing_runs import assert_same_run, assert_same_state, contents, lines, state
from phiseg.core.errors import ConfigError, ModelError, OutputError, TrainingError
from phiseg.core.files import one_process
from phiseg.data.prepare.phantom import prepare_phantom
from phiseg.models import load_model, model_folder
from phiseg.training import loop
from phiseg.training.checkpoints import save_state
from phiseg.training.loop import train
from phiseg.training.tracking import Tracker

KILLED = {"steps": 12, "checkpoint_every": 6, "validate_every": 8, "batch_size": 8}


class Killed(BaseException):
    """Simulated kill; not caught by `except Exception`."""


@pytest.fixture
def run(make_recipe, lesions, tmp_path):
    """Return a function that trains in this process: states after steps 2, 3, 4 and 6, models after 3 and 6."""

    def run(name="run", *, data=lesions, model="phiseg", settings=None, **options):
        resume = options.pop("resume", False)
        recipe = make_recipe(model, settings=settings, **options)
        train(recipe, data, tmp_path / name, resume=resume, progress=False)
        return tmp_path / name

    return run


# The real thing: kill -9 of the command


@pytest.fixture(scope="module")
def undisturbed(make_recipe, lesions, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    recipe = make_recipe(**KILLED)
    (folder / "tiny-phiseg.yaml").write_text(recipe.to_yaml())
    train(recipe, lesions, folder / "run", progress=False)
    return folder


@pytest.mark.parametrize("when", [1, 7, pytest.param(10, marks=pytest.mark.slow)])
def test_resume_after_kill_9_is_identical(when, undisturbed, phiseg, lesions, tmp_path):
    words = ("train", undisturbed / "tiny-phiseg.yaml", "--data", lesions, "--out", tmp_path / "run")
    metrics, last = tmp_path / "run" / "metrics.jsonl", tmp_path / "run" / "state" / "last.pt"
    process = subprocess.Popen(phiseg.command(*words), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 60
    while not (metrics.exists() and metrics.read_text().count("train") >= when):
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < end
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert last.exists() == (when > 6)
    assert not (tmp_path / "run" / "model").exists() or when > 8
    resumed = phiseg(*words, "--resume")
    assert resumed.code == 0, resumed.err
    assert_same_run(tmp_path / "run", undisturbed / "run")


# Every awkward moment, one by one


def cut_short(self, step, kind, values):
    with self.path.open("a") as file:
        file.write(json.dumps({"step": step, "kind": kind, **values})[:20])
    raise Killed


MOMENTS = {
    "after the line of step 1": (Tracker, "write", 2, None),
    "in the middle of a line": (Tracker, "write", 5, cut_short),
    "before the first state": (loop, "save_state", 1, None),
    "after a line, before its state": (loop, "save_state", 3, None),
    "after the first model, before its state": (loop, "save_state", 2, None),
    "after the last model, before its state": (loop, "save_state", 4, None),
    "before the model's weights, after its config": (model_folder, "dump_tensors", 2, None),
    "in the middle of a validation": (loop, "validate", 2, None),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_resume_after_interruption_at_any_point_is_identical(moment, run, trained, monkeypatch):
    where, name, number, ending = MOMENTS[moment]
    original, calls = getattr(where, name), []

    def end(*args, **kwargs):
        calls.append(name)
        if len(calls) < number:
            return original(*args, **kwargs)
        if ending:
            ending(*args, **kwargs)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(where, name, end)
        with pytest.raises(Killed):
            run()
    assert_same_run(run(resume=True), trained())


def test_resume_ignores_partially_written_state(run, trained, tmp_path, copy):
    folder = copy(trained(), "run")
    whole = (folder / "state" / "last.pt").read_bytes()
    (folder / "state" / ".last.pt.123.tmp").write_bytes(whole[: len(whole) // 2])
    assert_same_run(run(resume=True), trained())


def test_resume_after_many_kills(run, trained, monkeypatch):
    original = loop._Training._optimise
    taken = {1: [0], 2: [0, 1], 3: [2], 4: [3], 5: [4]}  # steps before the last checkpoint are not repeated
    for last in taken:
        steps = []

        def end(self, batch, steps=steps, last=last):
            if self.step == last:
                raise Killed
            steps.append(self.step)
            return original(self, batch)

        with monkeypatch.context() as patch:
            patch.setattr(loop._Training, "_optimise", end)
            with pytest.raises(Killed):
                run(resume=True)
        assert steps == taken[last]
    assert_same_run(run(resume=True), trained())


@pytest.mark.parametrize("model", ["hprobunet", "probunet", "unet"])
def test_resume_works_for_all_models(model, run, trained, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(loop, "save_model", _raise_at(loop.save_model, 2))
        with pytest.raises(Killed):
            run(model=model)
    assert_same_run(run(model=model, resume=True), trained(model))


@pytest.mark.parametrize(
    "changes",
    [
        {"norm_statistics": "both"},
        {"norm_statistics": "running"},
        {"precision": "bf16-mixed"},
        {"schedule": "cosine"},
        {"settings": {"norm": "group"}},
    ],
    ids=str,
)
def test_resume_works_for_all_settings(changes, run, monkeypatch):
    changes = {"steps": 4, "validate_every": 4, **changes}
    whole = run("whole", **changes)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "save_state", _raise_at(loop.save_state, 2))
        with pytest.raises(Killed):
            run(**changes)
    assert_same_run(run(resume=True, **changes), whole)


def test_resume_restores_loss_scaler(run, monkeypatch):
    loaded = []
    monkeypatch.setattr(Precision, "state_dict", lambda _: {"scale": 1024.0})  # a real scaler needs a GPU
    monkeypatch.setattr(Precision, "load_state_dict", lambda _, stored: loaded.append(stored))
    run(steps=2)
    run(steps=4, resume=True)
    assert loaded == [{"scale": 1024.0}]


def _raise_at(function, number):
    calls = []

    def wrapped(*args, **kwargs):
        calls.append(args)
        if len(calls) == number:
            raise Killed
        return function(*args, **kwargs)

    return wrapped


# What resuming may change, and what it may not


def test_second_process_cannot_train_into_the_same_folder(run, tmp_path):
    folder = run(steps=3)
    before = contents(folder)
    with one_process(folder, "training into it"), pytest.raises(OutputError, match="another process is training"):
        run(steps=3, resume=True)
    assert contents(folder) == before


def test_resume_of_finished_run_has_no_effect(run, trained, copy):
    folder = copy(trained(), "run")
    before = contents(folder)
    untouched = [folder / "model" / "model.safetensors", folder / "state" / "last.pt", folder / "config.yaml"]
    times = [file.stat().st_mtime_ns for file in untouched]
    run(resume=True)
    assert contents(folder) == before
    assert [file.stat().st_mtime_ns for file in untouched] == times


def test_resume_with_fewer_steps_has_no_effect(run, trained, copy):
    folder = copy(trained(), "run")
    before = contents(folder)
    run(resume=True, steps=3)
    assert contents(folder) == before


def test_resume_without_run_starts_a_new_one(run, trained):
    assert_same_run(run(resume=True), trained())


def test_resume_with_more_steps_extends_run(run, trained, copy):
    copy(trained(), "run")
    assert_same_run(run(resume=True, steps=9), run("whole", steps=9))
    assert [line["step"] for line in lines(run(resume=True, steps=9), "val")] == [3, 6, 9]


def test_resume_does_not_extend_cosine_schedule(run):
    folder = run(steps=2, schedule="cosine")
    before = contents(folder)
    with pytest.raises(ConfigError, match=r"was started with train\.steps = 2, but now it is 4"):
        run(resume=True, steps=4, schedule="cosine")
    run(resume=True, steps=2, schedule="cosine")
    assert contents(folder) == before


def test_resume_allows_other_hardware_settings(run, trained, copy):
    pytest.importorskip("tensorboard")
    copy(trained(), "run")
    folder = run(resume=True, steps=7, tensorboard=True, accelerator="auto")
    assert state(folder).step == 7


@pytest.mark.parametrize(
    "changes",
    [
        {"learning_rate": 2e-3},
        {"batch_size": 8},
        {"seed": 1},
        {"annotator": 0},
        {"norm_statistics": "both"},
        {"validate_every": 2},
        {"settings": {"kl_weights": "paper"}},
        {"settings": {"channels": [4, 4, 4]}},
        {"augment": {"enabled": False}},
        {"model": "unet"},
    ],
    ids=str,
)
def test_resume_rejects_other_recipe(changes, run, trained, copy):
    folder = copy(trained(), "run")
    before = contents(folder)
    with pytest.raises(ConfigError, match=r"was started with .* = .*, but now it is"):
        run(resume=True, **changes)
    assert contents(folder) == before


def test_resume_rejects_other_dataset(run, trained, copy, tmp_path):
    prepare_phantom("lesion", tmp_path / "other", size=16, num_cases=15, seed=1, progress=False)
    folder = copy(trained(), "run")
    before = contents(folder)
    with pytest.raises(TrainingError, match="another dataset"):
        run(resume=True, steps=9, data=tmp_path / "other")
    assert contents(folder) == before


def test_resume_rejects_other_split(run, trained, copy, lesions):
    copy(trained(), "run")
    data = copy(lesions, "moved")
    splits = json.loads((data / "splits.json").read_text())
    splits["train"].append(splits["val"].pop())  # same pixels, but a validation case moves to training
    (data / "splits.json").write_text(json.dumps(splits))
    with pytest.raises(TrainingError, match="another split"):
        run(resume=True, steps=9, data=data)


def test_resume_accepts_copied_dataset(run, trained, copy, lesions):
    copy(trained(), "run")
    assert state(run(resume=True, steps=7, data=copy(lesions, "moved"))).step == 7


def test_resume_rejects_state_of_another_model(run, trained, copy):
    folder = copy(trained(), "run")
    (folder / "state" / "last.pt").write_bytes((trained("unet") / "state" / "last.pt").read_bytes())
    with pytest.raises(ModelError, match="weights of another model"):
        run(resume=True, steps=9)
    assert load_model(folder).config.name == "phiseg"


@pytest.mark.parametrize("part", ["optimizer", "weights"])
@pytest.mark.parametrize("wrong", [{}, {"state": {}, "param_groups": []}, {"a": 1}, None, 7])
def test_resume_rejects_invalid_state(part, wrong, run, trained, copy):
    folder = copy(trained(), "run")
    changed = state(folder)
    setattr(changed, part, wrong)
    save_state(folder / "state" / "last.pt", changed)
    with pytest.raises((TrainingError, ModelError), match=r"last\.pt"):
        run(resume=True, steps=9)


def test_run_comparison_detects_differences(trained, run):
    """Control: the comparison used in these tests detects a difference of one step."""
    other = run("other", steps=5)
    with pytest.raises(AssertionError):
        assert_same_run(other, trained())
    with pytest.raises(AssertionError):
        assert_same_state(state(other), state(trained()))


def test_resume_after_kill_in_validation_repeats_no_step(run, trained, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(loop, "validate", _raise_at(loop.validate, 2))  # after the last step
        with pytest.raises(Killed):
            run()
    with monkeypatch.context() as patch:
        patch.setattr(loop._Training, "_optimise", lambda *_: pytest.fail("a step is repeated"))
        resumed = run(resume=True)
    assert_same_run(resumed, trained())
