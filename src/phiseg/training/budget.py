"""Time per training step, for giving all methods the same training time."""

from time import perf_counter, process_time

import torch

from phiseg.compute.devices import keep_freed_memory, make_fabric
from phiseg.data.store import Dataset
from phiseg.training.recipe import Recipe
from phiseg.training.step import TrainingStep, initial_model, training_stream


def seconds_per_step(recipe: Recipe, dataset: Dataset, *, num_steps: int = 8) -> float:
    """Return the median time in seconds of a training step, including data loading.

    On a CPU with one thread, it is the CPU time of this process, so that other programs do not affect the result.
    Otherwise it is the wall-clock time.

    Args:
        recipe: recipe for one device.
        dataset: training data.
        num_steps: number of timed steps, after two warm-up steps.
    """
    keep_freed_memory()  # as in a training
    recipe = recipe.for_dataset(dataset)
    fabric = make_fabric(recipe.train)
    stream = training_stream(recipe, dataset)
    training = TrainingStep(initial_model(recipe, fabric.device), recipe.train, fabric)
    training.set_up()
    single_thread = fabric.device.type == "cpu" and torch.get_num_threads() == 1
    clock = process_time if single_thread else perf_counter
    times = []
    for step in range(2 + num_steps):
        start = clock()
        result = training.take(stream.batch(step, fabric.device), step)
        float(result.values["loss"])  # waits for a GPU
        times.append(clock() - start)
    return float(torch.tensor(times[2:]).median())
