"""Print the CPU time of 100 samples of one case for several recipes: sampling_time.py DATA RECIPE...

The methods take turns on one thread, so that they see the same machine. The median over the turns is printed. The
weights are random: they do not change the amount of computation.
"""

import sys
from statistics import median
from time import process_time

import torch

from phiseg.data.store import Dataset
from phiseg.inference.sampling import sample_cases
from phiseg.models import Segmenter, build_model
from phiseg.training.recipe import load_recipe

NUM_SAMPLES = 100
TURNS = 3


def cpu_seconds(model: Segmenter, dataset: Dataset) -> float:
    """Return the CPU time of one batch of four cases, per case."""
    start = process_time()
    list(sample_cases(model, dataset, [0, 1, 2, 3], num_samples=NUM_SAMPLES, seed=0))
    return (process_time() - start) / 4


def main(data: str, recipes: list[str]) -> None:
    """Measure the recipes in turns."""
    torch.set_num_threads(1)
    dataset = Dataset.open(data)
    models = {name: build_model(load_recipe(name).model).eval() for name in recipes}
    with torch.inference_mode():
        turns = [{name: cpu_seconds(model, dataset) for name, model in models.items()} for _ in range(TURNS)]
    for name in recipes:
        print(f"{name} {median(turn[name] for turn in turns):.3f}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
