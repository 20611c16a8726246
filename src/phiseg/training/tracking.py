"""metrics.jsonl: one JSON object a line, `{"step": ..., "kind": "train" | "val", name: number, ...}`.

The file holds no time and no place, so that a run that was killed and resumed writes the same bytes.
"""

import json
from collections.abc import Mapping
from os import SEEK_END
from pathlib import Path
from typing import Any

from phiseg.core.errors import ConfigError, OutputError
from phiseg.core.files import write_text


class Tracker:
    """Appends to metrics.jsonl, and to TensorBoard's files if asked to.

    Args:
        folder: the run's folder.
        start: the step the run continues from; later lines of an earlier attempt are cut off.
        validation_due: whether that step is to be validated; if so, an earlier attempt's line of it is cut off.
        tensorboard: whether to write TensorBoard files too.
    """

    def __init__(self, folder: Path, *, start: int, validation_due: bool = False, tensorboard: bool = False):
        self.path = folder / "metrics.jsonl"
        self._board: Any = _open_board(folder / "tensorboard", start) if tensorboard else None
        kept = [line for line in read_metrics(self.path) if line["step"] <= start] if start else []
        if validation_due:
            kept = [line for line in kept if (line["step"], line["kind"]) != (start, "val")]
        write_text(self.path, "".join(json.dumps(line) + "\n" for line in kept))

    def check(self) -> None:
        """Raise an OutputError if the folder has vanished: what is written into it next would begin it anew."""
        if not self.path.is_file():
            raise OutputError(f"{self.path} has vanished; put the folder back and --resume")

    def write(self, step: int, kind: str, values: Mapping[str, float | None]) -> None:
        """Append one line."""
        self.check()
        try:
            with self.path.open("r+", encoding="utf-8") as file:  # which makes no new file where ours has vanished
                file.seek(0, SEEK_END)
                file.write(json.dumps({"step": step, "kind": kind, **values}) + "\n")
        except OSError as error:
            raise OutputError(f"cannot write {self.path}: {error.strerror}; free space and --resume") from error
        if self._board is not None:
            for name, value in values.items():
                if value is not None:
                    self._board.add_scalar(f"{kind}/{name}", value, step)
            self._board.flush()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a metrics.jsonl; a last line that a kill cut short is left out."""
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


def _open_board(folder: Path, start: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ConfigError("train.tensorboard needs TensorBoard: pip install 'phiseg[tensorboard]'") from None
    return SummaryWriter(str(folder), purge_step=start + 1)
