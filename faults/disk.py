"""Full disks, read-only folders and removed folders: a clear error, and no result is lost."""

import os
import resource
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from .processes import Command
from .record import Part, always
from .scenarios import Scenario, scenarios
from .specimens import Specimens
from .trees import differences, half_written

PATIENCE = 300.0


def disk(good: Specimens, work: Path, *, seed: int, rounds: int, seconds: float) -> Part:
    """Run every scenario on small, read-only and removed folders, up to `rounds` times within the time."""
    rng = np.random.default_rng(seed)
    end = time.monotonic() + seconds
    work.mkdir(parents=True, exist_ok=True)
    real = can_mount(work)
    locked = real or os.geteuid() != 0  # a read-only folder is possible
    chosen = [scenario for scenario in scenarios(good, workers=1) if scenario.name != "experiment"]
    asked = rounds * (2 * len(chosen) + 1) + locked * len(chosen)
    part = Part("Disk", _how(real=real), asked=asked)
    sizes = {scenario.name: _undisturbed(scenario, work / scenario.name) for scenario in chosen}
    tried: dict[str, list[list[str]]] = {"full": [], "resumed": [], "read-only": [], "vanished": []}
    train = next(scenario for scenario in chosen if scenario.name == "train")
    for number in range(rounds):
        if time.monotonic() < end:
            tried["resumed"].append(
                _fills_up(train, work / "train" / f"round-{number}" / "fills-up", work, rng, real=real)
            )
        for scenario in chosen:
            if time.monotonic() > end:
                break
            place = work / scenario.name
            folder = place / f"round-{number}"
            tried["full"].append(_full(scenario, folder / "full", place, sizes[scenario.name], rng, real=real))
            tried["vanished"].append(_vanishing(scenario, folder / "vanished", place, rng))
            if number == 0 and locked:
                tried["read-only"].append(_read_only(scenario, folder / "read-only"))
    rows = {
        "disk too small for the result": ("full", "one error line and no leftover files, or a complete result"),
        "disk fills up during training": ("resumed", "files intact; resumed to an identical result"),
        "read-only folder": ("read-only", "one error line, before any computation"),
        "folder removed": ("vanished", "one error line, or a complete result"),
    }
    for what, (key, seen) in rows.items():
        part.add(what, len(tried[key]), always(seen, tried[key]), tried[key])
    return part


def _how(*, real: bool) -> str:
    small = (
        "a file system in memory (tmpfs)"
        if real
        else "a limit on the size of each file (RLIMIT_FSIZE), because mounting was not allowed here"
    )
    return (
        f"- **Disk too small:** {small}. Its size is random, from nothing to slightly more than needed.\n"
        "- **Disk fills up:** the disk is filled at a random moment of a training.\n"
        "- **Folder removed:** the folder is renamed and deleted at a random moment."
    )


def can_mount(work: Path) -> bool:
    """Return whether a small file system can be mounted."""
    place = work / "mount"
    place.mkdir(parents=True, exist_ok=True)
    try:
        with small_disk(place, 1 << 20):
            return True
    except OSError:
        return False


@contextmanager
def small_disk(place: Path, size: int, options: str = "") -> Iterator[None]:
    """Mount a file system in memory with a size of `size` bytes.

    Raises:
        OSError: mounting is not allowed.
    """
    place.mkdir(parents=True, exist_ok=True)
    words = ["mount", "-t", "tmpfs", "-o", f"size={size}{options}", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(words, capture_output=True, check=False).returncode:  # noqa: S603
        raise OSError("mounting is not allowed")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)  # noqa: S603, S607


