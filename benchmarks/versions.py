"""Compare this working tree with an older commit: the same workloads, in turns, in one process of each version.

    python -m benchmarks.versions HEAD~20                      # all workloads
    python -m benchmarks.versions v0.1.0 --workloads training  # one of them

A temporary git worktree holds the commit, and the dependencies are those of this environment. Both processes use
one thread, and two in `evaluate`. Their CPU time counts, which depends less on other programs than the clock. The
workloads must use functions that exist in both versions.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measuring import ROOT, Section, in_words

Action = Callable[[], object]


def training(folder: Path) -> Action:
    """Return a step of `phiseg-small` with its batch, 12 images of 64 x 64; its result is the loss of the first."""
    from phiseg.compute import devices
    from phiseg.data.prepare.phantom import prepare_phantom
    from phiseg.training.recipe import load_recipe
    from phiseg.training.step import TrainingStep, initial_model, training_stream

    getattr(devices, "keep_freed_memory", lambda: None)()
    dataset = prepare_phantom("lesion", folder / "data", size=64, num_cases=24, progress=False)
    recipe = load_recipe("phiseg-small", accelerator="cpu").for_dataset(dataset)
    fabric = devices.make_fabric(recipe.train)
    step = TrainingStep(initial_model(recipe, fabric.device), recipe.train, fabric)
    step.set_up()
    stream = training_stream(recipe, dataset)
    numbers = iter(range(10**6))

    def take() -> float:
        number = next(numbers)
        return float(step.take(stream.batch(number), number).values["loss"])

    first = take()  # rounding differences grow in later steps
    return lambda: (take(), first)[1]


def evaluation(folder: Path) -> Action:
    """Return the evaluation of a case of 64 x 64 with 100 samples."""
    import torch

    from phiseg.data.prepare.phantom import prepare_phantom
    from phiseg.inference.sampling import sample_cases
    from phiseg.metrics.case import score_case
    from phiseg.models import build_model
    from phiseg.training.recipe import load_recipe

    dataset = prepare_phantom("lesion", folder / "data", size=64, num_cases=12, progress=False)
    torch.manual_seed(0)
    model = build_model(load_recipe("phiseg-small").for_dataset(dataset).model).eval()

    def evaluate() -> float:
        (case,) = sample_cases(model, dataset, [0], num_samples=100, seed=0)
        return float(score_case(*case.summary, torch.from_numpy(dataset.annotations(0)))["ged"] or 0)

    return evaluate


def evaluate(folder: Path, cores: int = 2) -> Action:
    """Return `phiseg evaluate` of 8 cases of 64 x 64 with 32 samples each; its result is the mean GED."""
    import torch

    from phiseg.compute import devices
    from phiseg.data.prepare.phantom import prepare_phantom
    from phiseg.evaluation import model_evaluation
    from phiseg.models import build_model, save_model
    from phiseg.training.recipe import load_recipe

    getattr(devices, "keep_freed_memory", lambda: None)()
    dataset = prepare_phantom("lesion", folder / "data", size=64, num_cases=40, progress=False)
    torch.manual_seed(0)
    network = build_model(load_recipe("phiseg-small").for_dataset(dataset).model)
    save_model(folder / "model", network, preprocessing={}, provenance={}, card="")
    torch.set_num_threads(cores)
    options: dict[str, Any] = {"num_samples": 32, "device": "cpu", "overwrite": True, "progress": False}
    paths = [folder / name for name in ("model", "data", "eval")]
    return lambda: float(model_evaluation.evaluate(*paths, **options).ged or 0)


def predict(folder: Path) -> Action:
    """Return the prediction of the lesion of `phiseg example` in a new process, with its imports."""
    scan, numbers = str(folder / "scan.nii.gz"), iter(range(10**6))

    def phiseg(*words: str) -> str:
        done = subprocess.run([sys.executable, "-m", "phiseg", *words], capture_output=True, text=True)  # noqa: S603
        if done.returncode:
            raise RuntimeError(done.stderr)
        return done.stdout

    (point,) = re.findall(r"--at (\S+)", phiseg("example", scan))

    def run() -> float:
        out = folder / str(next(numbers))
        phiseg("predict", "lidc-nodule", scan, "--at", point, "--accelerator", "cpu", "--out", str(out))
        found = json.loads(next(out.rglob("summary.json")).read_text(encoding="utf-8"))
        return float(sum(_numbers(found)))

    return run


def _numbers(found: Any) -> Iterator[float]:
    """Yield all fractional numbers in nested JSON values."""
    if isinstance(found, float):
        yield found
    for value in found.values() if isinstance(found, dict) else found if isinstance(found, list) else ():
        yield from _numbers(value)


WORKLOADS: dict[str, Callable[[Path], Action]] = {
    "training": training,
    "evaluation": evaluation,
    "evaluate": evaluate,
    "evaluate-one-core": partial(evaluate, cores=1),
    "predict": predict,
}
"""Workloads by name. An action returns a number that should be equal in both versions."""


def serve(workload: str) -> None:
    """Prepare a workload, run it once for each line of standard input and answer with its cost as JSON."""
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        action = WORKLOADS[workload](Path(folder))
        for _ in sys.stdin:
            start = _cpu_seconds()
            value = action()
            print(json.dumps({"seconds": _cpu_seconds() - start, "value": value}), flush=True)


def _cpu_seconds() -> float:
    """Return the CPU time of this process and its finished children."""
    return sum(os.times()[:4])


def compare(commit: str, workload: str, rounds: int) -> list[str]:
    """Return a row: time in both versions, their ratio and the largest relative difference of the results."""
    with checkout(commit) as old, server(old, workload) as before, server(ROOT, workload) as after:
        turns = [(ask(before), ask(after)) for _ in range(rounds + 1)][1:]
    ratios = sorted(a["seconds"] / b["seconds"] for a, b in turns)
    difference = max(abs(a["value"] - b["value"]) / (abs(a["value"]) or 1) for a, b in turns)
    times = [in_words(median(turn[side]["seconds"] for turn in turns)) for side in (0, 1)]
    spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
    return [workload, *times, f"**{median(ratios):.2f} x**", spread, f"{difference:.1g}"]


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """Check out a commit into a temporary git worktree."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "old"
        _git("worktree", "add", "--detach", str(path), commit)
        try:
            yield path
        finally:
            _git("worktree", "remove", "--force", str(path))


