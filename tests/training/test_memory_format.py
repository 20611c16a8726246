"""Memory format of the weights: it may change on resume without changing results."""

import json

import pytest
import torch

from phiseg.models import build_model
from phiseg.training import memory_format
from phiseg.training.loop import train
from phiseg.training.memory_format import match_memory_format, set_memory_format


def numbers(run):
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines]


def test_resume_with_other_memory_format_gives_same_results(make_recipe, lesions, trained, tmp_path, monkeypatch):
    train(make_recipe(steps=3), lesions, tmp_path / "run", progress=False)
    monkeypatch.setattr(memory_format, "MIN_WIDTH", 1)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    train(make_recipe(), lesions, tmp_path / "run", resume=True, progress=False)
    assert numbers(tmp_path / "run") == pytest.approx(numbers(trained()), rel=1e-3)


@pytest.mark.parametrize(
    ("capability", "width", "first"), [("AVX2", 128, True), ("AVX2", 64, False), ("AVX512", 128, False)]
)
def test_set_memory_format_on_cpu_without_avx512(capability, width, first, make_recipe, monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    model = build_model(make_recipe(settings={"channels": [4, width, 4]}).model)
    set_memory_format(model, torch.device("cpu"))
    assert model.likelihood.merge[0][0][0].weight.is_contiguous() == first


def test_match_memory_format_of_optimizer_state():
    weight = torch.nn.Parameter(torch.randn(3, 4, 3, 3))
    optimizer = torch.optim.AdamW([weight], fused=True)
    values = torch.randn(3, 4, 3, 3)
    optimizer.state[weight] = {"step": torch.tensor(1.0), "exp_avg": values.to(memory_format=torch.channels_last)}
    match_memory_format(optimizer)
    state = optimizer.state[weight]
    assert state["exp_avg"].stride() == weight.stride()
    assert torch.equal(state["exp_avg"], values)
    assert state["step"] == 1
