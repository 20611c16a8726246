"""state/last.pt: the state from which a run resumes with bitwise identical results.

Random numbers depend only on the seed and the step, so the state is small: weights, optimiser, step and best score.
"""

import io
import sys
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from phiseg.core.errors import TrainingError
from phiseg.core.files import atomic_file
from phiseg.core.formats import STATE

STATE_FILE = Path("state", "last.pt")
"""The file in a run folder."""


@dataclass
class TrainingState:
    """State of a training run after `step` steps."""

    fingerprint: str
    """Hash of the dataset and its split."""
    weights: dict[str, torch.Tensor]
    optimizer: dict[str, Any]
    step: int = 0
    best: float | None = None
    """Best value of the selection criterion so far."""
    skipped: int = 0
    """Number of steps skipped because of a non-finite loss or gradient."""
    average: dict[str, torch.Tensor] = field(default_factory=dict)
    """Moving average of the weights; empty without averaging."""
    scaler: dict[str, Any] = field(default_factory=dict)
    """Loss scaler of precision 16-mixed; empty for other precisions."""
    validation_due: bool = False
    """Whether the validation of this step is pending."""
    initial: dict[str, Any] = field(default_factory=dict)
    """Provenance of the initial model and hash of its weights; empty without `train.initial_weights`."""


def save_state(path: Path, state: TrainingState) -> None:
    """Write the state atomically: the previous state is kept until the new one is complete."""
    buffer = io.BytesIO()
    torch.save(_unshared({"format": STATE.name, **vars(state)}), buffer)
    with atomic_file(path) as file:
        file.write(buffer.getbuffer())


def _unshared(value: Any) -> Any:
    """Return a copy of nested containers without shared objects, except equal strings, which are interned.

    Pickle distinguishes shared objects from equal ones. Without this, a resumed run would write different bytes.
    """
    if isinstance(value, dict):
        return type(value)((_unshared(key), _unshared(inner)) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return type(value)(map(_unshared, value))
    return sys.intern(value) if isinstance(value, str) else value


def load_state(path: Path) -> TrainingState:
    """Read a state without executing code from the file.

    Raises:
        TrainingError: the file is damaged or not a training state.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # about other pickles, which are rejected below
            stored = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises all kinds of exceptions for invalid files
        reason = str(error).partition("\n")[0]
        raise TrainingError(
            f"cannot read {path}: damaged or not a training state ({reason}); "
            "restore the file, or train into a new folder"
        ) from None
    if not isinstance(stored, dict) or stored.pop("format", None) != STATE.name:
        raise TrainingError(f"{path} is not a phiseg training state; restore it, or train into a new folder")
    try:
        state = TrainingState(**stored)
    except TypeError:
        raise TrainingError(f"{path} was written by another version of phiseg; train into a new folder") from None
    counts = _is_count(state.step) and _is_count(state.skipped)
    if not (counts and isinstance(state.best, float | None) and isinstance(state.initial, dict)):
        raise TrainingError(f"{path} is damaged; restore the file, or train into a new folder")
    return state


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and value >= 0
