"""Ctrl-C and SIGTERM save the training, which then resumes with identical results."""

import os
import signal
import subprocess
import threading
import time
from contextlib import suppress

import pytest

from helpers.comparing_runs import assert_same_run, lines, state
from phiseg.core.errors import Interrupted
from phiseg.training import loop
from phiseg.training.interruption import StopSignal
from phiseg.training.loop import train

SIGNALS = [signal.SIGINT, signal.SIGTERM]


@pytest.fixture
def run(make_recipe, lesions, tmp_path):
    """Return a function that trains: states after steps 2, 3, 4 and 6, validations after 3 and 6."""

    def run(**options):
        train(make_recipe(), lesions, tmp_path / "run", progress=False, **options)
        return tmp_path / "run"

    return run


def raise_signal_in(monkeypatch, owner, name, number, *, call):
    """Raise a signal at the given call of a function, before it runs."""
    original, calls = getattr(owner, name), []

    def wrapped(*args, **kwargs):
        calls.append(name)
        if len(calls) == call:
            signal.raise_signal(number)
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, wrapped)


@pytest.fixture(autouse=True)
def _not_ignored():
    """Let Ctrl-C have its usual effect: a background job of a shell ignores it."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


@pytest.mark.parametrize("number", SIGNALS)
def test_signal_saves_the_current_step(number, run, trained, tmp_path, monkeypatch):
    handlers = [signal.getsignal(each) for each in SIGNALS]
    with monkeypatch.context() as patch:
        raise_signal_in(patch, loop._Training, "_optimise", number, call=5)
        with pytest.raises(Interrupted, match="stopped after step 5, whose state is saved") as stopped:
            run()
    assert (stopped.value.signal, stopped.value.step) == (number, 5)
    assert state(tmp_path / "run").step == 5  # the recipe saves steps 4 and 6
    assert [signal.getsignal(each) for each in SIGNALS] == handlers
    assert_same_run(run(resume=True), trained())


def test_signal_before_validation_leaves_it_pending(run, trained, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        raise_signal_in(patch, loop._Training, "_optimise", signal.SIGTERM, call=3)
        patch.setattr(loop, "validate", lambda *_, **__: pytest.fail("the validation runs"))
        with pytest.raises(Interrupted, match="after step 3"):
            run()
    assert state(tmp_path / "run").validation_due
    assert_same_run(run(resume=True), trained())


def test_signal_during_validation_stops_at_once(run, trained, monkeypatch):
    with monkeypatch.context() as patch:
        raise_signal_in(patch, loop, "validate", signal.SIGTERM, call=1)
        patch.setattr(loop, "save_model", lambda *_, **__: pytest.fail("the validation goes on"))
        with pytest.raises(Interrupted, match="after step 3"):
            run()
    assert_same_run(run(resume=True), trained())


def test_signal_while_saving_skips_the_validation(run, trained, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        raise_signal_in(patch, loop, "save_state", signal.SIGTERM, call=2)
        patch.setattr(loop, "validate", lambda *_, **__: pytest.fail("the validation runs"))
        with pytest.raises(Interrupted, match="after step 3"):
            run()
    assert_same_run(run(resume=True), trained())


def test_second_signal_has_its_usual_effect():
    with StopSignal(announce=False) as stop:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)  # the experiment runner sends it after Ctrl-C
        assert stop.received == signal.SIGINT
        with pytest.raises(KeyboardInterrupt) as raised:
            signal.raise_signal(signal.SIGINT)
    assert not isinstance(raised.value, Interrupted)


def test_ignored_signals_stay_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with StopSignal(announce=False) as stop:
            signal.raise_signal(signal.SIGINT)
        assert (stop.received, signal.getsignal(signal.SIGINT)) == (0, signal.SIG_IGN)
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_keep_the_handlers():
    before, seen = signal.getsignal(signal.SIGTERM), []

    def work():
        with StopSignal(announce=False):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


# The command


@pytest.fixture(scope="module")
def recipe(make_recipe, tmp_path_factory):
    path = tmp_path_factory.mktemp("recipe") / "tiny.yaml"
    path.write_text(make_recipe(steps=100_000, checkpoint_every=100_000, validate_every=100_000).to_yaml())
    return path


@pytest.fixture
def start(phiseg):
    """Return a function that starts the command in a process group of its own, which is killed at the end."""
    started = []

    def start(*words):
        process = subprocess.Popen(
            phiseg.command(*words),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        started.append(process)
        return process

    yield start
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def interrupted(process, metrics, number, *, group=False):
    """Send a signal after a few steps, and return the exit code and the output."""
    end = time.monotonic() + 300
    while not (metrics.exists() and metrics.read_text().count("\n") >= 3):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < end
        time.sleep(0.01)
    (os.killpg if group else os.kill)(process.pid, number)
    _, said = process.communicate(timeout=100)
    return process.returncode, said


def has_ended(group):
    """Return whether all processes of a group end within ten seconds."""
    for _ in range(500):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize(
    ("number", "devices", "group"),
    [
        (signal.SIGINT, 1, False),
        (signal.SIGTERM, 2, False),  # as from a scheduler
        pytest.param(signal.SIGTERM, 1, False, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, 2, True, marks=pytest.mark.slow),  # as from a terminal
    ],
)
def test_command_saves_and_prints_how_to_resume(number, devices, group, recipe, start, lesions, tmp_path):
    out = tmp_path / "run"
    words = ["train", recipe, "--data", lesions, "--out", out, "--train.devices", devices]
    process = start(*words)
    code, said = interrupted(process, out / "metrics.jsonl", number, group=group)
    assert code == 128 + number, said
    step = state(out).step
    assert step >= 3
    assert lines(out, "train")[-1]["step"] == step
    assert said.count(f"stopped after step {step}, whose state is saved. To resume, run:") == 1
    command = said.rstrip().splitlines()[-1].strip()
    assert command == f"phiseg {' '.join(map(str, words))} --resume"
    assert has_ended(process.pid)
