"""One of several processes dies: the others stop in bounded time with an error, and the run can be resumed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from phiseg.core.errors import DataError, PhisegError
from phiseg.core.processes import in_order
from phiseg.data.augment import AugmentConfig
from phiseg.data.loader import TrainingStream, prefetch
from phiseg.data.store import Dataset

from .processes import die
from .record import Part, always
from .specimens import Specimens
from .trees import differences

BOUND = 60.0
"""Seconds within which the other processes must end."""
PATIENCE = 300.0
STEPS = 16
HOW = f"""\
- **Training:** one of two training processes (gloo, on the CPU) is killed with SIGKILL. The other must end within \
{BOUND:.0f} s with an error line. `--resume` must give the same files as an undisturbed training on two processes.
- **Worker:** a worker process that prepares data is killed in the same way.
- **Thread:** a thread that loads batches in advance meets an invalid image."""


def ranks(good: Specimens, work: Path, *, seed: int, rounds: int, seconds: float) -> Part:
    """Kill either of two training processes up to `rounds` times, and one worker of each other kind."""
    rng = np.random.default_rng(seed)
    end = time.monotonic() + seconds
    work.mkdir(parents=True, exist_ok=True)
    part = Part("Killed processes", HOW, asked=2 * rounds + 2)
    train = [
        "train",
        good.recipe,
        "--data",
        good.data,
        "--train.devices",
        "2",
        "--train.steps",
        str(STEPS),
        "--out",
    ]
    undisturbed = work / "undisturbed"
    if _finish([*train, undisturbed], work / "undisturbed.log") != 0:
        raise RuntimeError(f"undisturbed: {(work / 'undisturbed.log').read_text(errors='replace')[-300:]!r}")
    outcomes: dict[str, list[tuple[float, list[str]]]] = {"first": [], "second": []}
    for number, role in product(range(rounds), outcomes):
        if time.monotonic() < end and (
            outcome := _lose_one(train, work / f"{role}-{number}", undisturbed, rng, role=role)
        ):
            outcomes[role].append(outcome)
    for role, found in outcomes.items():
        tried = [losses for _, losses in found]
        longest = max((took for took, _ in found), default=0)
        seen = always(
            f"the other process ended after at most {longest:.0f} s; resumed to an identical result", tried
        )
        part.add(f"{role} of two training processes", len(tried), seen, tried)
    for what, seen, losses in (
        ("data-preparation worker", "one error line", _lose_worker()),
        ("data-loading thread", "error raised when its batch is due", _bad_batch(good)),
    ):
        part.add(what, 1, always(seen, [losses]), [losses])
    return part


@contextmanager
def _started(words: list[Any], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start the installed command, which a training uses for its further processes; kill remaining processes."""
    with log.open("wb") as file:
        process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "phiseg", *map(str, words)],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):  # its process group has ended
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _finish(words: list[Any], log: Path) -> int:
    """Run a command and return its exit code; kill it after the time limit."""
    with _started(words, log) as process, suppress(subprocess.TimeoutExpired):
        process.wait(PATIENCE)
    return process.returncode


def _lose_one(
    train: list[Any], folder: Path, undisturbed: Path, rng: np.random.Generator, *, role: str
) -> tuple[float, list[str]] | None:
    """Return how long the other process ran and the failures; None if the training ended too early."""
    log = folder.with_suffix(".log")
    metrics = folder / "metrics.jsonl"
    lines = int(rng.integers(1, STEPS - 4))
    with _started([*train, folder], log) as first:
        begun = time.monotonic()
        while not (metrics.exists() and metrics.read_bytes().count(b"\n") >= lines):
            if first.poll() is not None or time.monotonic() > begun + PATIENCE:
                break
            time.sleep(0.005)
        second = _child(first.pid)
        if second is None or time.monotonic() > begun + PATIENCE:
            said = log.read_text(errors="replace")
            return None if first.poll() == 0 else (0.0, [f"it could not be disturbed: {said[-200:]!r}"])
        victim, survivor = (first.pid, second) if role == "first" else (second, first.pid)
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
        killed = time.monotonic()
        if role == "first":
            first.wait()
        while _is_alive(survivor) and time.monotonic() < killed + BOUND:
            first.poll()
            time.sleep(0.02)
        took, losses = time.monotonic() - killed, []
        if _is_alive(survivor):
            losses.append(f"the other process was still there after {BOUND:.0f} s")
    said = log.read_text(errors="replace")
    if "Traceback" in said or "phiseg: error: " not in said:
        losses.append(f"the other process said: {said[-300:]!r}")
    log = folder.with_suffix(".resumed.log")
    code = _finish([*train, folder, "--resume"], log)
    if code != 0:
        losses.append(f"--resume ended with exit code {code}: {log.read_text()[-300:]!r}")
    return took, losses + [f"resumed, {problem}" for problem in differences(undisturbed, folder)]


def _child(pid: int) -> int | None:
    """Return the child of a process, if both are still running."""
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                return int(child)
    return None


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _lose_worker() -> list[str]:
    return _expect(
        PhisegError, "a worker process died", lambda: [result() for _, result in in_order(die, range(8), workers=2)]
    )


def _bad_batch(good: Specimens) -> list[str]:
    stream = TrainingStream(Dataset.open(good.data), batch_size=4, seed=0, augment=AugmentConfig())
    original = stream.batch

    def batch(step: int, device: torch.device | str = "cpu") -> Any:
        if step == 3:
            raise DataError("case 'x' has NaN or infinite pixels")
        return original(step, device)

    stream.batch = batch  # type: ignore[method-assign]
    taken: list[Any] = []

    losses = _expect(DataError, "NaN or infinite pixels", lambda: taken.extend(prefetch(stream, 0, 10)))
    return losses if len(taken) == 3 else [*losses, f"it was raised after {len(taken)} batches instead of 3"]


def _expect(kind: type[Exception], words: str, action: Callable[[], object]) -> list[str]:
    try:
        action()
    except kind as error:
        return [] if words in str(error) else [f"it says '{error}'"]
    return ["there was no error"]
