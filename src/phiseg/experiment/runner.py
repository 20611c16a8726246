"""The paper's experiment as jobs: every method in both regimes, from training to one report.

    phiseg experiment table1 --data DATA --out OUT

OUT/  experiment.json      what all rows have in common; another budget or dataset needs another OUT
      rows/REGIME/METHOD/seed-N/  run/ (the training)  eval/ (its scores)  row.json (how it came about)  log.txt
      table.*  *.png  report.html

A row is a job of its own: it is skipped when it is finished, goes on when it was interrupted, and fails alone. Any
number of processes and machines can work on one OUT, each on its own rows.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from threading import Event, Lock
from typing import Any

import torch
from filelock import FileLock, Timeout
from pydantic import Field, model_validator
from tqdm import tqdm

from phiseg.core.config import StrictConfig
from phiseg.core.errors import ConfigError, DataError, OutputError, nearest
from phiseg.core.files import write_json
from phiseg.data.store import Dataset
from phiseg.evaluation.results import MARKER
from phiseg.evaluation.scores import evaluate
from phiseg.training.budget import seconds_per_step
from phiseg.training.loop import train
from phiseg.training.recipe import Criterion, Recipe, load_recipe, recipe_names
from phiseg.training.setup import check_folder, dataset_identity, describe_software

REGIMES = ("all", "one")
"""Trained with the annotations of all experts in turn, or with those of one."""
METHODS = (
    "probunet-small",
    "phiseg-l1-small",
    "phiseg-small",
    "unet-small",
    "mcdropout-small",
    "ensemble-small",
    "multihead-small",
    "cvae-small",
    "ssn-small",
    "hprobunet-small",
)
"""Recipes of the paper's rows, of the methods that it names, and of later rivals."""


class Plan(StrictConfig):
    """What all rows of an experiment have in common."""

    steps: int | None = Field(default=None, ge=1)
    """Budget of every training in steps; none: `minutes`."""
    minutes: float | None = Field(default=None, gt=0)
    """Budget of every training in minutes; it is turned into steps when a row begins, by timing some."""
    expert: int = Field(default=0, ge=0)
    """Whose annotations the regime of one expert learns from."""
    num_samples: int = Field(default=100, ge=1)
    """Per case of the split."""
    split: str = "test"
    """What is reported; models are selected on val."""
    select_by: Criterion | None = None
    """Which validation figure decides on the model that is reported. None: the unbiased GED where all experts are
    learned from, and the loss where one is, for no other expert may have a say there."""
    overrides: tuple[str, ...] = ()
    """Changes to all recipes, `--section.key value`; what the plan and the row decide stays theirs."""

    @model_validator(mode="after")
    def _one_budget(self) -> "Plan":
        if (self.steps is None) == (self.minutes is None):
            raise ValueError("give either steps or minutes as the budget of every row")
        for override in self.overrides:
            if match := re.match(r"--train\.(steps|seed|annotator|select[_-]by)\b", override):
                option = {"seed": "seeds", "annotator": "expert"}.get(match[1], match[1].replace("_", "-"))
                raise ValueError(f"'{match[0]}' is decided by the experiment; use --{option}")
        return self


@dataclass(frozen=True)
class ExperimentJob:
    """One row of the table with one seed."""

    regime: str
    method: str
    """A recipe: the name of a shipped one, or a file."""
    seed: int

    @property
    def name(self) -> str:
        """How folders and --rows call it."""
        return f"{self.regime}/{Path(self.method).stem}/seed-{self.seed}"


