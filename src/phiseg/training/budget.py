"""How long a training step takes, to give every method the same time."""

from time import perf_counter, process_time

import torch

from phiseg.compute.devices import make_fabric
from phiseg.data.loader import TrainingStream
from phiseg.data.store import Dataset
from phiseg.models import build_model
from phiseg.models.noise import seeded_generator
from phiseg.training.recipe import Recipe
from phiseg.training.setup import lay_out


def seconds_per_step(recipe: Recipe, dataset: Dataset, *, num_steps: int = 8) -> float:
    """Measure the median time of a training step, loading included.

    On a CPU with one thread it is the time that this process computes, so that other programs on the machine do not
    change a row's budget. Elsewhere it is the time that passes.

    Args:
        recipe: what to train; on one device.
        dataset: what to train on.
        num_steps: steps that are timed, after two that are not.
    """
    recipe, settings = recipe.for_dataset(dataset), recipe.train
    fabric = make_fabric(settings)
    stream = TrainingStream(
        dataset,
        batch_size=settings.batch_size,
        seed=settings.seed,
        annotator=settings.annotator,
        augment=recipe.augment,
        context=recipe.model.context,
    )
    with torch.random.fork_rng(devices=[]):
        model = build_model(recipe.model)
    lay_out(model, fabric.device)
    wrapped, optimizer = fabric.setup(model, torch.optim.Adam(model.parameters(), fused=True))
    alone = fabric.device.type == "cpu" and torch.get_num_threads() == 1
    clock = process_time if alone else perf_counter
    times = []
    for step in range(2 + num_steps):
        start = clock()
        batch = stream.batch(step, fabric.device)
        generators = [seeded_generator(settings.seed, "noise", step, i) for i in range(len(batch.rows))]
        loss = wrapped(batch.image, batch.labels, generator=generators)
        optimizer.zero_grad()
        fabric.backward(loss.total)
        optimizer.step()
        float(loss.total.detach())  # waits for a GPU
        times.append(clock() - start)
    return float(torch.tensor(times[2:]).median())
