"""Model folder: exact round trips, and rejection of damaged or malicious folders."""

import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import phiseg
from phiseg.core import bundled
from phiseg.core.bundled import find_model
from phiseg.core.errors import ConfigError, ModelError, OutputError
from phiseg.models.model_folder import load_model, load_weights, save_model
from phiseg.models.noise import seeded_generator
from phiseg.models.phiseg import PHiSegConfig
from phiseg.models.registry import build_model
from phiseg.models.unet import UNetConfig

CONFIG = PHiSegConfig(channels=(2, 3), num_levels=2, kl_weights=(1.0, 3.0), num_classes=3, image_channels=2)


def save(folder, config=CONFIG, seed=0):
    torch.manual_seed(seed)
    model = build_model(config).eval()
    save_model(
        folder, model, preprocessing={"kind": "zscore"}, provenance={"recipe": "tiny", "step": 3}, card="# A card\n"
    )
    return model


@pytest.fixture
def folder(tmp_path):
    save(tmp_path / "model")
    return tmp_path / "model"


def load_error(folder):
    """Return the error message of loading, which must be one line."""
    with pytest.raises((ModelError, ConfigError)) as caught:
        load_model(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 600
    return message


def change(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_save_and_load_model_round_trip(tmp_path):
    model = save(tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    written = {path.name for path in (tmp_path / "model").iterdir()}
    assert written == {"README.md", "config.json", "model.safetensors", "preprocessing.json"}
    assert loaded.config == model.config
    assert type(loaded) is type(model)
    assert not loaded.training
    assert loaded.preprocessing == {"kind": "zscore"}
    assert loaded.provenance == {"recipe": "tiny", "step": 3}
    assert (tmp_path / "model" / "README.md").read_text() == "# A card\n"
    state, expected = loaded.state_dict(), model.state_dict()
    assert list(state) == list(expected)
    assert all(torch.equal(state[name], expected[name]) for name in expected)
    image = torch.randn(1, 2, 5, 7)
    samples = [m.sample(image, 2, generator=seeded_generator(0)) for m in (model, loaded)]
    assert torch.equal(*samples)


def test_save_model_replaces_existing_model(folder):
    other = save(folder, seed=1)
    loaded = load_model(folder).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in other.state_dict().items())


def test_load_model_keeps_global_generator(folder):
    before = torch.get_rng_state()
    load_model(folder)
    assert torch.equal(before, torch.get_rng_state())


def test_load_model_accepts_run_folder(folder):
    assert find_model(folder) == find_model(folder.parent) == folder
    assert load_model(folder.parent).config == CONFIG


def test_find_model_by_bundled_name(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(bundled, "bundled_models", lambda: {"known": folder})
    monkeypatch.chdir(tmp_path)
    assert find_model(Path("known")) == folder
    assert phiseg.load("known").network.config == load_model(folder).config
    (tmp_path / "known").mkdir()  # a local folder takes precedence
    assert "contains no model" in load_error(Path("known"))
    assert "bundled model (known)" in load_error(Path("unknown"))


def test_save_model_is_atomic(tmp_path, monkeypatch):
    """A folder never mixes the config of one save with the weights of another."""
    save(tmp_path / "model")
    before = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    monkeypatch.setattr(
        "phiseg.models.model_folder.dump_tensors", lambda weights: (_ for _ in ()).throw(OSError(28, "full"))
    )
    for name in ("model", "new"):
        with pytest.raises(OutputError, match="full"):
            save(tmp_path / name)
    assert {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()} == before
    assert not (tmp_path / "new").exists()


def test_load_model_rejects_missing_folder(tmp_path):
    assert "there is no model folder" in load_error(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    assert "there is no model folder" in load_error(tmp_path / "file")
    assert "contains no model: there is no config.json in it or in its subfolder model/" in load_error(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "preprocessing.json", "model.safetensors"])
def test_load_model_names_missing_file(folder, name):
    (folder / name).unlink()
    assert name in load_error(folder)


@pytest.mark.parametrize("name", ["config.json", "preprocessing.json"])
@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"1", b"\xff\xfe", b"\x80\x04N.", b"[" * 100_000],
    ids=lambda c: str(c[:4]),
)
def test_load_model_rejects_invalid_json(folder, name, content):
    (folder / name).write_bytes(content)
    message = load_error(folder)
    assert name in message
    assert "copy the model folder again" in message


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"format": "nnunet"}, "is not the config of a phiseg model"),
        ({"format": None}, "is not the config of a phiseg model"),
        ({"version": 2}, "has format version 2, but this phiseg reads 1; update phiseg"),
        ({"version": None}, "has format version None"),
        ({"model": None}, "has no section 'model'"),
        ({"model": ["phiseg"]}, "has no section 'model'"),
        ({"provenance": "me"}, "has no section 'provenance'"),
        ({"model": {}}, "unknown model None (valid: "),
        ({"model": {"name": "phisge"}}, "unknown model 'phisge' (did you mean 'phiseg'?)"),
        ({"model": {"name": ["phiseg"]}}, "unknown model ['phiseg']"),
        ({"model": {"name": "phiseg", "chanels": [2, 3]}}, "unknown key 'chanels' (did you mean 'channels'?)"),
        ({"model": {"name": "phiseg", "channels": "wide"}}, "'channels' = 'wide'"),
        ({"model": {"name": "phiseg", "channels": [2, -3], "num_levels": 2}}, "'channels.1' = -3"),
        ({"model": {"name": "phiseg", "channels": [2, 3], "num_levels": 3}}, "num_levels = 3 needs that many"),
    ],
)
def test_load_model_rejects_invalid_config(folder, values, message):
    change(folder / "config.json", **values)
    assert message in load_error(folder)


