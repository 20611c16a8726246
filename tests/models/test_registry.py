"""Registry: names, classes and configs agree, and the names of the weights are stable."""

import hashlib
from typing import get_args

import pytest
import torch
from pydantic import TypeAdapter

from phiseg.core.errors import ConfigError
from phiseg.core.formats import MODEL
from phiseg.models.phiseg import PHiSegConfig
from phiseg.models.registry import MODELS, ModelConfig, build_model, model_class
from phiseg.models.segmenter import SegmenterConfig


@pytest.mark.parametrize(("name", "kind"), MODELS.items())
def test_name_selects_model_and_config(name, kind):
    assert get_args(kind.Config.model_fields["name"].annotation) == (name,)
    assert issubclass(kind.Config, SegmenterConfig)
    assert kind.__annotations__["config"] is kind.Config
    assert type(TypeAdapter(ModelConfig).validate_python({"name": name})) is kind.Config


@pytest.mark.parametrize("name", MODELS)
def test_model_class_by_name(name):
    assert model_class(name) is MODELS[name]
    assert type(build_model(MODELS[name].Config(channels=(2,) * 5))) is MODELS[name]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("phisg", "unknown model 'phisg' (did you mean 'phiseg'?)"),
        ("transformer", f"unknown model 'transformer' (valid: {', '.join(sorted(MODELS))})"),
        (None, "unknown model None"),
        (["phiseg"], "unknown model ['phiseg']"),
        ({}, "unknown model {}"),
    ],
)
def test_model_class_rejects_unknown_name(name, hint):
    with pytest.raises(ConfigError) as caught:
        model_class(name)
    assert hint in str(caught.value)


def test_build_model_uses_global_generator():
    config = PHiSegConfig(channels=(2, 2), num_levels=2)
    states = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        states.append(build_model(config).state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not all(torch.equal(states[0][name], states[2][name]) for name in states[0])


DIGESTS = {
    (1, "ccdm"): "3470234539c473e9",
    (1, "cvae"): "ab669a7a0677063a",
    (1, "ensemble"): "d8213b74e16e8ec6",
    (1, "flow-ssn"): "350a67f1cd408d46",
    (1, "hprobunet"): "9e502f4927fbdafa",
    (1, "mcdropout"): "a5b94b09aa8aaf0d",  # same as the U-Net
    (1, "mose"): "026f9fb0a2b7540a",
    (1, "multihead"): "3bc4774c5530ad98",
    (1, "phiseg"): "16cdba52c4b8b89c",
    (1, "phiseg-ensemble"): "3d8c41233b4092bd",
    (1, "probunet"): "d93eae4d41eae20a",
    (1, "ssn"): "4bac9770635b0994",
    (1, "unet"): "a5b94b09aa8aaf0d",
}


@pytest.mark.parametrize("name", MODELS)
def test_state_dict_names_and_shapes_are_stable(name):
    """A new digest means that existing model folders no longer load: increase `formats.MODEL.version`."""
    with torch.device("meta"):
        model = build_model(MODELS[name].Config())
    lines = [f"{key} {tuple(tensor.shape)}" for key, tensor in sorted(model.state_dict().items())]
    assert hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16] == DIGESTS[MODEL.version, name]


@pytest.mark.parametrize("settings", [{"channels": (4, 5000)}, {"heads": 10**9}, {"channels": (4,) * 17}], ids=str)
def test_config_rejects_huge_sizes(settings):
    with pytest.raises(ConfigError, match="at most"):
        model_class("multihead").Config.parse({"name": "multihead", **settings}, where="recipe.yaml")


def test_build_model_reports_insufficient_memory(monkeypatch):
    class TooLarge:
        def __init__(self, config):
            raise RuntimeError(
                "DefaultCPUAllocator: can't allocate memory: you tried to allocate 309237645312 bytes."
            )

    config = model_class("unet").Config(name="unet")
    monkeypatch.setitem(MODELS, "unet", TooLarge)
    with pytest.raises(ConfigError, match=r"not enough memory for a unet of this size; use fewer or smaller"):
        build_model(config)
    monkeypatch.setattr(TooLarge, "__init__", lambda *_: (_ for _ in ()).throw(RuntimeError("an internal error")))
    with pytest.raises(RuntimeError, match="an internal error"):
        build_model(config)
