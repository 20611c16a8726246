"""Run the experiment of the paper as jobs: all methods in both regimes, from training to the report.

    phiseg experiment table1 --data DATA --out OUT

OUT/  experiment.json      settings of all rows; another budget or dataset needs another OUT
      rows/REGIME/METHOD/seed-N/  run/ (training)  eval/ (scores)  row.json (provenance)  log.txt
      table.*  *.png  report.html

Each row is a separate job. Finished rows are skipped, interrupted rows are resumed, and a failed row does not
affect the others. Several processes and machines can work on the same OUT, each on different rows.
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from threading import Event, Lock
from typing import Any

import torch
from pydantic import Field, model_validator
from tqdm import tqdm

from phiseg.core.bundled import recipe_names
from phiseg.core.config import StrictConfig
from phiseg.core.errors import ConfigError, DataError, OutputError, nearest
from phiseg.core.files import one_process, write_json
from phiseg.data.store import Dataset
from phiseg.evaluation.evaluation_folder import MARKER
from phiseg.evaluation.model_evaluation import evaluate
from phiseg.training.budget import seconds_per_step
from phiseg.training.checks import check_run_folder
from phiseg.training.environment import dataset_identity, describe_software
from phiseg.training.loop import train
from phiseg.training.recipe import Criterion, Recipe, load_recipe

REGIMES = ("all", "one")
"""Training with the annotations of all experts, or of one expert."""
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
    "flow-ssn-small",
    "ccdm-small",
    "mose-small",
    "hprobunet-small",
)
"""Recipes of the methods in the paper, of methods that it mentions, and of later methods."""


class Plan(StrictConfig):
    """Settings of all rows of an experiment."""

    steps: int | None = Field(default=None, ge=1)
    """Training budget per row in steps; None uses `minutes`."""
    minutes: float | None = Field(default=None, gt=0)
    """Training budget per row in minutes; converted to steps by timing a few steps when a row starts."""
    expert: int = Field(default=0, ge=0)
    """Number of the annotator in the regime of one expert."""
    num_samples: int = Field(default=100, ge=1)
    """Number of samples per case."""
    split: str = "test"
    """Split to report; models are selected on val."""
    select_by: Criterion | None = None
    """Validation score that selects the reported model. None is the unbiased GED in the regime of all experts, and
    the loss in the regime of one expert, which must not use the other experts."""
    overrides: tuple[str, ...] = ()
    """Changes to all recipes, as `--section.key value`, except for settings of the plan and the row."""

    @model_validator(mode="after")
    def _one_budget(self) -> "Plan":
        if (self.steps is None) == (self.minutes is None):
            raise ValueError("set either steps or minutes as the budget of each row")
        for override in self.overrides:
            if match := re.match(r"--train\.(steps|seed|annotator|select[_-]by)\b", override):
                option = {"seed": "seeds", "annotator": "expert"}.get(match[1], match[1].replace("_", "-"))
                raise ValueError(f"'{match[0]}' is set by the experiment; use --{option}")
        return self


@dataclass(frozen=True)
class ExperimentJob:
    """One row of the table with one seed."""

    regime: str
    method: str
    """Name of a recipe, or a recipe file."""
    seed: int

    @property
    def name(self) -> str:
        """Name of the row in folders and in --rows."""
        return f"{self.regime}/{Path(self.method).stem}/seed-{self.seed}"


def list_experiment_jobs(
    methods: Sequence[str] = METHODS,
    *,
    regimes: Sequence[str] = REGIMES,
    seeds: Sequence[int] = (0,),
    rows: Sequence[str] = ("*",),
) -> list[ExperimentJob]:
    """Return the jobs of an experiment whose names match one of the patterns `rows`.

    >>> [job.name for job in list_experiment_jobs(["probunet-small", "unet-small"], rows=["one/*"])]
    ['one/probunet-small/seed-0', 'one/unet-small/seed-0']

    Raises:
        ConfigError: a method is unknown, or no row matches.
    """
    for regime in regimes:
        if regime not in REGIMES:
            raise ConfigError(f"unknown regime '{regime}' ({nearest(regime, REGIMES)})")
    models = {}
    for method in methods:
        if not method.endswith((".yaml", ".yml")) and method not in recipe_names():
            raise ConfigError(
                f"unknown method '{method}' ({nearest(method, recipe_names())}); use recipes such as "
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
    folders = Counter(job.name.casefold() for job in jobs)  # some disks ignore case
    if repeated := [name for name, number in folders.items() if number > 1]:
        raise ConfigError(
            f"two rows are named '{repeated[0]}', ignoring case; give each method and seed once, and rename files"
        )
    chosen = [job for job in jobs if any(fnmatchcase(job.name, pattern) for pattern in rows)]
    if not chosen:
        names = ", ".join(job.name for job in jobs) or "none (a deterministic method has only regime one)"
        raise ConfigError(f"no row matches {' '.join(rows)}; valid rows: {names}")
    return chosen


def open_experiment(out: Path, plan: Plan, data: Path) -> None:
    """Store the settings of all rows, or check them against the stored settings.

    Raises:
        ConfigError: the dataset does not have the expert.
        DataError: the dataset does not have the split, or `out` contains an experiment with other settings or data.
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
        if out.is_file() or any(out.glob("[!.]*")):  # hidden files are left by killed processes
            raise OutputError(f"{out} is not the folder of an experiment; choose another --out")
        write_json(path, noted)
    elif (before := read_json(path)) != noted:
        different = [key for key in noted if before.get(key) != noted[key]] or ["format"]
        raise DataError(f"{out} is an experiment with another {different[0]} (see {path}); choose another --out")


