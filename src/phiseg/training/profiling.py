"""Profiling of training steps: a trace file and a table."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch.profiler import profile, schedule
from tqdm import tqdm

from phiseg.core.errors import OutputError
from phiseg.core.files import atomic_file

PARTS = ("load the batch", "forward", "backward", "optimise", "validate")
"""Parts of steps and validations, by their `record_function` names in the training loop."""
NUM_STEPS = 4
"""Number of recorded steps, after two warm-up steps."""


@contextmanager
def profiled(folder: Path, *, first_step: int, last_step: int) -> Iterator[Callable[[], None]]:
    """Record a few steps as `folder`/trace-N.json.gz, where N is the first step, and print a table.

    Open the trace in https://ui.perfetto.dev or chrome://tracing. Results do not change, and an error while writing
    the trace does not stop the training.

    Args:
        folder: output folder, created if needed.
        first_step: index of the next step, starting at 0.
        last_step: number of steps of the training, larger than `first_step`; a short training is recorded up to its
            end.

    Yields:
        Function to call after each step.
    """
    waiting = min(2, last_step - first_step - 1)
    number = min(NUM_STEPS, last_step - first_step - waiting)

    def finish(recorded: Any) -> None:
        path = folder / f"trace-{first_step + waiting + 1}.json.gz"
        print(table(recorded.key_averages(), number))
        try:
            with atomic_file(path) as file, TemporaryDirectory() as temporary:
                name = Path(temporary) / path.name
                recorded.export_chrome_trace(str(name))
                file.write(name.read_bytes())
            print(f"trace: {path} (open it in https://ui.perfetto.dev)")
        except OutputError as error:
            tqdm.write(f"phiseg: no trace: {error}", file=sys.stderr)

    plan = schedule(wait=0, warmup=waiting, active=number, repeat=1)
    with profile(schedule=plan, on_trace_ready=finish) as recorder:
        yield recorder.step


def table(events: Any, num_steps: int, *, num_operators: int = 12) -> str:
    """Return a table of the parts of a step and the slowest operators (self time), in milliseconds per step.

    Parts are measured on the CPU, which may run ahead of a GPU; operators on the GPU if there is one. Percentages
    are relative to all parts and to all operators.
    """
    by_name = {
        event.key: event for event in events if event.device_type.name == "CPU"
    }  # GPU events have the same names
    parts = {name: by_name[name].cpu_time_total for name in PARTS if name in by_name}
    operators = {name: event for name, event in by_name.items() if name.startswith("aten::")}
    on_device = any(event.self_device_time_total for event in operators.values())
    own = {
        name: event.self_device_time_total if on_device else event.self_cpu_time_total
        for name, event in operators.items()
    }
    longest = sorted(own, key=lambda name: -own[name])[:num_operators]
    lines = [
        f"  {name:<40} {times[name] / num_steps / 1000:10.1f} ms {times[name] / (sum(times.values()) or 1):7.1%}"
        for times, names in ((parts, parts), (own, longest))
        for name in names
    ]
    return "\n".join([f"time per step (mean of {num_steps} steps)", *lines])