def list_experiment_jobs(
    methods: Sequence[str] = METHODS,
    *,
    regimes: Sequence[str] = REGIMES,
    seeds: Sequence[int] = (0,),
    rows: Sequence[str] = ("*",),
) -> list[ExperimentJob]:
    """Return the jobs of an experiment, those whose names match one of the patterns `rows`.

    >>> [job.name for job in list_experiment_jobs(["probunet-small", "unet-small"], rows=["one/*"])]
    ['one/probunet-small/seed-0', 'one/unet-small/seed-0']

    Raises:
        ConfigError: there is no such method, or nothing matches.
    """
    models = {}
    for method in methods:
        if not method.endswith((".yaml", ".yml")) and method not in recipe_names():
            raise ConfigError(
                f"there is no method '{method}' ({nearest(method, recipe_names())}); use recipes such as "
                f"{', '.join(METHODS)}, or .yaml files"
            )
        models[method] = load_recipe(method).model.name
    jobs = [
        ExperimentJob(regime, method, seed)
        for regime in regimes
        for method in methods
        for seed in seeds
        if not (regime == "all" and models[method] == "unet")  # as in the paper
    ]
    if repeated := {job.name for job in jobs if [other.name for other in jobs].count(job.name) > 1}:
        raise ConfigError(
            f"two rows are called '{min(repeated)}'; give methods and seeds once, and files other names"
        )
    chosen = [job for job in jobs if any(fnmatchcase(job.name, pattern) for pattern in rows)]
    if not chosen:
        names = ", ".join(job.name for job in jobs) or "none, for a deterministic method has only regime one"
        raise ConfigError(f"no row matches {' '.join(rows)}; there are {names}")
    return chosen


def open_experiment(out: Path, plan: Plan, data: Path) -> None:
    """Note what all rows have in common, or check it against what is noted.

    Raises:
        ConfigError: the dataset has no such expert.
        DataError: the dataset has no such split, or `out` holds an experiment with another plan or other data.
    """
    dataset = Dataset.open(data)
    if plan.expert >= dataset.info.num_annotators:
        raise ConfigError(
            f"{data} has no annotator {plan.expert}; use --expert 0 to {dataset.info.num_annotators - 1}"
        )
    dataset.rows(plan.split)
    noted = {
        "plan": plan.model_dump(mode="json"),
        "dataset": {"name": dataset.info.name, "fingerprint": dataset.fingerprint},
        "identity": dataset_identity(dataset),
    }
    path = out / "experiment.json"
    if not path.exists():
        if out.is_file() or any(out.glob("[!.]*")):  # a hidden file is what a killed process left unfinished
            raise OutputError(f"{out} holds something else than an experiment; choose another --out")
        write_json(path, noted)
    elif (before := read_json(path)) != noted:
        different = [key for key in noted if before.get(key) != noted[key]] or ["format"]
        raise DataError(f"{out} holds an experiment with another {different[0]}, see {path}; choose another --out")


def is_finished(job: ExperimentJob, out: Path) -> bool:
    """Return whether the row has been trained and scored."""
    return (out / "rows" / job.name / "eval" / MARKER).is_file()


def unfinished_jobs(jobs: Sequence[ExperimentJob], plan: Plan, data: Path, out: Path) -> list[ExperimentJob]:
    """Return the jobs that are still to be done.

    Raises:
        ConfigError: a row was made with another recipe of the same name.
    """
    dataset = Dataset.open(data)
    for job in jobs:
        run = out / "rows" / job.name / "run"
        if (run / "config.yaml").is_file():
            check_folder(run, _recipe(job, plan, dataset, run)[0].for_dataset(dataset), resume=True)
    return [job for job in jobs if not is_finished(job, out)]


def run_job(job: ExperimentJob, plan: Plan, data: Path, out: Path, *, progress: bool = True) -> None:
    """Train and score one row, unless it is done; go on where an earlier process was stopped.

    Raises:
        OutputError: another process is at work on this row, or something cannot be written.
        PhisegError: what the training or the scoring complains of.
    """
    folder = out / "rows" / job.name
    folder.mkdir(parents=True, exist_ok=True)
    dataset = Dataset.open(data)
    try:
        with FileLock(folder / "lock", timeout=0):
            if not unfinished_jobs([job], plan, data, out):
                return
            recipe, measured = _recipe(job, plan, dataset, folder / "run")
            if not (folder / "run" / "config.yaml").is_file():
                record = {
                    "row": job.name,
                    "plan": plan.model_dump(mode="json"),
                    "steps": recipe.train.steps,
                    "measured_seconds_per_step": measured,
                    "dataset": dataset.fingerprint,
                    "threads": torch.get_num_threads(),
                    **describe_software(),
                }
                write_json(folder / "row.json", record)
            train(recipe, data, folder / "run", resume=True, progress=progress)
            evaluate(
                folder / "run",
                data,
                folder / "eval",
                split=plan.split,
                num_samples=plan.num_samples,
                method=Path(job.method).stem,
                progress=progress,
            )
    except Timeout:
        raise OutputError(f"{folder}: another process is at work on this row; wait for it") from None


