"""Score the same weights with each kind of batch norm statistics: measure.py RUN DATA.

RUN is a training with `--train.norm_statistics running`: its last state holds the running averages. They are scored
as they are, then recalibrated and scored again, on the validation split with 50 samples.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from tqdm import tqdm

from phiseg.data.loader import TrainingStream
from phiseg.data.store import Dataset
from phiseg.inference.sampling import sample_cases
from phiseg.metrics.case import score_case
from phiseg.models import Segmenter, build_model
from phiseg.training.batch_norm import recalibrate
from phiseg.training.checkpoints import load_state
from phiseg.training.recipe import load_recipe

NUM_SAMPLES = 50


def main(run: Path, data: Path) -> None:
    """Print two rows of the table."""
    recipe = load_recipe(str(run / "config.yaml"))
    dataset, state = Dataset.open(data), load_state(run / "state" / "last.pt")
    model = build_model(recipe.model)
    model.load_state_dict(state.weights)
    rows = dataset.rows("val").tolist()
    print(f"| {recipe.name}, step {state.step} | {recipe.train.norm_statistics} | {scores(model, dataset, rows)} |")
    stream = TrainingStream(
        dataset, batch_size=recipe.train.batch_size, seed=recipe.train.seed, augment=recipe.augment
    )
    recalibrate(model, map(stream.batch, range(recipe.train.recalibration_batches)), seed=recipe.train.seed)
    print(f"| {recipe.name}, step {state.step} | recalibrated | {scores(model, dataset, rows)} |")


def scores(model: Segmenter, dataset: Dataset, rows: Sequence[int]) -> str:
    """Return GED, its floor, S_NCC and Dice, averaged over the cases."""
    found = [
        score_case(*case.summary, torch.from_numpy(dataset.annotations(case.row)))
        for case in tqdm(
            sample_cases(model.eval(), dataset, rows, num_samples=NUM_SAMPLES, seed=0), total=len(rows), unit="case"
        )
    ]
    means = [
        sum(case[name] or 0.0 for case in found) / len(found) for name in ("ged", "ged_floor", "s_ncc", "dice")
    ]
    return " | ".join(f"{mean:.3f}" for mean in means)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
