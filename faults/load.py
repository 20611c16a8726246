"""The viewer with many clients: all requests are answered, and its memory is stable."""

import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from threading import Lock

from .record import Part, always
from .specimens import Specimens

CLIENTS = 20
MAY_GROW = 0.1
"""Maximum relative growth of memory from the second to the last third of the time."""
PATIENCE = 120.0
TO_END = 30.0
"""Seconds for the viewer to finish running requests and to stop."""


@dataclass
class Log:
    """Observations of the clients."""

    asked: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    losses: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Failures by kind of request; those of the viewer process under "viewer"."""
    lock: Lock = field(default_factory=Lock)


def load(good: Specimens, work: Path, *, seed: int, seconds: float, clients: int = CLIENTS) -> Part:
    """Let clients click, load slices, upload scans, export and disconnect for some time."""
    work.mkdir(parents=True, exist_ok=True)
    log, memory = Log(), list[tuple[float, float]]()
    with (work / "log.txt").open("wb") as output:
        process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "phiseg", "view", good.run, good.scan, "--no-browser", "--port", "0"],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        port = _port(work / "log.txt", process)
        begun = time.monotonic()
        with ThreadPoolExecutor(clients) as pool:
            waiting = [pool.submit(_client, port, good, log, seed + i, begun + seconds) for i in range(clients)]
            while not all(future.done() for future in waiting):
                memory.append((time.monotonic() - begun, _memory_mb(process.pid)))
                time.sleep(0.5)
            for future in waiting:
                future.result()
        if process.poll() is not None:
            log.losses["viewer"].append(f"it ended with exit code {process.returncode}")
    finally:
        if not _stop(process):
            log.losses["viewer"].append(f"it was still there {TO_END:.0f} s after Ctrl-C")
    if "Traceback" in (said := (work / "log.txt").read_text(errors="replace")):
        log.losses["viewer"].append(f"it printed a traceback: {said[-300:]!r}")
    return _report(log, memory, clients, seconds)


def _stop(process: subprocess.Popen[bytes]) -> bool:
    """Stop the viewer and return whether Ctrl-C was sufficient."""
    try:
        with suppress(ProcessLookupError):  # it has ended
            os.killpg(process.pid, signal.SIGINT)
        process.wait(TO_END)
    except subprocess.TimeoutExpired:
        return False
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return True


def _how(clients: int, seconds: float) -> str:
    return (
        f"`phiseg view` serves {clients} clients at once for {seconds:.0f} s. Each client repeatedly clicks, loads "
        "slices, uploads a scan, exports a result, or disconnects in the middle of an answer.\n"
        "\n"
        "- A request passes if its answer is complete.\n"
        f"- Resident memory must grow by at most {100 * MAY_GROW:.0f} % from the second to the last third of the "
        "run. The table gives the medians. In the first third, the caches fill up.\n"
        "\n"
        "These requests are normal use and are not counted as faults."
    )


def _report(log: Log, memory: list[tuple[float, float]], clients: int, seconds: float) -> Part:
    part = Part(
        "Load",
        _how(clients, seconds),
        of_faults=False,
    )
    times = sorted(log.seconds) or [0.0]
    slow = times[int(0.95 * len(times))]
    answered = f"complete answer after {median(times):.1f} s (median), {slow:.1f} s (95th percentile)"
    rows = {
        "click": ("clicks", answered),
        "slice": ("slices", "answered"),
        "drop": ("uploads", "answered"),
        "export": ("exports", "answered"),
        "leave": ("clients that disconnected", "other clients not affected"),
    }
    for what, (name, seen) in rows.items():
        part.add(name, log.asked[what], seen, [[loss] for loss in log.losses[what]])
    viewer = [log.losses["viewer"]]
    part.add("viewer process", 1, always("ran to the end", viewer), viewer)
    end = memory[-1][0] if memory else 0
    middle = [mb for when, mb in memory if end / 3 <= when < 2 * end / 3] or [0.0]
    last = [mb for when, mb in memory if when >= 2 * end / 3] or [0.0]
    grown = median(last) / max(median(middle), 1) - 1
    losses = [f"it grew by {100 * grown:.0f} %"] if grown > MAY_GROW else []
    seen = f"{median(middle):.0f} MB, then {median(last):.0f} MB ({len(memory)} readings)"
    part.add("viewer memory", 1, seen, [losses])
    return part


def _port(log: Path, process: subprocess.Popen[bytes]) -> int:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and process.poll() is None:
        said = log.read_text(errors="replace")
        if "http://" in said and "Ctrl-C" in said:
            return int(said.partition("http://127.0.0.1:")[2].partition("/")[0])
        time.sleep(0.1)
    raise RuntimeError(f"the viewer did not start: {log.read_text(errors='replace')}")


def _memory_mb(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except OSError:
        return 0.0


def _client(port: int, good: Specimens, log: Log, seed: int, end: float) -> None:
    """Run one client until the time is over."""
    rng = random.Random(seed)  # noqa: S311
    scan = good.scan.read_bytes()
    prediction = None
    while time.monotonic() < end:
        what = rng.choices(("click", "slice", "drop", "export", "leave"), (4, 8, 1, 2, 1))[0]
        if what == "export" and prediction is None:
            continue
        try:
            loss = None
            if what == "click":
                begun = time.monotonic()
                prediction, loss = _click(port, rng.randrange(10**6))
                with log.lock:
                    log.seconds.append(time.monotonic() - begun)
            elif what == "slice":
                loss = _expect(port, "GET", f"/api/scans/example/slices/{rng.randrange(4)}")
            elif what == "drop":
                loss = _drop(port, scan, end + TO_END)
            elif what == "export":
                loss = _expect(
                    port, "GET", f"/api/predictions/{prediction}/export?what=mean&kind=nifti", or_gone=True
                )
            else:
                _leave(port)
        except Exception as error:
            loss = f"{type(error).__name__}: {error}"
        with log.lock:
            log.asked[what] += 1
            if loss:
                log.losses[what].append(loss)


def _ask(port: int, method: str, path: str, body: bytes | None = None, kind: str = "") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request(method, path, body, {"content-type": kind} if kind else {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def _expect(port: int, method: str, path: str, *, or_gone: bool = False) -> str | None:
    status, content = _ask(port, method, path)
    if status == 200 or (or_gone and status == 404 and b"gone" in content):
        return None
    return f"status {status}: {content[:200]!r}"


def _body(seed: int) -> bytes:
    return json.dumps({"scan": "example", "point": [1, 8, 8], "num_samples": 4, "seed": seed}).encode()


def _click(port: int, seed: int) -> tuple[str | None, str | None]:
    status, content = _ask(port, "POST", "/api/predictions", _body(seed), "application/json")
    last = json.loads(content.splitlines()[-1]) if status == 200 and content else {}
    if last.get("type") != "done":
        return None, f"status {status}: {content[-200:]!r}"
    return str(last["id"]), None


def _drop(port: int, scan: bytes, end: float) -> str | None:
    head = b'--b\r\nContent-Disposition: form-data; name="files"; filename="scan.nii"\r\n\r\n'
    body = head + scan + b"\r\n--b--\r\n"
    while True:
        status, content = _ask(port, "POST", "/api/scans", body, "multipart/form-data; boundary=b")
        if status != 503 or time.monotonic() > end:  # too many uploads: try again
            return None if status == 200 else f"status {status}: {content[:200]!r}"
        time.sleep(0.2)


def _leave(port: int) -> None:
    """Send a request and disconnect before the answer is complete."""
    body = _body(0)
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as connection:
        connection.sendall(
            b"POST /api/predictions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (port, len(body), body)
        )
        connection.recv(64)
