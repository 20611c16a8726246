"""state/last.pt: all that a killed run needs to go on bit for bit.

Randomness is a function of the seed and the step, so the state is short: weights, optimiser, step, best score.
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

FORMAT = "phiseg-state"


@dataclass
class TrainingState:
    """Where a training stands after `step` steps."""

    fingerprint: str
    """Of the dataset and its split."""
    weights: dict[str, torch.Tensor]
    optimizer: dict[str, Any]
    step: int = 0
    best: float | None = None
    """The best value of the selection criterion so far."""
    skipped: int = 0
    """Steps skipped so far because something was not finite."""
    average: dict[str, torch.Tensor] = field(default_factory=dict)
    """The moving average of the weights; empty where there is none."""
    scaler: dict[str, Any] = field(default_factory=dict)
    """The loss scaler of precision 16-mixed; empty for the others."""
    validation_due: bool = False
    """Whether the validation of this step is still to be done."""


def save_state(path: Path, state: TrainingState) -> None:
    """Write the state atomically: the previous one stays until the new one is complete on disk."""
    buffer = io.BytesIO()
    torch.save(_unshared({"format": FORMAT, **vars(state)}), buffer)
    with atomic_file(path) as file:
        file.write(buffer.getbuffer())


def _unshared(value: Any) -> Any:
    """Return nested containers of which no two places are one object, but equal texts always are.

    A pickle tells the same object from an equal one. So a resumed run writes the bytes of one that never stopped.
    """
    if isinstance(value, dict):
        return type(value)((_unshared(key), _unshared(inner)) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return type(value)(map(_unshared, value))
    return sys.intern(value) if isinstance(value, str) else value


def load_state(path: Path) -> TrainingState:
    """Read a state; nothing in the file is executed.

    Raises:
        TrainingError: the file is damaged or something else.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # about foreign pickles, which are refused below
            stored = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch and its unpickler raise nearly anything when the bytes are not theirs
        reason = str(error).partition("\n")[0]
        raise TrainingError(
            f"cannot read {path}: damaged or not a training state ({reason}); "
            "restore the file, or train into a new folder"
        ) from None
    if not isinstance(stored, dict) or stored.pop("format", None) != FORMAT:
        raise TrainingError(f"{path} is not a phiseg training state; restore it, or train into a new folder")
    try:
        state = TrainingState(**stored)
    except TypeError:
        raise TrainingError(f"{path} is of another version of phiseg; train into a new folder") from None
    if not (_is_count(state.step) and _is_count(state.skipped) and isinstance(state.best, float | None)):
        raise TrainingError(f"{path} is damaged; restore the file, or train into a new folder")
    return state


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and value >= 0
