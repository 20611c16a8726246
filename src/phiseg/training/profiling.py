"""Where the time of a training step goes: a trace to look at, and a table."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch.profiler import profile, schedule

from phiseg.core.files import atomic_file

PARTS = ("load the batch", "forward", "backward", "optimise")
"""What a step consists of, as `record_function` calls it in the training loop."""
NUM_STEPS = 4
"""Steps that are recorded, after two that are not."""


@contextmanager
def profiled(folder: Path, *, first_step: int, last_step: int) -> Iterator[Callable[[], None]]:
    """Record a few steps as `folder`/trace-N.json.gz, N the first of them, and print a table.

    The trace opens in https://ui.perfetto.dev or chrome://tracing. Nothing that is computed changes.

    Args:
        folder: is made.
        first_step: the step that comes next, counted from 0.
        last_step: one after the last one of the training; a short training is recorded as far as it goes.

    Yields:
        What to call after each step.
    """
    waiting = max(0, min(2, last_step - first_step - 1))
    number = max(1, min(NUM_STEPS, last_step - first_step - waiting))

    def finish(recorded: Any) -> None:
        path = folder / f"trace-{first_step + waiting + 1}.json.gz"
        with TemporaryDirectory() as temporary, atomic_file(path) as file:
            name = Path(temporary) / path.name
            recorded.export_chrome_trace(str(name))
            file.write(name.read_bytes())
        print(f"{table(recorded.key_averages(), number)}\ntrace: {path} (open it in https://ui.perfetto.dev)")

    plan = schedule(wait=0, warmup=waiting, active=number, repeat=1)
    with profile(schedule=plan, on_trace_ready=finish) as recorder:
        yield recorder.step


def table(events: Any, num_steps: int, *, num_operators: int = 12) -> str:
    """Return the parts of a step and the operators that take most time themselves, in milliseconds a step."""
    by_name = {event.key: event for event in events}
    parts = {name: by_name[name].cpu_time_total for name in PARTS if name in by_name}
    whole = sum(parts.values())
    on_device = any(event.self_device_time_total for event in events)
    own = {
        name: event.self_device_time_total if on_device else event.self_cpu_time_total
        for name, event in by_name.items()
        if name.startswith("aten::")
    }
    longest = sorted(own, key=lambda name: -own[name])[:num_operators]
    rows = [*parts.items(), *((name, own[name]) for name in longest)]
    lines = [f"  {name:<40} {time / num_steps / 1000:10.1f} ms {time / whole:7.1%}" for name, time in rows]
    return "\n".join([f"where the time of a step goes (mean of {num_steps} steps)", *lines])
