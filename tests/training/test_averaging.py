"""Moving average of the weights: formula, validation, saving and resuming."""

import pytest
import torch
from safetensors.torch import load_file

from helpers.comparing_runs import assert_same_run, state
from phiseg.models import build_model
from phiseg.training import loop
from phiseg.training.averaging import WeightAverage
from phiseg.training.loop import train


def test_weight_average_matches_formula(make_recipe):
    model = build_model(make_recipe("unet").model)
    average = WeightAverage(model, 0.9)
    expected = [parameter.detach().double().clone() for parameter in model.parameters()]
    for step in range(1, 120):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        average.update(model, step)
        decay = min(0.9, (1 + step) / (10 + step))
        for value, parameter in zip(expected, model.parameters(), strict=True):
            value.mul_(decay).add_((1 - decay) * parameter.detach().double())
    for value, parameter in zip(expected, average.model.parameters(), strict=True):
        torch.testing.assert_close(parameter.double(), value, rtol=1e-4, atol=1e-4)


def test_weight_average_without_decay_is_the_model(make_recipe):
    model = build_model(make_recipe("unet").model)
    assert WeightAverage(model, 0).model is model


@pytest.fixture(scope="module")
def averaged(make_recipe, lesions, tmp_path_factory):
    out = tmp_path_factory.mktemp("averaged") / "run"
    train(make_recipe(averaging=0.8), lesions, out, progress=False)
    return out


def test_averaging_saves_average_without_changing_training(averaged, trained):
    plain, run = state(trained("phiseg")), state(averaged)
    saved = load_file(averaged / "model" / "model.safetensors")
    name = next(name for name in saved if name.endswith("weight"))
    torch.testing.assert_close(run.weights[name], plain.weights[name], rtol=0, atol=0)
    assert not torch.equal(saved[name], run.weights[name])
    assert plain.average == {}


def test_averaging_resumes_exactly(averaged, make_recipe, lesions, tmp_path, monkeypatch):
    original = loop._Training._optimise

    def stops(self, batch):
        if self.step == 4:
            raise KeyboardInterrupt
        return original(self, batch)

    monkeypatch.setattr(loop._Training, "_optimise", stops)
    with pytest.raises(KeyboardInterrupt):
        train(make_recipe(averaging=0.8), lesions, tmp_path / "run", progress=False)
    monkeypatch.undo()
    train(make_recipe(averaging=0.8), lesions, tmp_path / "run", resume=True, progress=False)
    assert_same_run(tmp_path / "run", averaged)
