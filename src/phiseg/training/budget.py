"""How long a training step takes, to give every method the same time."""

from time import perf_counter, process_time

import torch

from phiseg.compute.devices import make_fabric
from phiseg.data.store import Dataset
from phiseg.training.recipe import Recipe
from phiseg.training.step import TrainingStep, initial_model, training_stream


def seconds_per_step(recipe: Recipe, dataset: Dataset, *, num_steps: int = 8) -> float:
    """Measure the median time of a training step, loading included.

    On a CPU with one thread it is the time that this process computes, so that other programs on the machine do not
    change a row's budget. Elsewhere it is the time that passes.

    Args:
        recipe: what to train; on one device.
        dataset: what to train on.
        num_steps: steps that are timed, after two that are not.
    """
    recipe = recipe.for_dataset(dataset)
    fabric = make_fabric(recipe.train)
    stream = training_stream(recipe, dataset)
    training = TrainingStep(initial_model(recipe, fabric.device), recipe.train, fabric)
    training.set_up()
    alone = fabric.device.type == "cpu" and torch.get_num_threads() == 1
    clock = process_time if alone else perf_counter
    times = []
    for step in range(2 + num_steps):
        start = clock()
        result = training.take(stream.batch(step, fabric.device), step)
        float(result.values["loss"])  # waits for a GPU
        times.append(clock() - start)
    return float(torch.tensor(times[2:]).median())