def is_finished(job: ExperimentJob, out: Path) -> bool:
    """Return whether a row has been trained and evaluated."""
    return (out / "rows" / job.name / "eval" / MARKER).is_file()


def unfinished_jobs(jobs: Sequence[ExperimentJob], plan: Plan, data: Path, out: Path) -> list[ExperimentJob]:
    """Return the jobs that are not finished.

    Raises:
        ConfigError: a row was trained with another recipe of the same name, or needs several processes.
    """
    dataset = Dataset.open(data)
    for job in jobs:
        settings = load_recipe(job.method, plan.overrides).train
        if settings.devices * settings.num_nodes > 1:
            raise ConfigError(
                f"{job.name}: train.devices and train.num_nodes must be 1, because each row is trained by one "
                "process; to use several devices, start the experiment once for each device with different --rows"
            )
        run = out / "rows" / job.name / "run"
        if (run / "config.yaml").is_file():
            check_run_folder(run, _recipe(job, plan, dataset, run)[0].for_dataset(dataset), resume=True)
    return [job for job in jobs if not is_finished(job, out)]


def run_job(job: ExperimentJob, plan: Plan, data: Path, out: Path, *, progress: bool = True) -> None:
    """Train and evaluate one row, unless it is finished. An interrupted row is resumed.

    Raises:
        OutputError: another process is running this row, or a file cannot be written.
        PhisegError: the training or the evaluation failed.
    """
    folder = out / "rows" / job.name
    dataset = Dataset.open(data)
    with one_process(folder, "running this row"):
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


def run_all(
    jobs: Sequence[ExperimentJob],
    command: Callable[[ExperimentJob], list[str]],
    out: Path,
    *,
    workers: int = 1,
    progress: bool = True,
) -> dict[str, str]:
    """Run each job as a separate command, and write its output to log.txt.

    Args:
        jobs: jobs to run.
        command: function that returns the command line of a job.
        out: folder of the experiment.
        workers: number of jobs that run at the same time. They share the CPU cores.
        progress: show a progress bar over the rows.

    Returns:
        The error of each failed job, by name.
    """
    if workers < 1:
        raise ConfigError(f"workers is {workers}; it must be at least 1")
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
                    return job, "stopped before it started"
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
            waiting = {pool.submit(run, job) for job in jobs}
            while waiting:
                # A signal that arrives just before a wait is handled after it, so the wait must end.
                finished, waiting = wait(waiting, timeout=1, return_when=FIRST_COMPLETED)
                for job, reason in (future.result() for future in finished):
                    if reason:
                        failed[job.name] = reason
                        tqdm.write(f"phiseg: row {job.name} failed: {reason}", file=sys.stderr)
                    bar.update()
        except BaseException:  # Ctrl-C also reaches running jobs, but not one that starts just after it
            with starting:
                stopped.set()
            for process in list(running):
                process.terminate()
            pool.shutdown(cancel_futures=True)
            raise
    return failed


def _last_line(log: Path) -> str:
    """Return the last line of a failed command. Carriage returns of progress bars do not end a line."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), "no output").rpartition("\r")[2]


def _recipe(job: ExperimentJob, plan: Plan, dataset: Dataset, run: Path) -> tuple[Recipe, float | None]:
    """Return the recipe of a row, and the time per step if the budget is in minutes and not yet converted."""
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
    """Read a JSON file of the experiment."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        raise DataError(f"{path} is damaged; restore it, or choose another --out") from None
