"""SIGKILL at random moments: every restart resumes, and the result is that of an undisturbed run."""

import math
import os
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from .processes import Command
from .record import Part
from .scenarios import Scenario, is_there_already, scenarios
from .specimens import Specimens
from .trees import differences, half_written, visible_files

KILLS_OF_A_LIFE = 6
"""Number of kills after which a command runs to its end, so that its result can be compared."""
PATIENCE = 300.0
"""Time limit in seconds of an undisturbed command."""


@dataclass
class Tally:
    """Counts of one scenario."""

    kills: int = 0
    lives: int = 0
    files_checked: int = 0
    writing: float = math.inf
    """Writing time in seconds when it last ended before its first kill; the undisturbed run may be slower."""
    losses: list[list[str]] = field(default_factory=list)
    """Problems by kill; problems at the end of a run belong to its last kill."""


@dataclass(frozen=True)
class Undisturbed:
    """An undisturbed run."""

    folder: Path
    before_writing: float
    """Seconds until the first file was written."""
    writing: float
    """Seconds from the first file to the end."""


def kills(good: Specimens, work: Path, *, seed: int, number: int, seconds: float, workers: int = 2) -> Part:
    """Kill commands up to `number` times in total within the time."""
    rng = np.random.default_rng(seed)
    end = time.monotonic() + seconds
    chosen = scenarios(good, workers=workers)
    tallies = {scenario.name: Tally() for scenario in chosen}
    undisturbed: dict[str, Undisturbed] = {}
    each = -(-number // len(chosen))
    left = list(chosen)
    while left and time.monotonic() < end:
        scenario = left.pop(0)
        name, tally = scenario.name, tallies[scenario.name]
        try:
            if name not in undisturbed:
                undisturbed[name] = _undisturbed(scenario, work / name)
            folder = work / name / f"life-{tally.lives}"
            live(scenario, folder, undisturbed[name], tally, rng, most=each - tally.kills)
        except Exception as error:  # the scenario is skipped from here on
            tally.losses.append([f"life {tally.lives}: {type(error).__name__}: {error}"])
        else:
            left += [scenario] if tally.kills < each else []
    part = Part("Kill -9", _how(chosen), asked=each * len(chosen))
    for name, tally in tallies.items():
        same = f"{tally.lives} results identical byte for byte; {tally.files_checked:,} files intact after a kill"
        part.add(f"`phiseg {name}`", tally.kills, "see below" if tally.losses else same, tally.losses)
    return part


def _how(chosen: list[Scenario]) -> str:
    excepted = [f"`{file}` ({why})" for scenario in chosen for file, why in scenario.may_differ.items()]
    return (
        "Each test kills a command and its child processes with SIGKILL at a random moment: in three of four "
        "trials while it writes, otherwise before.\n"
        "\n"
        "- After each kill, every result file with its final name is read completely.\n"
        "- Then the command is run again (`phiseg train` with `--resume`) and killed again, "
        f"up to {KILLS_OF_A_LIFE} times.\n"
        "- Finally it runs to its end. All files must be identical to those of an undisturbed run, with none "
        f"missing and none left over. Not compared: {' and '.join(excepted)}.\n"
        "\n"
        "The test does not simulate a power cut, where the disk itself may lose data. Files are flushed before "
        "they are renamed."
    )


def _undisturbed(scenario: Scenario, work: Path) -> Undisturbed:
    folder = work / "undisturbed"
    with scenario.start(folder) as command:
        _wait_for_change(command, folder)
        first = time.monotonic()
        if command.wait(PATIENCE) != 0:
            raise RuntimeError(f"undisturbed: {command.last_line}")
    return Undisturbed(folder, first - command.begun, time.monotonic() - first)


def live(
    scenario: Scenario, folder: Path, expected: Undisturbed, tally: Tally, rng: np.random.Generator, *, most: int
) -> None:
    """Kill a command several times, let it end, and compare its result."""
    tally.lives += 1
    found: list[list[str]] = []
    for number in range(min(most, KILLS_OF_A_LIFE)):
        with scenario.start(folder, again=number > 0) as command:
            if rng.random() < 0.25:
                _pause(command, rng.uniform(0, expected.before_writing))
            else:
                _wait_for_change(command, folder)
                paused = _pause(command, rng.uniform(0, min(expected.writing, tally.writing)))
                if number == 0 and command.poll() is not None:
                    tally.writing = max(paused, expected.writing / 4)  # the first file may have been detected late
            if command.poll() is not None:
                break
            command.kill()
        tally.kills += 1
        tally.files_checked += sum(1 for _ in visible_files(folder))
        found.append([f"life {tally.lives}, kill {number + 1}: {problem}" for problem in half_written(folder)])
    else:
        command = scenario.start(folder, again=True)
    with command:
        code = command.wait(PATIENCE)
    found = found or [[]]  # it may have ended before it could be killed
    if code != 0 and not is_there_already(command):
        found[-1].append(f"life {tally.lives}: exit code {code}: {command.last_line}")
    unlike = differences(expected.folder, folder, may_differ=tuple(f"out/{name}" for name in scenario.may_differ))
    found[-1] += [f"life {tally.lives}: {problem}" for problem in unlike]
    tally.losses += [problems for problems in found if problems]


def _wait_for_change(command: Command, folder: Path) -> None:
    """Wait until a command writes something, or ends."""
    before = _names_and_times(folder)
    while command.poll() is None and _names_and_times(folder) == before:
        time.sleep(0.002)


def _names_and_times(folder: Path) -> Counter[tuple[str, int]]:
    found: Counter[tuple[str, int]] = Counter()
    for parent, folders, files in os.walk(folder):  # ignores folders that are removed
        for path in (os.path.join(parent, name) for name in (*folders, *files)):  # noqa: PTH118
            try:
                found[path, os.stat(path).st_mtime_ns] += 1  # noqa: PTH116
            except FileNotFoundError:  # a temporary file
                found[path, 0] += 1
    return found


def _pause(command: Command, seconds: float) -> float:
    """Wait for the given seconds or until a command ends; return the time waited."""
    begun = time.monotonic()
    while command.poll() is None and time.monotonic() < begun + seconds:
        time.sleep(0.001)
    return time.monotonic() - begun
