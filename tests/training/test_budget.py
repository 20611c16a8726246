"""The time of a step is measured on the step that `phiseg train` takes."""

import pytest
import torch

from helpers.comparing_runs import state
from phiseg.data.store import Dataset
from phiseg.training import budget
from phiseg.training.budget import seconds_per_step
from phiseg.training.loop import train


@pytest.mark.parametrize(
    "changes",
    [{}, {"weight_decay": 0.1, "schedule": "cosine", "averaging": 0.5}, {"norm_statistics": "both"}],
    ids=["defaults", "decay, schedule and average", "both statistics"],
)
def test_seconds_per_step_trains_like_train(changes, make_recipe, lesions, tmp_path, monkeypatch):
    made = []

    class Recorded(budget.TrainingStep):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(budget, "TrainingStep", Recorded)
    recipe = make_recipe(steps=4, **changes)
    assert 0 < seconds_per_step(recipe, Dataset.open(lesions), num_steps=2) < 60
    (timed,) = made
    train(recipe, lesions, tmp_path / "run", progress=False)
    trained = state(tmp_path / "run").weights
    assert all(torch.equal(value, trained[name]) for name, value in timed.model.named_parameters())
