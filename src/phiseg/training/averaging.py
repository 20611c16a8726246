"""An exponential moving average of a model's weights: what stochastic steps scatter around."""

from copy import deepcopy

import torch

from phiseg.models import Segmenter


class WeightAverage:
    """A copy of a model whose weights follow the model's.

    After step t, counted from 1, the copy moves by 1 - min(decay, (1 + t) / (10 + t)) of the way towards the model,
    so that it soon forgets the random start. Buffers, batch norm's statistics among them, are the model's own.

    Args:
        model: what to follow.
        decay: of the average; with 0 there is no copy, and the average is the model itself.
    """

    def __init__(self, model: Segmenter, decay: float) -> None:
        self.decay = decay
        self.model = deepcopy(model).requires_grad_(False) if decay else model

    @torch.no_grad()
    def update(self, model: Segmenter, step: int) -> None:
        """Follow `model` after its step number `step`."""
        if self.decay:
            weight = 1 - min(self.decay, (1 + step) / (10 + step))
            for average, value in zip(self.model.parameters(), model.parameters(), strict=True):
                average.lerp_(value, weight)
            for own, theirs in zip(self.model.buffers(), model.buffers(), strict=True):
                own.copy_(theirs)
