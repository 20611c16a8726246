"""Time as input channels of a convolutional network, for models that refine a sample in several steps."""

from math import pi

import torch
from torch import Tensor

from phiseg.models.pyramid import PerAxis

TIME_CHANNELS = 5
"""Number of channels: the time itself, and sines and cosines of two frequencies."""

SAME_TIME = (
    "in each step of sampling, all samples of a batch have the same time, so that batch norm in training mode "
    "removes the time"
)
"""Why batch-norm statistics must not be averaged along the sampling path."""


def time_channels(time: Tensor, size: PerAxis) -> Tensor:
    """Return constant channels (B, `TIME_CHANNELS`, H, W) for times (B,) between 0 and 1."""
    angles = [frequency * pi * time for frequency in (1, 4)]
    features = torch.stack([2 * time - 1, *(f(a) for a in angles for f in (torch.sin, torch.cos))], dim=1)
    return per_item(features, len(size)).expand(*features.shape, *size)


def per_item(values: Tensor, dims: int) -> Tensor:
    """Append `dims` axes of length 1, so that values of items multiply all their pixels."""
    return values[(..., *[None] * dims)]
