"""Run the fault tests and write docs/reliability.md.

    python -m faults                                        about 25 minutes on 2 cores; `make faults`
    python -m faults --parts kills bytes --minutes 1        some parts, short; prints the report

The seed determines what is damaged and when. Times are wall-clock times, so no two runs kill at the same
instruction. `python -m faults.again` reproduces a damaged input.
"""

import argparse
import os
import platform
import shlex
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before importing torch, whose threads do not survive a fork

from .disk import disk
from .fuzzing import bad_bytes
from .kills import kills
from .load import load
from .numbers import numbers
from .processes import import_all
from .ranks import ranks
from .record import Part
from .report import describe
from .specimens import Specimens, make_specimens

REPORT = Path(__file__).parents[1] / "docs" / "reliability.md"
MINUTES = 25.0
SHARES = {"kills": 0.40, "disk": 0.06, "ranks": 0.06, "bytes": 0.42, "numbers": 0.01, "load": 0.05}
"""Share of the time of each part. A part that finishes early leaves its time to the others."""
LOAD_SECONDS = 120.0
"""Minimum time of the part `load`, unless this exceeds the remaining time per part."""
ORDER = ("load", "numbers", "disk", "ranks", "kills", "bytes")
"""Order of the parts: short ones first, so that the time they save or overrun is shared."""


def main() -> None:
    """Run the selected parts and write or print the report; exit with code 1 if there was a failure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--parts", nargs="+", choices=SHARES, default=list(SHARES), help="parts to run; default: all"
    )
    parser.add_argument("--minutes", type=float, default=MINUTES, help="total time in minutes")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    parser.add_argument("--kills", type=int, default=180, help="in all")
    parser.add_argument("--inputs", type=int, default=11_000, help="total number of damaged inputs")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds of the parts disk and ranks")
    parser.add_argument("--workers", type=int, default=2, help="number of processes that read damaged inputs")
    parser.add_argument("--out", type=Path, help="report to write; default: docs/reliability.md if all parts run")
    options = parser.parse_args()
    import_all()
    end = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory(prefix="phiseg-faults-", ignore_cleanup_errors=True) as folder:
        work = Path(folder)
        for name in ("good", "temporary"):
            (work / name).mkdir()
        os.environ["TMPDIR"] = tempfile.tempdir = str(work / "temporary")  # for leftovers of killed commands
        good = make_specimens(work / "good")
        done: dict[str, Part] = {}
        left = [name for name in ORDER if name in options.parts]
        while left:
            seconds = share(left, end - time.monotonic())
            name = left.pop(0)
            done[name] = _run(name, good, work / name, options, seconds)
    parts = [done[name] for name in options.parts]
    text = describe(
        parts,
        command=_command(parser, options),
        seed=options.seed,
        where=_where(),
        left_out=[name for name in SHARES if name not in options.parts],
    )
    out = options.out or (REPORT if options.parts == list(SHARES) else None)
    if out:
        out.write_text(text, encoding="utf-8")
    print(f"report: {out}" if out else text)
    for loss in (loss for part in parts for loss in part.losses):
        print(f"lost: {loss}", file=sys.stderr)
    sys.exit(any(part.losses for part in parts))


def share(left: Sequence[str], seconds: float) -> float:
    """Return the time of the first of the remaining parts, given the remaining seconds."""
    part = max(seconds, 0) * SHARES[left[0]] / sum(SHARES[name] for name in left)
    return max(part, min(LOAD_SECONDS, seconds / len(left))) if left[0] == "load" else part


def _run(name: str, good: Specimens, work: Path, options: argparse.Namespace, seconds: float) -> Part:
    seed, rounds = options.seed, options.rounds
    run: dict[str, Callable[[], Part]] = {
        "kills": lambda: kills(good, work, seed=seed, number=options.kills, seconds=seconds),
        "disk": lambda: disk(good, work, seed=seed, rounds=rounds, seconds=seconds),
        "ranks": lambda: ranks(good, work, seed=seed, rounds=rounds, seconds=seconds),
        "bytes": lambda: bad_bytes(
            good, seed=seed, inputs=options.inputs, seconds=seconds, workers=options.workers
        ),
        "numbers": lambda: numbers(good, work, seed=seed),
        "load": lambda: load(good, work, seed=seed, seconds=seconds),
    }
    print(f"{name}: up to {seconds:.0f} s", file=sys.stderr, flush=True)
    try:
        work.mkdir()
        part = run[name]()
    except Exception as error:  # keep the results of the other parts
        traceback.print_exc()
        part = Part(
            name.capitalize(), "This part stopped with an error. Its results are not available.", of_faults=False
        )
        told = "".join(traceback.format_exception_only(error)).split("\n")
        part.add("the part itself", 1, "see below", [[next(line for line in reversed(told) if line.strip())]])
    print(f"{name}: {part.tried:,} tried, {part.lost:,} lost", file=sys.stderr)
    return part


def _command(parser: argparse.ArgumentParser, options: argparse.Namespace) -> str:
    """Return the command line without the path of the report."""
    words = ["python", "-m", "faults"]
    for name, value in vars(options).items():
        if name != "out" and value != parser.get_default(name):
            words += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
    return shlex.join(words)


def _where() -> str:
    """Return date, versions and kind of machine, without names and paths."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("phiseg", "torch", "numpy"))
    day = datetime.now(UTC).date()
    return f"{day}, {packages}, Python {platform.python_version()}, {platform.system()}, {os.cpu_count()} CPU cores"


if __name__ == "__main__":
    main()
