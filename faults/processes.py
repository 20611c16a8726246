"""Commands of phiseg as processes that can be monitored, limited and killed.

A command is forked from a process that has already imported everything, so that hundreds of commands run in
minutes. It has a separate session, files and memory.
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
"""Exit code of a command that was stopped because of the time limit."""


def import_all() -> None:
    """Import all modules that commands need, before forking."""
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
        "inference.prediction_folder",
        "inference.sample_writer",
        "training.loop",
        "viewer.server",
    ):
        import_module(f"phiseg.{module}")
    import torch

    torch.set_num_threads(1)  # threads do not survive a fork
    resource_tracker.ensure_running()  # removes the semaphores of killed commands


class Command:
    """`phiseg WORDS` in a separate process group. As a context manager, it is killed at the end of the block.

    Args:
        words: arguments of `phiseg`.
        folder: working directory.
        log: file for the output.
        limit: function called in the new process before the command starts.
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
        """Return the exit code, or None if it is running."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def wait(self, seconds: float) -> int:
        """Return the exit code; after the time limit the command is killed and the code is `NO_TIME`."""
        end = time.monotonic() + seconds
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                self.kill()
                return NO_TIME
            time.sleep(0.005)
        return code

    def kill(self) -> None:
        """Kill the command and its child processes with SIGKILL."""
        if self.poll() is None:
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:  # it has just started and is not a process group yet
                os.kill(self.pid, signal.SIGKILL)
            while self.poll() is None:
                time.sleep(0.001)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the command during the block, unless it has ended."""
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
        """Output so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    @property
    def last_line(self) -> str:
        """Last line of the output, without progress bars."""
        lines = [line.rpartition("\r")[2].strip() for line in self.said.split("\n")]
        return next((line for line in reversed(lines) if line), "no output")


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
    """Redirect the output of this process and its libraries to a file, and close its input."""
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
        RuntimeError: the command failed.
    """
    with Command(words, folder, folder / "log.txt") as command:
        if command.wait(seconds) != 0:
            raise RuntimeError(f"phiseg {' '.join(map(str, words))}\n{command.said}")
    return command


def die(number: int) -> int:
    """Kill this worker, as the system does if memory is short, if it is the third one."""
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return number
