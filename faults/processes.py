"""Commands of phiseg as processes that can be watched, limited and killed.

A command is forked from a process that has imported everything already, and is otherwise the command: it has a
session, files and memory of its own. So hundreds of them fit into minutes.
"""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from multiprocessing import resource_tracker
from pathlib import Path
from typing import NoReturn, Self

from phiseg.cli.main import COMMANDS, main

NO_TIME = -1000
"""The code of a command that had to be stopped."""


def import_all() -> None:
    """Import what the commands need, once for all that are forked."""
    for module, _ in COMMANDS.values():
        import_module(f"phiseg.cli.{module}")
    for module in (
        "data.prepare.arrays",
        "data.prepare.legacy",
        "data.prepare.lidc",
        "data.prepare.nifti",
        "data.prepare.phantom",
        "data.check",
        "experiment.experiment_report",
        "plotting.prediction_report",
        "inference.batch_prediction",
        "inference.writers",
        "training.loop",
        "viewer.server",
    ):
        import_module(f"phiseg.{module}")
    import torch

    torch.set_num_threads(1)  # threads do not survive a fork
    resource_tracker.ensure_running()  # outlives the commands, and removes the semaphores of those that are killed


class Command:
    """`phiseg WORDS` in a process group of its own; as a context, it does not outlive its block.

    Args:
        words: what follows `phiseg`.
        folder: where it runs.
        log: takes what it prints.
        limit: called in the new process before the command begins.
    """

    def __init__(
        self, words: Sequence[object], folder: Path, log: Path, limit: Callable[[], None] = lambda: None
    ) -> None:
        self.log = log
        self.begun = time.monotonic()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _run([str(word) for word in words], folder, log, limit)
        self._code: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def wait(self, seconds: float) -> int:
        """Return the exit code; a command that takes longer is killed, and its code is `NO_TIME`."""
        end = time.monotonic() + seconds
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                self.kill()
                return NO_TIME
            time.sleep(0.005)
        return code

    def kill(self) -> None:
        """End it and all that it started, as `kill -9` does."""
        if self.poll() is None:
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:  # it has just begun, and is no group of its own yet
                os.kill(self.pid, signal.SIGKILL)
            while self.poll() is None:
                time.sleep(0.001)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let it stand still while the block runs, unless it has ended."""
        running = self.poll() is None
        if running:
            os.kill(self.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        try:
            yield
        finally:
            if running:
                os.kill(self.pid, signal.SIGCONT)

    @property
    def said(self) -> str:
        """What it printed so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    @property
    def last_line(self) -> str:
        """What it printed last, without progress bars."""
        lines = [line.rpartition("\r")[2].strip() for line in self.said.split("\n")]
        return next((line for line in reversed(lines) if line), "it printed nothing")


def _run(words: list[str], folder: Path, log: Path, limit: Callable[[], None]) -> NoReturn:
    code = 1
    try:
        os.setsid()
        os.chdir(folder)
        speak_into(log)
        limit()
        main(words)
    except SystemExit as exit:
        code = exit.code if isinstance(exit.code, int) else 0 if exit.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def speak_into(log: Path) -> None:
    """Let this process, and the libraries in it, print into a file, and read nothing."""
    sys.stdout.flush()
    sys.stderr.flush()
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115


def run(words: Sequence[object], folder: Path, *, seconds: float = 600) -> Command:
    """Run a command to its end.

    Raises:
        RuntimeError: it failed, which it must not here.
    """
    with Command(words, folder, folder / "log.txt") as command:
        if command.wait(seconds) != 0:
            raise RuntimeError(f"phiseg {' '.join(map(str, words))}\n{command.said}")
    return command


def die(number: int) -> int:
    """End this worker as the system does when memory is short; only the third of some."""
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return number
