"""Damaged inputs, each read by the command that a user would run.

Every command must end with exit code 0, or with 2 and one error line, in bounded time and memory, without a
traceback or crash, and without executing code in a file. Each process reads many inputs, and is replaced if it
dies.
"""

import json
import os
import re
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import chdir
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from phiseg.cli.main import main

from .inputs import FILES, Bench
from .processes import speak_into
from .record import Part, counted
from .requests import REQUESTS, ViewerUnderFire
from .specimens import Specimens

SHARES = {kind: share for kind, (share, _) in FILES.items()} | REQUESTS
MEMORY = 3 << 29
"""Maximum additional address space in bytes for reading an input."""
CPU_SECONDS = 20.0
"""Maximum CPU time per input."""
WALL_SECONDS = 300.0
"""Maximum wall-clock time per input, to detect commands that wait forever."""
LONGEST_LINE = 3000
"""Maximum length of an error line in characters."""
INPUTS_OF_A_WORKER = 400
DEEP = Path("1", "2", "3")
"""Folder of the inputs, as deep as the relative paths in damaged names, so that these end in a checked folder."""
ROOT = Path("/")
"""Target of absolute paths in damaged names."""
HOW = f"""\
Every input is a valid file or request with random damage:

- flipped bits, cut or repeated bytes
- extreme numbers in headers, values of other types, deep nesting
- entities and aliases that expand without limit
- names that lead out of their folder (path traversal)
- pickles that run code

Checksums of gzip, zip and PNG are corrected, so that the damage is actually read. The command that a user would \
run reads the input, with at most {MEMORY >> 20} MB of additional address space and {CPU_SECONDS:.0f} s of CPU \
time. A trial passes if:

- the command ends with exit code 0, or with exit code 2 and one error line
- there is no traceback and no crash
- nothing is written where the names lead: the working folder, three folders above it, or `/evil`
- the code in a pickle did not run

*Read*: the command completed. *Skipped*: the case was reported and skipped. *Rejected*: the command \
stopped with an error line."""
PROGRESS = re.compile(r"\d+%\||[\d?](it|case|step|series|row)/s|[\[<]\d\d:\d\d")
"""Pattern of progress bars."""


@dataclass(frozen=True)
class Outcome:
    """Outcome of one input."""

    kind: str
    number: int
    seen: str
    loss: str | None = None
    seconds: float = 0


def bad_bytes(good: Specimens, *, seed: int, inputs: int, seconds: float, workers: int = 2) -> Part:
    """Read up to `inputs` damaged inputs of all kinds within the time."""
    tasks = _tasks(inputs, seed)
    outcomes = list(_all_outcomes(good, tasks, seed=seed, seconds=seconds, workers=workers))
    part = Part("Damaged files and requests", HOW, asked=len(tasks))
    for kind in SHARES:
        of_kind = [outcome for outcome in outcomes if outcome.kind == kind]
        seen = Counter(outcome.seen for outcome in of_kind)
        losses = [[f"input {outcome.number}: {outcome.loss}"] for outcome in of_kind if outcome.loss]
        part.add(kind, len(of_kind), counted(dict(seen.most_common())), losses)
    return part


