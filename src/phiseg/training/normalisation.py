"""Batch norm's statistics for the path that is used at test time.

In training, the likelihood sees latents of the posterior; at test time, latents of the prior. Running averages
of the training path describe activations that never occur when sampling. Three answers, `train.norm_statistics`:

* `running`: keep the running averages of the training path (what a plain port does).
* `both`: after each step, also pass the batch along the sampling path without gradients, so that the running
  averages mix both paths (what the authors' TensorFlow graph did). Costs a forward pass a step.
* `recalibrated`: before each validation, average the statistics anew over a few batches of training images, without
  augmentation, as evaluation sees images: the posterior's on the training path, everything that sampling uses on
  the sampling path.

docs/explanation/batch-norm.md has the measurement that made `recalibrated` the default.
"""

from collections.abc import Iterable

import torch

from phiseg.data.loader import Batch
from phiseg.models import Segmenter
from phiseg.models.blocks import BatchNorm
from phiseg.models.noise import seeded_generator


@torch.no_grad()
def follow_sampling_path(model: Segmenter, batch: Batch, *, seed: int, step: int) -> None:
    """Update the running statistics by one pass along the sampling path, in training mode."""
    generators = [seeded_generator(seed, "statistics", step, int(row)) for row in batch.rows]
    model.sample(batch.image, 1, generator=generators)


@torch.no_grad()
def recalibrate(model: Segmenter, batches: Iterable[Batch], *, seed: int) -> None:
    """Replace the running statistics by plain averages over `batches`; models without batch norm are left alone.

    First every layer is averaged on the training path. Then each layer that the sampling path reaches forgets
    that, and is averaged on the sampling path.
    """
    layers = [module for module in model.modules() if isinstance(module, BatchNorm)]
    if not layers:
        return
    batches = list(batches)
    was_training, momenta = model.training, [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # torch's word for a plain average
    model.train()
    for number, batch in enumerate(batches):
        generators = [seeded_generator(seed, "statistics", "posterior", number, int(row)) for row in batch.rows]
        model(batch.image, batch.labels, generator=generators)
    fresh = set(layers)

    def forget_once(layer: torch.nn.Module, _: object) -> None:
        if layer in fresh:
            assert isinstance(layer, BatchNorm)
            fresh.discard(layer)
            layer.reset_running_stats()

    hooks = [layer.register_forward_pre_hook(forget_once) for layer in layers]
    for number, batch in enumerate(batches):
        follow_sampling_path(model, batch, seed=seed, step=number)
    for hook in hooks:
        hook.remove()
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
    model.train(was_training)
