"""Model folder: all files needed for prediction, in formats that cannot execute code.

config.json (architecture), model.safetensors (weights), preprocessing.json (preprocessing of images), README.md
(model card) and, after `phiseg calibrate`, calibration.json (temperatures).
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from safetensors.torch import save as dump_tensors

from phiseg.core.bundled import find_model
from phiseg.core.errors import ConfigError, ModelError
from phiseg.core.files import atomic_file, atomic_folder, write_json, write_text
from phiseg.core.formats import CALIBRATION, MODEL
from phiseg.core.precision import SamplingPrecision
from phiseg.models.bfloat16 import compute_in_bfloat16
from phiseg.models.registry import build_model, model_class
from phiseg.models.segmenter import Segmenter
from phiseg.models.temperatures import Calibration

CALIBRATION_FILE = "calibration.json"


def save_model(
    folder: Path, model: Segmenter, *, preprocessing: dict[str, Any], provenance: dict[str, Any], card: str
) -> None:
    """Write a model folder atomically; an existing model folder is replaced.

    Args:
        folder: output folder.
        model: model with config and weights.
        preprocessing: preprocessing of images for this model.
        provenance: origin of the weights, e.g. name of the recipe and step.
        card: text of README.md.
    """
    config = {
        **MODEL.marker,
        "model": model.config.model_dump(mode="json"),
        "provenance": provenance,
    }
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    with atomic_folder(folder, overwrite=True, marker="config.json") as new:
        write_json(new / "config.json", config)
        write_json(new / "preprocessing.json", preprocessing)
        write_text(new / "README.md", card)
        with atomic_file(new / "model.safetensors") as file:
            file.write(dump_tensors(weights))


def save_calibration(folder: Path, calibration: Calibration, *, fit: dict[str, Any]) -> None:
    """Store fitted temperatures in a model folder, or in the model folder of a run.

    Args:
        folder: model or run folder.
        calibration: temperatures that `load_model` applies.
        fit: data they were fitted on, and their effect.
    """
    values = {**CALIBRATION.marker, **calibration.model_dump(mode="json"), "fit": fit}
    write_json(find_model(folder) / CALIBRATION_FILE, values)


def load_model(
    folder: Path,
    *,
    device: torch.device | str = "cpu",
    calibrated: bool = True,
    precision: SamplingPrecision = "float32",
) -> Segmenter:
    """Load a model folder, or the model folder of a run, in eval mode.

    Args:
        folder: model or run folder, or name of a bundled model.
        device: device of the model.
        calibrated: apply fitted temperatures, if there are any.
        precision: number format in which the model draws samples; `usable_device` checks that a device supports it.

    Raises:
        ModelError: the folder is missing, incomplete, damaged or not a phiseg model.
    """
    folder = find_model(folder)
    stored = _read_json(folder / "config.json")
    if not MODEL.marks(stored):
        raise ModelError(
            f"{folder / 'config.json'} is not the config of a phiseg model; pass a folder written by `phiseg train`"
        )
    if not MODEL.is_current(stored):
        raise ModelError(
            f"{folder} has format version {stored.get('version')!r}, but this phiseg reads {MODEL.version}; "
            "update phiseg"
        )
    for section in ("model", "provenance"):
        if not isinstance(stored.get(section), dict):
            raise ModelError(f"{folder / 'config.json'} has no section '{section}'; copy the folder again")
    values = stored["model"]
    config = model_class(values.get("name")).Config.parse(values, where=str(folder / "config.json"))
    with torch.random.fork_rng(devices=[]):  # the random weights are replaced: keep the global state
        model = build_model(config)
    load_weights(model, _read_weights(folder / "model.safetensors"), where=str(folder))
    model.preprocessing = _read_json(folder / "preprocessing.json")
    model.provenance = stored["provenance"]
    if calibrated and (folder / CALIBRATION_FILE).is_file():
        model.calibration = _read_calibration(folder / CALIBRATION_FILE, model)
    if precision == "bfloat16":
        compute_in_bfloat16(model)
    return model.to(device).eval()


def load_weights(model: Segmenter, weights: dict[str, torch.Tensor], *, where: str) -> None:
    """Load `weights` into `model`, all or none.

    Raises:
        ModelError: names or shapes differ, so the weights belong to another model.
    """
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    if expected != found:
        different = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        name = different[0]
        raise ModelError(
            f"{where} contains the weights of another model: {len(different)} tensors differ, e.g. {name} has "
            f"shape {found.get(name)} instead of {expected.get(name)}; use the config of its training"
        )
    model.load_state_dict(weights)


def weights_hash(folder: Path) -> str:
    """Return the SHA-256 hash of the weights in a model folder."""
    return hashlib.sha256((find_model(folder) / "model.safetensors").read_bytes()).hexdigest()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}; the model folder is incomplete") from None
    except (ValueError, RecursionError):
        raise ModelError(f"{path} is damaged: not JSON; copy the model folder again") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} is damaged: not a JSON object; copy the model folder again")
    return value


def _read_calibration(path: Path, model: Segmenter) -> Calibration:
    stored = _read_json(path)
    if not CALIBRATION.is_readable(stored):
        raise ModelError(f"{path} is not a valid calibration file; run `phiseg calibrate` again")
    try:
        calibration = Calibration.parse(
            {key: stored[key] for key in Calibration.model_fields if key in stored}, where=str(path)
        )
    except ConfigError as error:
        raise ModelError(f"{error}; run `phiseg calibrate` again") from None
    levels = len(model.noise_shapes(model.strides))
    if len(calibration.noise) not in (0, levels):
        raise ModelError(
            f"{path} has {len(calibration.noise)} noise temperatures, but the model has {levels} levels; "
            "run `phiseg calibrate` again"
        )
    if any(f != 1 and not takes for f, takes in zip(calibration.noise, model.takes_temperature, strict=False)):
        raise ModelError(
            f"{path} has a noise temperature that model '{model.config.name}' does not support; "
            "run `phiseg calibrate` again"
        )
    return calibration


def calibration_fit(folder: Path) -> dict[str, Any]:
    """Return the `fit` record of the calibration of a model folder; empty if there is none.

    Raises:
        ModelError: the calibration file is damaged.
    """
    path = find_model(folder) / CALIBRATION_FILE
    fit = _read_json(path).get("fit") if path.is_file() else None
    return fit if isinstance(fit, dict) else {}


def _read_weights(path: Path) -> dict[str, torch.Tensor]:
    try:
        return parse_tensors(path.read_bytes())
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}; the model folder is incomplete") from None
    except (SafetensorError, KeyError, ValueError) as error:
        raise ModelError(f"{path} is damaged or not a safetensors file ({error}); copy it again") from None
