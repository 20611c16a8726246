"""Measurement of time, in turns within one process, and of memory, in separate processes."""

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from phiseg.models.phiseg import PHiSegConfig

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Scale:
    """Sizes of the benchmarks. The defaults are the reference network on a batch of 12 images of 128 x 128."""

    channels: tuple[int, ...] = (32, 64, 128, 192, 192, 192, 192)
    num_levels: int = 5
    batch_size: int = 12
    size: int = 128
    depth: int = 1
    """Number of slices of a volume. A 2-D network gets each slice as an image."""
    num_samples: int = 100
    num_annotators: int = 4
    many_samples: int = 1000
    """Number of samples for tests of bounded memory."""
    chunk_size: int = 16
    matmul: int = 4096
    """Side of the matrices whose product measures the peak performance."""
    repeats: int = 3
    """Number of timed rounds, after one warm-up round."""
    num_cases: int = 200
    """Number of images in the dataset of the loader benchmark."""
    predict_slices: int = 12
    growth: int = 4
    """Number of points of each growth curve; each is twice the previous one."""

    @property
    def model(self) -> PHiSegConfig:
        """Settings of the network."""
        return PHiSegConfig(channels=self.channels, num_levels=self.num_levels, head_init=1.0)


QUICK = Scale(
    channels=(4, 4, 8, 8),
    num_levels=3,
    batch_size=2,
    size=32,
    num_samples=6,
    many_samples=20,
    chunk_size=4,
    matmul=256,
    repeats=1,
    num_cases=12,
    predict_slices=2,
    growth=2,
)
"""Toy sizes to check that everything runs; the numbers are not meaningful."""


class Timing(NamedTuple):
    """Times of one action in each round."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median in seconds."""
        return median(self.seconds)

    @property
    def spread(self) -> float:
        """Range from the fastest to the slowest round as a share of the median."""
        return (max(self.seconds) - min(self.seconds)) / self.median

    def __str__(self) -> str:
        return f"{in_words(self.median)} ±{50 * self.spread:.0f} %"


def in_words(seconds: float) -> str:
    """Return a time with its unit.

    >>> in_words(0.0123), in_words(12.34)
    ('12.3 ms', '12.3 s')
    """
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def in_turns(actions: Sequence[Callable[[], object]], repeats: int) -> list[Timing]:
    """Time each action `repeats` times in turns (A B A B ...) after a warm-up round, so that all get the same load.

    The return values of the actions are ignored.
    """
    seconds: list[list[float]] = [[] for _ in actions]
    for turn in range(repeats + 1):
        for action, times in zip(actions, seconds, strict=True):
            start = time.perf_counter()
            action()
            if turn:
                times.append(time.perf_counter() - start)
    return [Timing(tuple(times)) for times in seconds]


class Cost(NamedTuple):
    """Time and memory of a task in a separate process."""

    seconds: float
    """Time of the fastest run after the first."""
    before: float
    """Resident MB before the first run: Python, torch, weights and data."""
    peak: float
    """Peak resident MB."""

    @property
    def extra(self) -> float:
        """MB used by the task itself."""
        return self.peak - self.before


def in_own_process(task: str, *, repeats: int = 1, **settings: Any) -> Cost:
    """Run a function of `benchmarks.tasks` in a new process and return its cost."""
    words = [sys.executable, "-m", "benchmarks.tasks", task, json.dumps({"repeats": repeats, **settings})]
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(  # noqa: S603
        words,
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    if done.returncode:
        raise RuntimeError(f"{task} {settings} failed:\n{done.stderr}")
    return Cost(**json.loads(done.stdout.splitlines()[-1]))


def resident(field_name: str) -> float:
    """Return the memory of this process in MB: `VmRSS` is the current value, `VmHWM` the peak.

    getrusage is not suitable, because ru_maxrss of a child process includes the memory of its parent before exec.
    """
    status = Path("/proc/self/status").read_text(encoding="ascii")
    line = next(line for line in status.splitlines() if line.startswith(field_name))
    return int(line.split()[1]) / 1024


@dataclass
class Section:
    """A section of the results: a table with notes."""

    title: str
    header: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        """Return the section as Markdown."""
        lines = [self.header, ["---"] * len(self.header), *self.rows]
        table = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
        return "\n\n".join([f"## {self.title}", table, *self.notes])


def comparison(what: str, plain: Timing, ours: Timing, target: str = "") -> list[str]:
    """Return a row of a table with the header `COMPARISON`."""
    return [what, str(plain), str(ours), f"**{plain.median / ours.median:.2f} x**", target]


COMPARISON = ("what", "plain", "phiseg", "plain / phiseg", "target")


def machine() -> str:
    """Describe the machine without its name and paths."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown CPU")
    capability = torch.backends.cpu.get_cpu_capability()
    return (
        f"{cpu}, {os.cpu_count()} cores, {platform.system()}; Python {platform.python_version()}, "
        f"torch {torch.__version__} ({capability}, {torch.get_num_threads()} threads)."
    )