def _tasks(inputs: int, seed: int) -> list[tuple[str, int]]:
    """List the inputs in mixed order, so that a short run covers all kinds."""
    total = sum(SHARES.values())
    tasks = [(kind, n) for kind, share in SHARES.items() for n in range(max(1, inputs * share // total))]
    order = np.random.default_rng(seed).permutation(len(tasks))
    return [tasks[place] for place in order]


def _all_outcomes(
    good: Specimens, tasks: list[tuple[str, int]], *, seed: int, seconds: float, workers: int
) -> Iterator[Outcome]:
    end = time.monotonic() + seconds
    waiting = tasks[::-1]
    readers: list[_Reader] = []
    try:
        while readers or (waiting and time.monotonic() < end):
            while waiting and len(readers) < workers and time.monotonic() < end:
                share = [waiting.pop() for _ in range(min(INPUTS_OF_A_WORKER, -(-len(waiting) // workers)))]
                readers.append(_Reader(good, share, seed=seed, end=end))
            select.select([reader.pipe for reader in readers], [], [], 0.2)
            for reader in list(readers):
                yield from reader.outcomes()
                if reader.ended:
                    readers.remove(reader)
                    waiting += reader.left[::-1]
    finally:
        for reader in readers:
            reader.kill()


class _Reader:
    """A process that reads inputs one after another and reports each outcome."""

    def __init__(self, good: Specimens, tasks: list[tuple[str, int]], *, seed: int, end: float) -> None:
        self.left, self._last = list(tasks), tasks[-1]
        self.ended = False
        self.pipe, write = os.pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.pipe)
            _read_inputs(good, tasks, write, seed=seed, end=end)
        os.close(write)
        os.set_blocking(self.pipe, False)
        self._buffer = b""
        self._begun, self._cpu_before = time.monotonic(), 0.0

    def outcomes(self) -> Iterator[Outcome]:
        """Yield the outcomes since the last call, including an input that killed the process."""
        try:
            while chunk := os.read(self.pipe, 1 << 16):
                self._buffer += chunk
            closed = True
        except BlockingIOError:
            closed = False
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            self._begun, self._cpu_before = time.monotonic(), self._cpu()
            self.left.pop(0)
            yield Outcome(**json.loads(line))
        if closed:
            _, status = os.waitpid(self.pid, 0)
            self._end()
            if code := os.waitstatus_to_exitcode(status):
                yield self._lost(f"the process died ({signal.Signals(-code).name if code < 0 else code})")
        elif self._cpu() - self._cpu_before > CPU_SECONDS or time.monotonic() - self._begun > WALL_SECONDS:
            self.kill()
            yield self._lost("timeout")

    def kill(self) -> None:
        """End the process."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self._end()

    def _end(self) -> None:
        os.close(self.pipe)
        self.ended = True

    def _lost(self, reason: str) -> Outcome:
        kind, number = self.left.pop(0) if self.left else self._last  # the process died shortly after it
        return Outcome(kind, number, "lost", reason)

    def _cpu(self) -> float:
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _read_inputs(good: Specimens, tasks: list[tuple[str, int]], pipe: int, *, seed: int, end: float) -> None:
    code = 1
    try:
        with tempfile.TemporaryDirectory(
            prefix="inputs-", dir=good.root.parent, ignore_cleanup_errors=True
        ) as folder:
            base = Path(folder)
            temporary = base / DEEP / "temporary"
            temporary.mkdir(parents=True)
            tempfile.tempdir = str(temporary)  # folder for uploads of the viewer
            log = base.with_suffix(".log")
            speak_into(log)
            viewer: ViewerUnderFire | None = None
            size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, resource.RLIM_INFINITY))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            for kind, number in tasks:
                if time.monotonic() > end:
                    break
                if kind in REQUESTS:
                    viewer = viewer or ViewerUnderFire(good)
                os.truncate(log, 0)
                outcome = read_one(kind, number, good, base, log, seed=seed, viewer=viewer)
                os.write(pipe, json.dumps(asdict(outcome)).encode() + b"\n")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def read_one(
    kind: str, number: int, good: Specimens, base: Path, log: Path, *, seed: int, viewer: ViewerUnderFire | None
) -> Outcome:
    """Create one damaged input, read it, and judge the outcome."""
    rng = np.random.default_rng([seed, list(SHARES).index(kind), number])
    bench = Bench(good, base / DEEP / "input", base / "canary", rng)
    bench.folder.mkdir(parents=True)
    in_root = set(ROOT.glob("evil*"))
    begun = time.process_time()
    try:
        with chdir(bench.folder.parent):
            if kind in REQUESTS:
                assert viewer is not None, "started by the reader"
                ask = dict(zip(REQUESTS, (viewer.request, viewer.upload, viewer.noise), strict=True))[kind]
                seen, loss = "answered", ask(rng, bench.canary)
                if "Traceback" in (said := log.read_text(errors="replace")):
                    loss = f"a traceback: {_last_error(said)}"
            else:
                seen, loss = _read_file(kind, bench, log)
        unexpected = [*strays(base), *(set(ROOT.glob("evil*")) - in_root)]
        if unexpected:
            loss = f"{unexpected[0].name} was written, or run"
    finally:
        for path in [bench.folder, *strays(base)]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return Outcome(kind, number, "lost" if loss else seen, loss, time.process_time() - begun)


def strays(base: Path) -> list[Path]:
    """Return files outside the folders of inputs and temporary files: next to them or above them."""
    deep = base / DEEP
    expected = {deep / "input", deep / "temporary", deep, *deep.parents}
    places = [deep, *deep.parents][: len(DEEP.parts) + 1]
    return sorted(path for place in places for path in place.iterdir() if path not in expected)


def _read_file(kind: str, bench: Bench, log: Path) -> tuple[str, str | None]:
    words = [str(word) for word in FILES[kind][1](bench)]
    code: object = None
    try:
        main(words)
    except SystemExit as exit:
        code = exit.code or 0
    except BaseException as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        ours = [frame for frame in traceback.extract_tb(error.__traceback__) if "phiseg" in frame.filename]
        where = " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in [place, *ours[:-4:-1]])
        return "lost", f"{words[0]}: {type(error).__name__}: {str(error)[:200]} ({where})"
    sys.stdout.flush()
    sys.stderr.flush()
    return judge(words[0], code, log.read_text(encoding="utf-8", errors="replace"))


def judge(command: str, code: object, said: str) -> tuple[str, str | None]:
    """Return the outcome of an input from the output of the command, and the problem if there is one."""
    lines = [line.rpartition("\r")[2] for line in said.split("\n")]
    lines = [line for line in lines if line.strip() and not PROGRESS.search(line)]
    if "Traceback (most recent call last)" in said:
        return "lost", f"{command}: a traceback: {_last_error(said)}"
    if code not in (0, 2):
        return "lost", f"{command}: exit code {code}: {lines[-1:]}"
    warnings = [line for line in lines if re.search(r"\w+Warning: ", line)]
    if warnings:
        return "lost", f"{command}: {warnings[0][:200]}"
    if any(len(line) > LONGEST_LINE for line in lines):
        return "lost", f"{command}: a line of {max(map(len, lines)):,} characters"
    if code == 0:
        return "skipped" if "skipped: " in said else "read", None
    told = [line for line in lines if line.startswith("phiseg: ")]
    if command == "predict" and any("phiseg: skipped " in line for line in told):
        return "skipped", None
    if not lines or not lines[-1].startswith("phiseg: error: "):
        return "lost", f"{command}: exit code 2, last line {lines[-1:]}"
    return "rejected", None


def _last_error(said: str) -> str:
    lines = [line for line in said.splitlines() if re.match(r"[\w.]+(Error|Exception|Warning)\b", line)]
    frames = re.findall(r'File "[^"]*?([^/"]+)", line (\d+)', said)
    return f"{(lines or ['?'])[-1][:200]} ({' < '.join(':'.join(frame) for frame in frames[:-4:-1])})"
