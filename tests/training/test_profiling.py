"""`--profile` prints a table and writes a trace without changing results."""

import gzip
import json
from types import SimpleNamespace

import pytest
import torch
from torch.autograd import DeviceType

from phiseg.training.checkpoints import load_state
from phiseg.training.loop import train
from phiseg.training.profiling import PARTS, table


def test_profile_writes_trace_and_keeps_results(make_recipe, lesions, trained, tmp_path, capfd):
    train(make_recipe(), lesions, tmp_path / "run", progress=False, profile=True)
    printed = capfd.readouterr().out
    for part in PARTS:
        assert part in printed
    assert "convolution" in printed
    (path,) = (tmp_path / "run" / "profile").iterdir()
    assert path.name == "trace-3.json.gz"  # two of the six steps are warm-up
    with gzip.open(path) as file:
        names = [event.get("name") for event in json.load(file)["traceEvents"]]
    assert [names.count(part) for part in PARTS] == [4, 4, 4, 4, 1]  # the validation after the third step
    same = ("metrics.jsonl", "config.yaml")
    assert [(tmp_path / "run" / name).read_text() for name in same] == [
        (trained() / name).read_text() for name in same
    ]
    ours, theirs = (load_state(run / "state" / "last.pt").weights for run in (tmp_path / "run", trained()))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def event(key, device=DeviceType.CPU, *, cpu=0, own_cpu=0, own_device=0):
    return SimpleNamespace(
        key=key,
        device_type=device,
        cpu_time_total=cpu,
        self_cpu_time_total=own_cpu,
        self_device_time_total=own_device,
    )


def test_profile_table_with_gpu_events():
    events = [
        event("forward", cpu=3000),
        event("backward", cpu=1000),
        event("aten::convolution", own_cpu=10, own_device=9000),
        event("aten::add", own_cpu=90, own_device=1000),
        event("forward", DeviceType.CUDA, own_device=10_000),
        event("sgemm", DeviceType.CUDA, own_device=9000),
    ]
    lines = [line.split() for line in table(events, 1).splitlines()[1:]]
    assert lines == [
        ["forward", "3.0", "ms", "75.0%"],
        ["backward", "1.0", "ms", "25.0%"],
        ["aten::convolution", "9.0", "ms", "90.0%"],
        ["aten::add", "1.0", "ms", "10.0%"],
    ]


def test_profile_table_without_events():
    assert len(table([], 1).splitlines()) == 1
    assert "0.0%" in table([event("forward")], 1)


def test_profile_continues_if_trace_cannot_be_written(make_recipe, lesions, tmp_path, capfd):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "profile").write_text("no folder")
    train(make_recipe(), lesions, tmp_path / "run", progress=False, profile=True)
    printed = capfd.readouterr()
    assert "time per step" in printed.out
    assert "phiseg: no trace: cannot write" in printed.err
    assert (tmp_path / "run" / "model").is_dir()


@pytest.mark.filterwarnings("ignore:Profiler won't be using warmup")  # a single step has no warm-up
@pytest.mark.parametrize(("steps", "recorded"), [(1, 1), (3, 1)])
def test_profile_of_short_training(steps, recorded, make_recipe, lesions, tmp_path, capfd):
    train(make_recipe(steps=steps), lesions, tmp_path / "run", progress=False, profile=True)
    assert f"mean of {recorded} steps" in capfd.readouterr().out


def test_checkpoint_activations_keeps_results_and_may_change_on_resume(make_recipe, lesions, trained, tmp_path):
    train(make_recipe(checkpoint_activations=True, steps=3), lesions, tmp_path / "run", progress=False)
    train(make_recipe(), lesions, tmp_path / "run", resume=True, progress=False)
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == (trained() / "metrics.jsonl").read_text()
