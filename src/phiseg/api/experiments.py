"""The experiment of the paper as a function: all methods with the same budget, in one report."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from phiseg.api.results import Comparison
from phiseg.comparison.table_formats import to_text
from phiseg.core.files import AnyPath
from phiseg.core.records import Records
from phiseg.experiment.experiment_report import write_experiment_report
from phiseg.experiment.runner import METHODS, REGIMES, Plan, list_experiment_jobs, open_experiment, run_job


def run_experiment(
    data: AnyPath,
    out: AnyPath,
    *,
    methods: Sequence[AnyPath] = METHODS,
    regimes: Sequence[str] = REGIMES,
    seeds: Sequence[int] = (0,),
    steps: int | None = None,
    minutes: float | None = None,
    num_samples: int = 100,
    split: str = "test",
    test: Literal["patients", "cases"] = "patients",
    set_aside: Sequence[str] = (),
    progress: bool = True,
) -> Comparison:
    """Train and evaluate methods with the same budget, and write a report, as `phiseg experiment table1` does.

    Rows run one after another. Finished rows are skipped and interrupted rows resumed, so the same call continues
    an experiment.

    Args:
        data: the prepared dataset; models are selected on its val split.
        out: the folder of the experiment.
        methods: names of bundled recipes, or recipe files.
        regimes: `all` trains with all annotators, `one` with a single annotator.
        seeds: the seeds to train each row with.
        steps: the training budget of a row in steps.
        minutes: the training budget of a row in minutes. Give either `steps` or `minutes`.
        num_samples: the number of samples per case.
        split: the split to report.
        test: the unit that the significance test takes as independent.
        set_aside: methods with unsuitable settings. They are shown with a mark but not tested.
        progress: whether to show progress bars.

    Returns:
        The table, one row per method; with two regimes, the column `block` tells them apart.

    Raises:
        ConfigError: a method or a setting is unknown, or not exactly one budget is given.
        DataError, OutputError, TrainingError: the dataset, the folder or a training fails.
    """
    plan = Plan.parse(
        {"steps": steps, "minutes": minutes, "num_samples": num_samples, "split": split}, where="run_experiment"
    )
    folder, dataset = Path(out), Path(data)
    jobs = list_experiment_jobs([str(method) for method in methods], regimes=regimes, seeds=seeds)
    open_experiment(folder, plan, dataset)
    for job in jobs:
        run_job(job, plan, dataset, folder, progress=progress)
    tables = write_experiment_report(dataset, folder, test=test, set_aside=set_aside)
    rows = Records.from_csv((folder / "table.csv").read_text(encoding="utf-8"), text_columns=["block", "method"])
    text = "\n".join(f"{title}\n{to_text(table)}" for title, table in tables.items())
    return Comparison(
        rows, path=folder, notes=tuple(note for table in tables.values() for note in table.notes), text=text
    )
