"""The experiment of the paper as a function: all methods with the same budget, in one report."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Literal

from phiseg.api.results import Comparison
from phiseg.comparison.comparability import check_set_aside
from phiseg.comparison.table_formats import to_text
from phiseg.core.errors import PhisegError, TrainingError
from phiseg.core.files import AnyPath
from phiseg.core.records import Records
from phiseg.experiment.experiment_report import write_experiment_report
from phiseg.experiment.runner import METHODS, REGIMES, Plan, list_experiment_jobs, open_experiment, run_job


def run_experiment(
    data: AnyPath,
    out: AnyPath,
    *,
    methods: AnyPath | Sequence[AnyPath] = METHODS,
    regimes: str | Sequence[str] = REGIMES,
    seeds: Sequence[int] = (0,),
    steps: int | None = None,
    minutes: float | None = None,
    expert: int = 0,
    num_samples: int = 100,
    split: str = "test",
    select_by: str | None = None,
    overrides: Sequence[str] = (),
    test: Literal["patients", "cases"] = "patients",
    set_aside: str | Sequence[str] = (),
    progress: bool = True,
) -> Comparison:
    """Train and evaluate methods with the same budget, and write a report, as `phiseg experiment table1` does.

    Rows run one after another. Finished rows are skipped and interrupted rows resumed, so the same call continues
    an experiment. A failed row does not affect the others.

    Args:
        data: the prepared dataset; models are selected on its val split.
        out: the folder of the experiment.
        methods: names of bundled recipes, or recipe files.
        regimes: `all` trains with all annotators, `one` with a single annotator.
        seeds: the seeds to train each row with.
        steps: the training budget of a row in steps.
        minutes: the training budget of a row in minutes. Give either `steps` or `minutes`.
        expert: the number of the annotator in the regime `one`.
        num_samples: the number of samples per case.
        split: the split to report.
        select_by: the validation score that selects the model of each training, as `train.select_by` of a recipe.
        overrides: changes to all recipes as on the command line, such as `["--train.batch_size", "6"]`.
        test: the unit that the significance test takes as independent.
        set_aside: methods with unsuitable settings. They are shown with a mark but not tested.
        progress: whether to show progress bars.

    Returns:
        The table, one row per method. With two regimes, the column `block` states the regime.

    Raises:
        ConfigError: a method or a setting is unknown, or not exactly one budget is given.
        DataError, OutputError: the dataset or the folder is unsuitable, or no row is finished.
        TrainingError: a row failed. The report contains the others.
    """
    values = {
        "steps": steps,
        "minutes": minutes,
        "expert": expert,
        "num_samples": num_samples,
        "split": split,
        "select_by": select_by,
        "overrides": tuple(overrides),
    }
    plan = Plan.parse(values, where="run_experiment")
    names = [str(method) for method in ([methods] if isinstance(methods, str | PathLike) else methods)]
    aside = [set_aside] if isinstance(set_aside, str) else set_aside
    jobs = list_experiment_jobs(names, regimes=[regimes] if isinstance(regimes, str) else regimes, seeds=seeds)
    check_set_aside([Path(name).stem for name in names], aside)
    folder, dataset = Path(out), Path(data)
    open_experiment(folder, plan, dataset)
    failed = {}
    for job in jobs:
        try:
            run_job(job, plan, dataset, folder, progress=progress)
        except PhisegError as error:
            failed[job.name] = str(error)
    tables = write_experiment_report(dataset, folder, test=test, set_aside=aside) if len(failed) < len(jobs) else {}
    if failed:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in failed.items())
        raise TrainingError(f"{len(failed)} of {len(jobs)} rows failed ({reasons}); call again to retry them")
    rows = Records.from_csv((folder / "table.csv").read_text(encoding="utf-8"), text_columns=["block", "method"])
    text = "\n".join(f"{title}\n{to_text(table)}" for title, table in tables.items())
    return Comparison(
        rows, path=folder, notes=tuple(note for table in tables.values() for note in table.notes), text=text
    )
