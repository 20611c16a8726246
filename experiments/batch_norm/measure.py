"""Score the same weights with each kind of batch norm statistics: measure.py DATA OUT.csv RUN...

RUN is a training with `--train.norm_statistics running`: its last state holds the running averages. They are scored
as they are, then recalibrated and scored again, on the validation split with 50 samples. OUT.csv receives the
scores of every case; the table and the p-values over patients are printed.
"""

import csv
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from phiseg.data.loader import TrainingStream
from phiseg.data.store import Dataset
from phiseg.inference.sampling import sample_cases
from phiseg.metrics.case import score_case
from phiseg.metrics.significance import patient_t_test
from phiseg.models import build_model
from phiseg.training.batch_norm import recalibrate
from phiseg.training.checkpoints import load_state
from phiseg.training.recipe import load_recipe

NUM_SAMPLES = 50
KINDS = ("running", "recalibrated")


SCORES = ("ged_unbiased", "ged", "ged_floor", "s_ncc", "dice")
Row = dict[str, str | float | None]


def main(data: Path, out: Path, runs: Sequence[Path]) -> None:
    """Score all runs, write the scores of the cases and print the table."""
    dataset = Dataset.open(data)
    rows = [row for run in runs for row in score_run(run, dataset)]
    with out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    print("| run | statistics | " + " | ".join(SCORES) + " |")
    for run in dict.fromkeys(row["run"] for row in rows):
        pair = [[row for row in rows if (row["run"], row["statistics"]) == (run, kind)] for kind in KINDS]
        for kind, cases in zip(KINDS, pair, strict=True):
            print(
                f"| {run} | {kind} | " + " | ".join(f"{np.mean(column(cases, name)):.3f}" for name in SCORES) + " |"
            )
        patients = [str(row["patient"]) for row in pair[0]]
        for name in ("ged_unbiased", "s_ncc", "dice"):
            test = patient_t_test(*(column(cases, name) for cases in pair), patients)
            print(f"{run}: p = {test.p_value:.2g} for {name}")


def score_run(run: Path, dataset: Dataset) -> Iterator[Row]:
    """Yield the scores of each case, first with running averages, then recalibrated."""
    recipe = load_recipe(str(run / "config.yaml"))
    model = build_model(recipe.model)
    model.load_state_dict(load_state(run / "state" / "last.pt").weights)
    stream = TrainingStream(
        dataset, batch_size=recipe.train.batch_size, seed=recipe.train.seed, augment=recipe.augment
    )
    for kind in KINDS:
        if kind == "recalibrated":
            recalibrate(model, map(stream.batch, range(recipe.train.recalibration_batches)), seed=recipe.train.seed)
        rows = dataset.rows("val").tolist()
        drawn = sample_cases(model.eval(), dataset, rows, num_samples=NUM_SAMPLES, seed=0)
        for case in tqdm(drawn, total=len(rows), unit="case", desc=f"{run.name}, {kind}"):
            found = score_case(*case.summary, torch.from_numpy(dataset.annotations(case.row)))
            names = {name: dataset.cases[case.row][name] for name in ("case", "patient")}
            yield {"run": run.name, "statistics": kind} | names | {name: found[name] for name in SCORES}


def column(cases: Sequence[Row], name: str) -> list[float]:
    """Return one score of the cases."""
    return [float(case[name] or 0.0) for case in cases]


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), [Path(run) for run in sys.argv[3:]])
