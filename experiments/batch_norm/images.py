"""Compare batch-norm statistics of augmented and of unaugmented images, on the same weights.

    python experiments/batch_norm/images.py RUN DATA --batches 60 --out CASES.csv.gz

CASES.csv.gz receives the scores of every case. Existing rows of the file are kept, so several runs, numbers of
batches and draws can share it.
"""

import argparse
import csv
import gzip
import io
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from phiseg.data.augment import AugmentConfig
from phiseg.data.loader import TrainingStream
from phiseg.data.store import Dataset
from phiseg.inference.sampling import sample_cases
from phiseg.metrics.case import score_case
from phiseg.models import load_model
from phiseg.training.batch_norm import recalibrate
from phiseg.training.recipe import load_recipe

NUM_SAMPLES = 16
SCORES = ("ged_unbiased", "ged", "ged_floor", "s_ncc", "dice")


def main() -> None:
    """Score the model of a run with statistics of both kinds of images, on the validation split."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--batches", type=int, default=60, help="training batches that the statistics average")
    parser.add_argument("--draws", type=int, nargs="+", default=[5], help="seeds of the random batches")
    parser.add_argument("--images", choices=("augmented", "unaugmented"), nargs="+")
    parser.add_argument("--num-cases", type=int, default=1000, help="cases, drawn at random with seed 0")
    parser.add_argument("--out", type=Path, required=True, help="CSV file (.csv.gz) for the scores of every case")
    options = parser.parse_args()
    dataset, recipe = Dataset.open(options.data), load_recipe(str(options.run / "config.yaml"))
    rows = np.random.default_rng(0).permutation(dataset.rows("val"))[: options.num_cases].tolist()
    augmentations = {"augmented": recipe.augment, "unaugmented": AugmentConfig(enabled=False)}
    for images in options.images or augmentations:
        for draw in options.draws:
            setting = {"run": options.run.name, "images": images, "batches": options.batches, "draw": draw}
            model = load_model(options.run, calibrated=False)
            stream = TrainingStream(
                dataset, batch_size=recipe.train.batch_size, seed=draw, augment=augmentations[images]
            )
            recalibrate(model, map(stream.batch, range(options.batches)), seed=0)
            found = []
            drawn = sample_cases(model.eval(), dataset, rows, num_samples=NUM_SAMPLES, seed=0)
            for case in tqdm(drawn, total=len(rows), unit="case", desc=" ".join(map(str, setting.values()))):
                scores = score_case(*case.summary, torch.from_numpy(dataset.annotations(case.row)))
                names = {name: dataset.cases[case.row][name] for name in ("case", "patient")}
                found.append({**setting, **names, **{name: f"{scores[name]:.6g}" for name in SCORES}})
            add_cases(options.out, found)
            means = {name: round(float(np.mean([float(row[name]) for row in found])), 4) for name in SCORES}
            print(setting, f"{len(rows)} cases", means, flush=True)


def add_cases(path: Path, rows: list[dict[str, str | int]]) -> None:
    """Append the scores of cases to a file."""
    table = io.StringIO(gzip.decompress(path.read_bytes()).decode() if path.exists() else "")
    is_new = not table.read()
    writer = csv.DictWriter(table, rows[0], lineterminator="\n")
    if is_new:
        writer.writeheader()
    writer.writerows(rows)
    path.write_bytes(gzip.compress(table.getvalue().encode(), mtime=0))


if __name__ == "__main__":
    main()
