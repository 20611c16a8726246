"""Exponential moving average of the weights of a model."""

from copy import deepcopy

import torch

from phiseg.models import Segmenter


class WeightAverage:
    """Copy of a model with averaged weights.

    After step t (starting at 1), the decay is min(decay, (1 + t) / (10 + t)), so that the influence of the random
    initial weights vanishes quickly. Buffers, such as batch-norm statistics, are copied from the model.

    Args:
        model: model to average.
        decay: decay of the average; 0 disables averaging, and the average is the model itself.
    """

    def __init__(self, model: Segmenter, decay: float) -> None:
        self.decay = decay
        self.model = deepcopy(model).requires_grad_(False) if decay else model

    @torch.no_grad()
    def update(self, model: Segmenter, step: int) -> None:
        """Update the average with the weights of `model` after step `step`."""
        if self.decay:
            weight = 1 - min(self.decay, (1 + step) / (10 + step))
            for average, value in zip(self.model.parameters(), model.parameters(), strict=True):
                average.lerp_(value, weight)
            for target, source in zip(self.model.buffers(), model.buffers(), strict=True):
                target.copy_(source)
