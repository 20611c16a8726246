"""`--profile` tells where the time goes, writes a trace that viewers can open, and changes nothing."""

import gzip
import json

import pytest
import torch

from phiseg.training.checkpoints import load_state
from phiseg.training.loop import train
from phiseg.training.profiling import PARTS


def test_a_profiled_training_gives_the_same_run_and_a_trace(make_recipe, lesions, trained, tmp_path, capfd):
    train(make_recipe(), lesions, tmp_path / "run", progress=False, profile=True)
    printed = capfd.readouterr().out
    for part in PARTS:
        assert part in printed
    assert "convolution" in printed
    (path,) = (tmp_path / "run" / "profile").iterdir()
    assert path.name == "trace-3.json.gz"  # two of the six steps warm up
    with gzip.open(path) as file:
        names = [event.get("name") for event in json.load(file)["traceEvents"]]
    assert [names.count(part) for part in PARTS] == [4, 4, 4, 4]
    same = ("metrics.jsonl", "config.yaml")
    assert [(tmp_path / "run" / name).read_text() for name in same] == [
        (trained() / name).read_text() for name in same
    ]
    ours, theirs = (load_state(run / "state" / "last.pt").weights for run in (tmp_path / "run", trained()))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize(("steps", "recorded"), [(1, 1), (3, 1)])
def test_a_short_training_is_recorded_as_far_as_it_goes(steps, recorded, make_recipe, lesions, tmp_path, capfd):
    train(make_recipe(steps=steps), lesions, tmp_path / "run", progress=False, profile=True)
    assert f"mean of {recorded} steps" in capfd.readouterr().out


def test_a_run_that_forgets_its_activations_is_the_same_and_may_be_resumed_without(
    make_recipe, lesions, trained, tmp_path
):
    train(make_recipe(checkpoint_activations=True, steps=3), lesions, tmp_path / "run", progress=False)
    train(make_recipe(), lesions, tmp_path / "run", resume=True, progress=False)
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == (trained() / "metrics.jsonl").read_text()
