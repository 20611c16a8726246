"""Does the loader keep the network busy? Images per second of the loader alone and of training steps, on one core.

    python benchmarks/loader.py

Both are measured in turns in one run, so that their ratio holds on a machine that others use too.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from statistics import median

import torch

from phiseg.data.loader import TrainingStream
from phiseg.data.prepare.phantom import prepare_phantom
from phiseg.data.store import Dataset
from phiseg.models import build_model
from phiseg.models.noise import seeded_generator
from phiseg.training.recipe import Recipe, load_recipe

RECIPES = ("phiseg-small", "probunet-small", "unet-small")


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 128], help="heights and widths of the images")
    parser.add_argument("--num-cases", type=int, default=200, help="images of the dataset")
    parser.add_argument("--rounds", type=int, default=5, help="turns; the median of each is told")
    parser.add_argument("--steps", type=int, default=4, help="training steps in a turn")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| images | recipe | loader, images/s | training, images/s | loader / training |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for size in options.sizes:
            path = Path(folder) / f"lesions-{size}"
            dataset = prepare_phantom("lesion", path, size=size, num_cases=options.num_cases, progress=False)
            for name in RECIPES:
                recipe = load_recipe(name).for_dataset(dataset)
                loader, training = measure(recipe, dataset, rounds=options.rounds, steps=options.steps)
                ratio = f"{loader / training:.0f} x"
                print(f"| {size} x {size} | {name} | {loader:.0f} | {training:.0f} | {ratio} |", flush=True)


def measure(recipe: Recipe, dataset: Dataset, *, rounds: int, steps: int) -> tuple[float, float]:
    """Return the images per second of the loader with the recipe's augmentation, and of its training step."""
    stream = TrainingStream(
        dataset, batch_size=recipe.train.batch_size, seed=recipe.train.seed, augment=recipe.augment
    )
    model = build_model(recipe.model).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=recipe.train.learning_rate, fused=True)
    batch = stream.batch(0)

    def train(step: int) -> None:
        generators = [seeded_generator(0, "noise", step, row) for row in range(len(batch.rows))]
        loss = model(batch.image, batch.labels, generator=generators)
        optimizer.zero_grad()
        loss.total.backward()
        optimizer.step()

    next_step = count()
    turns: Sequence[tuple[Callable[[int], object], int]] = ((stream.batch, 10 * steps), (train, steps))
    speeds: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds + 1):
        for (action, repeats), speed in zip(turns, speeds, strict=True):
            start = time.perf_counter()
            for _ in range(repeats):
                action(next(next_step))
            if turn:  # the first one warms up
                speed.append(repeats * recipe.train.batch_size / (time.perf_counter() - start))
    return median(speeds[0]), median(speeds[1])


if __name__ == "__main__":
    main()