def _undisturbed(scenario: Scenario, work: Path) -> int:
    """Run a scenario and return the size of its result in bytes, with each file rounded up to pages."""
    command = _finished(scenario, work / "undisturbed")
    if command.poll() != 0:
        raise RuntimeError(f"{scenario.name}, undisturbed: {command.last_line}")
    (work / "seconds").write_text(str(time.monotonic() - command.begun))
    return sum(-(-path.stat().st_size // 4096) * 4096 for path in work.rglob("*") if path.is_file())


def _full(
    scenario: Scenario, folder: Path, work: Path, size: int, rng: np.random.Generator, *, real: bool
) -> list[str]:
    room = int(size * rng.uniform(0, 1.3)) // 4096 * 4096 + 4096
    if real:
        with small_disk(folder, room):
            return _judge_full(scenario.name, _finished(scenario, folder), folder, work / "undisturbed")
    command = _finished(scenario, folder, limit=lambda: _limit_files(room // 3))
    return _judge_full(scenario.name, command, folder, work / "undisturbed")


def _limit_files(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def _finished(scenario: Scenario, folder: Path, **options: Any) -> Command:
    with scenario.start(folder, **options) as command:
        command.wait(PATIENCE)
    return command


def _judge_full(name: str, command: Command, folder: Path, undisturbed: Path) -> list[str]:
    losses = _judge(name, command)
    if command.poll() == 0:
        return losses + [f"{name}: exit code 0, but {problem}" for problem in differences(undisturbed, folder)]
    if name != "predict":  # which keeps its other cases
        left = [path.name for path in folder.rglob(".*") if not path.name.endswith(".work")]
        losses += [f"{name}: {path} is left over" for path in left]
    return losses + [f"{name}: {problem}" for problem in half_written(folder)]


def _judge(name: str, command: Command) -> list[str]:
    """Return the problems of a command, which must succeed or end with one line that names the unwritable file."""
    code, said, last = command.poll(), command.said, command.last_line
    if "Traceback" in said or code not in (0, 2):
        return [f"{name}: exit code {code}: {last}"]
    if code == 2 and not last.startswith("phiseg: error: ") and "phiseg: skipped " not in said:
        return [f"{name}: exit code 2, last line '{last}'"]
    return []


def _fills_up(train: Scenario, folder: Path, work: Path, rng: np.random.Generator, *, real: bool) -> list[str]:
    """Fill the disk at a random moment of a training, check its state, free the disk, and resume."""
    undisturbed = work / "train" / "undisturbed"
    if not real:
        losses = _judge("train", _finished(train, folder, limit=lambda: _limit_files(20000)))
        return losses + _resumed(train, folder, undisturbed)
    duration = float((work / "train" / "seconds").read_text())
    with small_disk(folder, 4 << 20):
        with train.start(folder) as command:
            time.sleep(rng.uniform(0, duration))
            _fill(folder / "filler")
            command.wait(PATIENCE)
        losses = _judge("train", command) + half_written(folder)
        (folder / "filler").unlink()
        return losses + _resumed(train, folder, undisturbed)


def _fill(path: Path) -> None:
    """Write until the disk is full."""
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def _resumed(train: Scenario, folder: Path, undisturbed: Path) -> list[str]:
    losses = _judge("train --resume", _finished(train, folder, again=True))
    return losses + [f"after it, {problem}" for problem in differences(undisturbed, folder)]


def _read_only(scenario: Scenario, folder: Path) -> list[str]:
    if os.geteuid() == 0:
        with small_disk(folder, 1 << 20, ",ro"):
            command = _finished(scenario, folder)
    else:
        folder.mkdir(parents=True)
        folder.chmod(0o555)
        command = _finished(scenario, folder)
        folder.chmod(0o755)
    if command.poll() == 2 and command.last_line.startswith("phiseg: error: cannot write "):
        return []
    return [f"{scenario.name}: exit code {command.poll()}: {command.last_line}"]


def _vanishing(scenario: Scenario, folder: Path, work: Path, rng: np.random.Generator) -> list[str]:
    """Remove the folder of a command, or its result, at a random moment."""
    duration = float((work / "seconds").read_text())
    whole_folder = rng.random() < 0.5
    gone = folder.with_name("gone")
    with scenario.start(folder) as command:
        time.sleep(rng.uniform(0, duration))
        with command.paused():  # so that it does not end before the removal
            was_whole = not differences(work / "undisturbed" / "out", folder / "out")
            with suppress(FileNotFoundError):  # nothing was written yet
                (folder if whole_folder else folder / "out").rename(gone)
                shutil.rmtree(gone, ignore_errors=True)
        command.wait(PATIENCE)
    losses = _judge(scenario.name, command)
    if command.poll() == 0 and (not was_whole or (folder / "out").exists()):
        losses += [
            f"{scenario.name}: exit code 0, but {problem}" for problem in differences(work / "undisturbed", folder)
        ]
    return losses
