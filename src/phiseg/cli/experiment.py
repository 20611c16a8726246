"""The command `phiseg experiment table1`."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from phiseg.cli.early_checks import check_is_dataset
from phiseg.cli.parsing import Flag, optional, parse
from phiseg.cli.train import split_overrides

if TYPE_CHECKING:
    from phiseg.experiment.runner import ExperimentJob


@dataclass
class Experiment:
    """Reproduce the paper's table: train and evaluate all methods with the same budget, and write a report.

    Regime `all` trains on all annotators. Regime `one` trains on a single annotator and computes Dice against that
    annotator.

    Each row of the table is a separate job in OUT/rows. Finished rows are skipped, interrupted rows are resumed,
    and a failed row is reported while the others continue. With --dry-run the command prints one command per row,
    for a scheduler or for several machines that share OUT; run it without --dry-run afterwards to write the report.

    Recipe keys can be changed for all rows, for example with --train.batch_size 6.

    Examples:
        phiseg experiment table1 --data data --out table1 --minutes 20 --workers 2
        phiseg experiment table1 --data data --out table1 --minutes 20 --dry-run
    """

    data: Path
    """Prepared dataset. Models are selected on its val split."""
    out: Path
    """Folder of the experiment."""
    methods: Annotated[tuple[str, ...] | None, optional("RECIPE ...", "the small recipes of all methods")] = None
    """Recipe names or .yaml files."""
    regimes: Annotated[tuple[Literal["all", "one"], ...], tyro.conf.arg(metavar="{all,one} ...")] = ("all", "one")
    """Training with all annotators, with one annotator, or both."""
    seeds: Annotated[tuple[int, ...], tyro.conf.arg(metavar="INT ...")] = (0,)
    """Seeds to train each row with. With several seeds the table shows their spread."""
    rows: Annotated[tuple[str, ...], tyro.conf.arg(metavar="PATTERN ...")] = ("*",)
    """Patterns of the row names to run, such as 'one/*' or 'all/phiseg-small/seed-0'."""
    steps: Annotated[int | None, optional("N", "use --minutes")] = None
    """Training budget per row in steps."""
    minutes: Annotated[float | None, optional("M", "use --steps")] = None
    """Training budget per row in minutes, without validation. It is converted to steps by timing a few steps when a
    row starts. With one CPU thread (OMP_NUM_THREADS=1) only CPU time counts, so other load does not matter."""
    expert: int = 0
    """Number of the annotator used in regime `one`."""
    num_samples: int = 100
    """Number of samples per case."""
    split: str = "test"
    """Split to report."""
    select_by: Annotated[str | None, optional("SCORE", "ged_unbiased, or loss in regime `one`")] = None
    """Validation score that selects the model of each training, as train.select_by of a recipe."""
    test: Literal["patients", "cases"] = "patients"
    """Unit that the significance test treats as independent: patients (and seeds), or cases as in the paper."""
    set_aside: Annotated[tuple[str, ...], optional("METHOD ...", "test all methods")] = ()
    """Methods with unsuitable settings. The report shows them with a mark but does not test them."""
    workers: int = 1
    """Number of rows that run at the same time. They share the CPU cores."""
    dry_run: Flag = False
    """Print the commands of the rows without running them."""
    no_report: Flag = False
    """Skip the report."""
    title: Annotated[str | None, optional("TEXT", "Experiment on DATASET")] = None
    """Title of the report."""


def run(arguments: Sequence[str], *, prog: str) -> None:
    """Parse and run the command."""
    words, overrides = split_overrides(arguments)
    command = parse(Experiment, words, prog=prog)
    if not command.dry_run:
        check_is_dataset(command.data)
    from phiseg.comparison.comparability import check_set_aside
    from phiseg.comparison.table_formats import to_text
    from phiseg.core.errors import TrainingError
    from phiseg.experiment.experiment_report import write_experiment_report
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
    check_set_aside([Path(method).stem for method in methods], command.set_aside)
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
        print(f"{len(jobs) - len(waiting)} of {len(jobs)} rows are already finished", file=sys.stderr)
        this_program = [sys.executable, "-m", "phiseg"]
        failed = run_all(
            waiting, lambda job: [*this_program, *row_command(job)[1:]], command.out, workers=command.workers
        )
    if not command.no_report and len(failed) < len(jobs):
        tables = write_experiment_report(
            command.data, command.out, title=command.title, test=command.test, set_aside=command.set_aside
        )
        for title, table in tables.items():
            print(f"{title}\n{to_text(table)}")
        print(f"report: {command.out / 'report.html'}")
    if failed:
        names = ", ".join(failed)
        raise TrainingError(
            f"{len(failed)} of {len(jobs)} rows failed ({names}); run the same command to retry them"
        )
