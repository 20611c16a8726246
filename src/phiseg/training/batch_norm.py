"""Batch-norm statistics at sampling time.

In training, the likelihood network sees latents of the posterior; at sampling time, latents of the prior. Running
averages of the training path describe activations that do not occur in sampling. Options of
`train.norm_statistics`:

* `running`: use the running averages of the training path (the behaviour of a plain port).
* `both`: after each step, also run the batch through the sampling path without gradients, so that the running
  averages mix both paths (the behaviour of the authors' TensorFlow graph). This costs one forward pass per step.
* `recalibrated`: before each validation, recompute the statistics on a few batches of training images without
  augmentation: those of the posterior on the training path, all others on the sampling path.
* `training`: the same, but all of them on the training path. Some models need this; their
  `sampling_statistics_problem` states the reason.

See docs/explanation/batch-norm.md for the measurements behind the defaults.
"""

from collections.abc import Iterable

import torch
from tqdm import tqdm

from phiseg.data.loader import Batch
from phiseg.models import Segmenter
from phiseg.models.blocks import BatchNorm
from phiseg.models.noise import seeded_generator


@torch.no_grad()
def follow_sampling_path(model: Segmenter, batch: Batch, *, seed: int, step: int) -> None:
    """Update the running statistics with one pass through the sampling path in training mode."""
    generators = [seeded_generator(seed, "statistics", step, int(row)) for row in batch.rows]
    model.sample(batch.image, 1, generator=generators)


@torch.no_grad()
def recalibrate(
    model: Segmenter, batches: Iterable[Batch], *, seed: int, sampling_path: bool = True, progress: bool = False
) -> None:
    """Replace the running statistics by plain averages over `batches`; no effect without batch norm.

    All layers are first averaged on the training path. With `sampling_path`, layers that occur in the sampling path
    are then reset and averaged there. `progress` shows a progress bar.
    """
    was_training = model.training
    model.train()
    layers = [module for module in model.modules() if isinstance(module, BatchNorm)]
    if not layers:
        model.train(was_training)
        return
    batches = list(batches)
    bar = tqdm(
        total=len(batches) * (1 + sampling_path),
        desc="batch-norm statistics",
        unit="batch",
        leave=False,
        disable=not progress,
    )
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # plain average in torch
    for number, batch in enumerate(batches):
        generators = [seeded_generator(seed, "statistics", "posterior", number, int(row)) for row in batch.rows]
        model(batch.image, batch.labels, generator=generators)
        bar.update()
    to_reset = set(layers)

    def reset_once(layer: torch.nn.Module, _: object) -> None:
        if layer in to_reset:
            assert isinstance(layer, BatchNorm)
            to_reset.discard(layer)
            layer.reset_running_stats()

    hooks = [layer.register_forward_pre_hook(reset_once) for layer in layers]
    for number, batch in enumerate(batches if sampling_path else []):
        follow_sampling_path(model, batch, seed=seed, step=number)
        bar.update()
    bar.close()
    for hook in hooks:
        hook.remove()
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
    model.train(was_training)
