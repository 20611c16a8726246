"""Speed of the loader on one core, compared with a plain loader and with training steps."""

import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path

import numpy as np
import torch

from benchmarks.measuring import Scale, Section, in_turns
from benchmarks.plain import augmented_batch
from benchmarks.tasks import Training
from phiseg.data.augment import draw_augmentation
from phiseg.data.loader import TrainingStream
from phiseg.data.prepare.phantom import prepare_phantom
from phiseg.data.store import Dataset
from phiseg.models import build_model
from phiseg.training.recipe import Recipe, load_recipe

RECIPES = ("phiseg-small", "probunet-small", "unet-small")
BATCHES = 10
"""Number of batches loaded per training step, because loading is fast."""


def run(scale: Scale) -> list[Section]:
    """Time the loader, a plain loader and training steps of the small recipes in turns on phantom lesions."""
    table = Section(
        "Loader on one core (images per second)",
        ("images", "recipe", "plain loader", "loader", "training", "loader / training", "target"),
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for size in (max(32, scale.size // 2), scale.size):
            path = Path(folder) / f"lesions-{size}"
            dataset = prepare_phantom(
                "lesion", path, size=size, num_cases=scale.num_cases, progress=False, overwrite=path.exists()
            )
            for name in RECIPES:
                recipe = load_recipe(name).for_dataset(dataset)
                plain, loader, training = speeds(recipe, dataset, scale.repeats)
                cells = [f"{size} x {size}", name, f"{plain:.0f}", f"{loader:.0f}", f"{training:.1f}"]
                table.rows.append([*cells, f"**{loader / training:.0f} x**", "at least 3 x"])
    torch.set_num_threads(threads)
    table.notes.append(
        "On a CPU, the loader shares the cores with the network, so it must be several times as fast. The plain "
        "loader augments one image at a time. Both read memory-mapped arrays and interpolate with torch."
    )
    return [table]


def speeds(recipe: Recipe, dataset: Dataset, repeats: int) -> tuple[float, float, float]:
    """Return the images per second of the plain loader, of phiseg's loader, and of the training step."""
    number = recipe.train.batch_size
    stream = TrainingStream(dataset, batch_size=number, seed=0, augment=recipe.augment)
    training = Training(build_model(recipe.model))
    batch, steps = stream.batch(0), count()
    random = np.random.default_rng(0)

    def load_plainly() -> None:
        matrices = draw_augmentation(
            recipe.augment, number, size=dataset.info.size, generator=torch.Generator().manual_seed(0)
        )
        augmented_batch(dataset, random.choice(stream.rows, number), random.integers(4, size=number), matrices)

    def times(action: Callable[[], object]) -> Callable[[], None]:
        return lambda: [action() for _ in range(BATCHES)].clear()

    plain, loader, step = in_turns(
        [
            times(load_plainly),
            times(lambda: stream.batch(next(steps))),
            lambda: training.step(batch.image, batch.labels),
        ],
        repeats,
    )
    return BATCHES * number / plain.median, BATCHES * number / loader.median, number / step.median
