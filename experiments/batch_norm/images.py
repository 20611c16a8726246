"""Batch-norm statistics of augmented and of unaugmented images, on the same weights.

images.py RUN DATA [BATCHES [SEED]]   print both scores of the validation split, 16 samples a case
"""

import sys
from pathlib import Path

import numpy as np
import torch

from phiseg.data.augment import AugmentConfig
from phiseg.data.loader import TrainingStream
from phiseg.data.store import Dataset
from phiseg.inference.sampling import sample_cases
from phiseg.metrics.case import score_case
from phiseg.models import load_model
from phiseg.training.batch_norm import recalibrate
from phiseg.training.recipe import load_recipe


def main(run: Path, data: Path, num_batches: int = 25, seed: int = 5) -> None:
    """Score the model of a run with statistics of both kinds."""
    dataset, recipe = Dataset.open(data), load_recipe(str(run / "config.yaml"))
    for name, augment in (("augmented", recipe.augment), ("as they are", AugmentConfig(enabled=False))):
        model = load_model(run, calibrated=False)
        stream = TrainingStream(dataset, batch_size=recipe.train.batch_size, seed=seed, augment=augment)
        recalibrate(model, (stream.batch(step) for step in range(num_batches)), seed=0)
        scores = [
            score_case(*case.summary, torch.from_numpy(dataset.annotations(case.row)))
            for case in sample_cases(model.eval(), dataset, dataset.rows("val").tolist(), num_samples=16, seed=0)
        ]
        means = {key: np.mean([score[key] for score in scores]) for key in ("ged_unbiased", "s_ncc", "dice")}
        print(name, {key: round(float(value), 4) for key, value in means.items()})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
