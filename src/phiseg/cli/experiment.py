"""`phiseg experiment table1`."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from phiseg.cli.parsing import parse
from phiseg.cli.train import split_overrides

if TYPE_CHECKING:
    from phiseg.experiment.runner import ExperimentJob


@dataclass
class Experiment:
    """Train and score every method with the same budget, in both of the paper's regimes, and report.

    Regime `all` learns from all experts in turn, `one` from one expert (its Dice is against that expert). Every
    row is a job of its own in OUT/rows: a finished one is skipped, an interrupted one goes on, a failed one is told
    and the others go on. --dry-run prints one command per row for any scheduler or for several machines that
    share OUT; the plain command then writes the report. Any key of the recipes can be changed for all rows, such as
    --train.batch_size 6.

    Example: phiseg experiment table1 --data data --out table1 --minutes 20 --workers 2
    """

    data: Path
    """The prepared dataset. Models are selected on its val split."""
    out: Path
    """Folder of the experiment."""
    methods: Annotated[tuple[str, ...] | None, tyro.conf.arg(metavar="RECIPE ...")] = None
    """Recipes, shipped ones or .yaml files; by default the small ones of all methods."""
    regimes: tuple[Literal["all", "one"], ...] = ("all", "one")
    """Trained with all experts, with one expert."""
    seeds: tuple[int, ...] = (0,)
    """Trainings of every row; with several the table shows their spread."""
    rows: tuple[str, ...] = ("*",)
    """Only the rows whose names match, such as 'one/*' or 'all/phiseg-small/seed-0'."""
    steps: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Budget of every training in steps."""
    minutes: Annotated[float | None, tyro.conf.arg(metavar="M")] = None
    """Budget of every training in minutes of steps, without validations; turned into steps by timing a few when a
    row begins. With one thread on a CPU (OMP_NUM_THREADS=1) only computing time counts: other load does no harm."""
    expert: int = 0
    """The annotator that regime `one` learns from."""
    num_samples: int = 100
    """Samples per case."""
    split: str = "test"
    """The split that is reported."""
    select_by: Annotated[str | None, tyro.conf.arg(metavar="SCORE")] = None
    """Validation result that selects the model of a training, as train.select_by of a recipe; by default the
    unbiased GED, and the loss in regime `one`, where no other expert may have a say."""
    test: Literal["patients", "cases"] = "patients"
    """What the report's significance test takes as independent: patients (and seeds), or cases as in the paper."""
    workers: int = 1
    """Rows that run at the same time; they share the cores."""
    dry_run: bool = False
    """Print the commands of the rows, and run none."""
    no_report: bool = False
    """Leave the report out."""
    title: Annotated[str | None, tyro.conf.arg(metavar="TEXT")] = None
    """Heading of the report."""


def run(arguments: Sequence[str], *, prog: str) -> None:
    """Parse and run the command."""
    words, overrides = split_overrides(arguments)
    command = parse(Experiment, words, prog=prog)
    from phiseg.comparison.table_formats import to_text
    from phiseg.core.errors import TrainingError
    from phiseg.experiment.experiment_report import write_report
    from phiseg.experiment.runner import (
        METHODS,
        Plan,
        list_experiment_jobs,
        open_experiment,
        run_all,
        run_job,
        unfinished_jobs,
    )

    methods = command.methods or METHODS
    jobs = list_experiment_jobs(methods, regimes=command.regimes, seeds=command.seeds, rows=command.rows)
    values = {
        "steps": command.steps,
        "minutes": command.minutes,
        "expert": command.expert,
        "num_samples": command.num_samples,
        "split": command.split,
        "select_by": command.select_by,
        "overrides": overrides,
    }
    plan = Plan.parse(values, where=prog)

    def row_command(job: "ExperimentJob") -> list[str]:
        options = ["--data", command.data, "--out", command.out, "--methods", job.method, "--regimes", job.regime]
        options += ["--seeds", job.seed, "--expert", command.expert, "--num-samples", command.num_samples]
        options += ["--steps", command.steps] if command.steps else ["--minutes", command.minutes]
        options += ["--select-by", command.select_by] if command.select_by else []
        options += ["--split", command.split, *overrides, "--no-report"]
        return [*prog.split(), *map(str, options)]

    if command.dry_run:
        for job in jobs:
            print(shlex.join(row_command(job)))
        same = [word for word in arguments if word not in ("--dry-run", "--dry_run")]
        print(f"# then, for the report: {shlex.join([*prog.split(), *same])}")
        return
    open_experiment(command.out, plan, command.data)
    failed: dict[str, str] = {}
    waiting = unfinished_jobs(jobs, plan, command.data, command.out)
    if len(jobs) == 1:
        run_job(jobs[0], plan, command.data, command.out)
    elif waiting:
        print(f"{len(jobs) - len(waiting)} of {len(jobs)} rows are done already", file=sys.stderr)
        this_program = [sys.executable, "-m", "phiseg"]
        failed = run_all(
            waiting, lambda job: [*this_program, *row_command(job)[1:]], command.out, workers=command.workers
        )
    if not command.no_report and len(failed) < len(jobs):
        tables = write_report(command.data, command.out, title=command.title, test=command.test)
        for title, table in tables.items():
            print(f"{title}\n{to_text(table)}")
        print(f"report: {command.out / 'report.html'}")
    if failed:
        names = ", ".join(failed)
        raise TrainingError(
            f"{len(failed)} of {len(jobs)} rows failed ({names}); run the command again to try them"
        )