def test_load_model_rejects_config_without_format(folder):
    (folder / "config.json").write_text('{"model_type": "bert"}')
    assert "is not the config of a phiseg model; pass a folder written by `phiseg train`" in load_error(folder)


@pytest.mark.parametrize("kept", [0, 4, 8, 100, -1])
def test_load_model_rejects_truncated_weights(folder, kept):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    assert "model.safetensors is damaged or not a safetensors file" in load_error(folder)


class Harm:
    """Object that runs a command when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize("name", ["config.json", "preprocessing.json", "model.safetensors"])
@pytest.mark.parametrize("write", [pickle.dump, torch.save], ids=["pickle", "torch"])
def test_load_model_never_executes_pickles(folder, tmp_path, name, write):
    harm = tmp_path / "harm"
    with (folder / name).open("wb") as file:
        write({"weights": Harm(harm)}, file)
    assert name in load_error(folder)
    assert not harm.exists()
    with (folder / name).open("rb") as file:  # the pickle itself is functional
        torch.load(file, weights_only=False) if write is torch.save else pickle.load(file)
    assert harm.exists()


@pytest.mark.parametrize(
    "config",
    [
        UNetConfig(channels=(2, 3)),
        CONFIG.model_copy(update={"channels": (2, 4)}),
        CONFIG.model_copy(update={"num_levels": 1}),
    ],
    ids=["another class", "other widths", "fewer levels"],
)
def test_load_model_rejects_weights_of_another_model(folder, tmp_path, config):
    save(
        tmp_path / "other", config.model_copy(update={"kl_weights": "unit"}) if config.name == "phiseg" else config
    )
    (folder / "model.safetensors").write_bytes((tmp_path / "other" / "model.safetensors").read_bytes())
    message = load_error(folder)
    assert "contains the weights of another model" in message
    assert "tensors differ, e.g. " in message


@pytest.mark.parametrize("edit", ["extra", "missing", "shape"])
def test_load_model_names_wrong_tensor(folder, edit):
    path = folder / "model.safetensors"
    weights = load_file(path)
    name = "likelihood.output.0.bias"
    if edit == "extra":
        weights["surprise"] = torch.zeros(1)
        expected = "1 tensors differ, e.g. surprise has shape (1,) instead of None"
    elif edit == "missing":
        del weights[name]
        expected = f"1 tensors differ, e.g. {name} has shape None instead of (3,)"
    else:
        weights[name] = torch.zeros(4)
        expected = f"1 tensors differ, e.g. {name} has shape (4,) instead of (3,)"
    save_file(weights, path)
    assert expected in load_error(folder)


def test_load_weights_is_all_or_nothing(folder):
    model = build_model(CONFIG)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    weights = load_file(folder / "model.safetensors")
    weights["likelihood.output.1.bias"] = torch.zeros(9)
    with pytest.raises(ModelError):
        load_weights(model, weights, where="here")
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