def run_all(
    jobs: Sequence[ExperimentJob],
    command: Callable[[ExperimentJob], list[str]],
    out: Path,
    *,
    workers: int = 1,
    progress: bool = True,
) -> dict[str, str]:
    """Run each job as a command of its own, and keep what it prints in its log.txt.

    Args:
        jobs: what to run.
        command: returns the command line of a job.
        out: the experiment's folder.
        workers: how many run at the same time; they share the cores.
        progress: show a progress bar over the rows.

    Returns:
        The reason for every job that failed, by name.
    """
    if workers < 1:
        raise ConfigError(f"workers {workers} must be at least 1")
    failed: dict[str, str] = {}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    environment = {"OMP_NUM_THREADS": str(max(1, cores // workers)), **os.environ}
    starting, stopped, running = Lock(), Event(), set[subprocess.Popen[bytes]]()

    def run(job: ExperimentJob) -> tuple[ExperimentJob, str]:
        log = out / "rows" / job.name / "log.txt"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            with starting:
                if stopped.is_set():
                    return job, "stopped before it began"
                process = subprocess.Popen(  # noqa: S603
                    command(job), stdout=file, stderr=subprocess.STDOUT, env=environment
                )
                running.add(process)
            code = process.wait()
            running.discard(process)
        return job, f"{_last_line(log)} (exit code {code}, {log})" if code else ""

    with (
        tqdm(total=len(jobs), desc="rows", unit="row", disable=not progress) as bar,
        ThreadPoolExecutor(workers) as pool,
    ):
        try:
            for future in as_completed([pool.submit(run, job) for job in jobs]):
                job, reason = future.result()
                if reason:
                    failed[job.name] = reason
                    tqdm.write(f"phiseg: row {job.name} failed: {reason}", file=sys.stderr)
                bar.update()
        except BaseException:  # Ctrl-C reaches the running ones as well, but not one that began just after it
            with starting:
                stopped.set()
            for process in list(running):
                process.terminate()
            pool.shutdown(cancel_futures=True)
            raise
    return failed


def _last_line(log: Path) -> str:
    """Return what a failed command said last; a progress bar's returns do not end a line."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), "it printed nothing").rpartition("\r")[2]


def _recipe(job: ExperimentJob, plan: Plan, dataset: Dataset, run: Path) -> tuple[Recipe, float | None]:
    """Return the row's recipe, and the time of a step where the budget is in minutes and was not yet settled."""
    every = job.regime == "all"
    select_by = plan.select_by or ("ged_unbiased" if every and dataset.info.num_annotators > 1 else "loss")
    decided = [
        f"--train.annotator={'random' if every else plan.expert}",
        f"--train.seed={job.seed}",
        f"--train.select_by={select_by}",
    ]
    steps, measured = plan.steps, None
    if steps is None and (run / "config.yaml").is_file():
        steps = load_recipe(str(run / "config.yaml")).train.steps
    if steps is None:
        assert plan.minutes is not None, "a plan has one budget"
        measured = seconds_per_step(load_recipe(job.method, [*plan.overrides, *decided]), dataset)
        steps = max(1, round(60 * plan.minutes / measured))
    intervals = [f"--train.validate_every={-(-steps // 10)}", f"--train.checkpoint_every={max(1, steps // 20)}"]
    overrides = [*intervals, *plan.overrides, *decided, f"--train.steps={steps}"]
    return load_recipe(job.method, overrides), measured


def read_json(path: Path) -> Any:
    """Read a record of the experiment."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        raise DataError(f"{path} is damaged; restore it, or choose another --out") from None
