"""metrics.jsonl: one JSON object per line, `{"step": ..., "kind": "train" | "val", name: number, ...}`.

The file contains no times or paths, so that a killed and resumed run writes the same bytes. The progress bar shows
some of the values.
"""

import json
from collections.abc import Mapping
from os import SEEK_END
from pathlib import Path
from typing import Any

from phiseg.core.errors import ConfigError, OutputError
from phiseg.core.files import write_text


class Tracker:
    """Writer of metrics.jsonl and, optionally, TensorBoard files.

    Args:
        folder: run folder.
        start: step from which the run continues; lines of later steps are removed.
        validation_due: whether the validation of that step is pending; if so, its validation line is removed.
        tensorboard: also write TensorBoard files.
    """

    def __init__(self, folder: Path, *, start: int, validation_due: bool = False, tensorboard: bool = False):
        self.path = folder / "metrics.jsonl"
        self._board: Any = _open_board(folder / "tensorboard", start) if tensorboard else None
        lines = [line for line in read_metrics(self.path) if line["step"] <= start] if start else []
        if validation_due:
            lines = [line for line in lines if (line["step"], line["kind"]) != (start, "val")]
        write_text(self.path, "".join(json.dumps(line) + "\n" for line in lines))

    def check(self) -> None:
        """Raise an OutputError if metrics.jsonl no longer exists; the next write would start a new file."""
        if not self.path.is_file():
            raise OutputError(f"{self.path} no longer exists; restore the folder and use --resume")

    def write(self, step: int, kind: str, values: Mapping[str, float | None]) -> None:
        """Append one line."""
        self.check()
        try:
            with self.path.open("r+", encoding="utf-8") as file:  # fails if the file no longer exists
                file.seek(0, SEEK_END)
                file.write(json.dumps({"step": step, "kind": kind, **values}) + "\n")
        except OSError as error:
            raise OutputError(f"cannot write {self.path}: {error.strerror}; free space and use --resume") from error
        if self._board is not None:
            for name, value in values.items():
                if value is not None:
                    self._board.add_scalar(f"{kind}/{name}", value, step)
            self._board.flush()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a metrics.jsonl; an incomplete last line is skipped."""
    lines = []
    if path.is_file():
        for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                line = json.loads(text)
            except ValueError:
                break
            if not isinstance(line, dict) or not isinstance(line.get("step"), int):
                break
            lines.append(line)
    return lines


def progress_values(values: dict[str, float | None]) -> dict[str, str]:
    """Return the values for the progress bar: loss, cross-entropies and KLs, fine to coarse."""

    def join(prefix: str) -> str:
        chosen = [value for name, value in values.items() if name.startswith(prefix)]
        return "/".join("nan" if value is None else f"{value:.3g}" for value in chosen)

    short = {"loss": join("loss"), "ce": join("cross_entropy/"), "kl": join("kl/")}
    return {name: text for name, text in short.items() if text}


def _open_board(folder: Path, start: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ConfigError("train.tensorboard needs TensorBoard: pip install 'phiseg[tensorboard]'") from None
    return SummaryWriter(str(folder), purge_step=start + 1)