def _git(*words: str) -> None:
    subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True)  # noqa: S603, S607


@contextmanager
def server(tree: Path, workload: str) -> Iterator["subprocess.Popen[str]"]:
    """Start this file in a process that imports the package of `tree`."""
    paths = os.pathsep.join([str(tree / "src"), str(ROOT)])
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", "benchmarks.versions", "--serve", workload],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
    )
    try:
        yield process
    finally:
        process.communicate()


def ask(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """Let a server run its workload once and return the answer."""
    assert process.stdin
    assert process.stdout
    process.stdin.write("\n")
    process.stdin.flush()
    answer: dict[str, Any] = json.loads(process.stdout.readline())
    return answer


def main() -> None:
    """Compare the working tree with a commit and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.versions", description=__doc__)
    parser.add_argument("commit", nargs="?", help="Older commit, branch or tag.")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), help="Default: all.")
    parser.add_argument("--rounds", type=int, default=9, help="Number of timed rounds. Default: %(default)s.")
    parser.add_argument("--serve", choices=WORKLOADS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve(options.serve)
    if not options.commit:
        parser.error("name the commit to compare with, such as HEAD~20")
    header = (
        "workload",
        f"CPU time at {options.commit}",
        "CPU time now",
        "ratio",
        "range",
        "difference of results",
    )
    table = Section(f"Compared with {options.commit}", header)
    table.rows = [compare(options.commit, name, options.rounds) for name in options.workloads]
    print(table.markdown())
    return None


if __name__ == "__main__":
    main()
