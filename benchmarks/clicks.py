"""A click in the viewer: time until the page receives samples and measurements from the real server over HTTP."""

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import uvicorn

from benchmarks.measuring import Scale, Section, in_words
from phiseg.compute.devices import keep_freed_memory
from phiseg.models import load_model
from phiseg.viewer.server import Viewer, create_app

MODEL = "lidc-nodule"
STEPS = {"samples": "first samples", "slice": "all samples of the slice, maps", "numbers": "measurements"}
"""The first message of each type after which the page shows more."""


def run(scale: Scale) -> list[Section]:
    """Click on the lesion of the synthetic example several times, with the settings of the page."""
    num_samples = min(16, scale.num_samples)
    table = Section(
        f"Viewer: time after a click ({MODEL}, synthetic example, {num_samples} samples)",
        ("click", *(f"{step}: {clock}" for step in STEPS.values() for clock in ("CPU", "wall"))),
    )
    keep_freed_memory()  # as `phiseg view` does
    viewer = Viewer.of(load_model(Path(MODEL)), MODEL)
    viewer.warm_up()
    levels = [{"seed": 0, "hold": False, "temperature": 1.0} for _ in viewer.info().noise_names]
    coarsest = viewer.model.num_levels - 1
    first: dict[str, Any] = {"scan": "example", "point": viewer.scans.get("example").info.start}
    first |= {"num_samples": num_samples, "levels": levels}
    held = [{**level, "hold": number == coarsest} for number, level in enumerate(levels)]
    clicks = {
        "first click after the start": first,
        "another seed": first | {"seed": 1},
        "coarsest level held": first | {"levels": held},
        "temperature of the finest level": first | {"levels": [levels[0] | {"temperature": 0.5}, *levels[1:]]},
        "back to the first settings": first,
    }
    with serving(viewer) as port:
        for name, request in clicks.items():
            times = time_messages(port, request)
            table.rows.append([name, *(in_words(clock) for step in STEPS for clock in times[step])])
    table.notes.append(
        "CPU: time of the server's process, with all its threads. It depends less on other programs than wall time."
    )
    return [table]


@contextmanager
def serving(viewer: Viewer) -> Iterator[int]:
    """Run the server in a thread and return its port."""
    server = uvicorn.Server(uvicorn.Config(create_app(viewer), host="127.0.0.1", port=0, log_level="error"))
    thread = Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


def time_messages(port: int, request: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Request a prediction and return the CPU time and the wall time until the first message of each type."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    cpu, wall = time.process_time(), time.perf_counter()
    headers = {"Content-Type": "application/json", "Origin": f"http://127.0.0.1:{port}"}
    connection.request("POST", "/api/predictions", json.dumps(request), headers)
    answer = connection.getresponse()
    times: dict[str, tuple[float, float]] = {}
    while line := answer.readline():
        kind = json.loads(line)["type"]
        if kind == "error":
            raise RuntimeError(line.decode())
        times.setdefault(kind, (time.process_time() - cpu, time.perf_counter() - wall))
    connection.close()
    return times
