"""Axis-aligned normal distributions, the paper's eqs. 3 and 4.

Shapes: every tensor is (B, D, h, w), or (B, Z) for the Probabilistic U-Net's vector latent.
"""

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor


class Gaussian(NamedTuple):
    """N(mean, std^2), independent in every element. `std` is a standard deviation."""

    mean: Tensor
    std: Tensor

    def draw(self, noise: Tensor, temperature: float = 1.0) -> Tensor:
        """Return mean + temperature * std * noise, with `noise` standard normal and of the same shape."""
        return self.mean + temperature * self.std * noise


def gaussian(mean: Tensor, raw_std: Tensor, *, min_std: float) -> Gaussian:
    """Make a distribution of a network's two outputs, in float32: std = softplus(raw) + min_std.

    The floor keeps the KL finite where a network would like to be certain.
    """
    return Gaussian(mean.float(), F.softplus(raw_std.float()) + min_std)


def kl_divergence(q: Gaussian, p: Gaussian) -> Tensor:
    """Return KL[q || p] of each item, in float32, summed over all but the batch dimension.

    log(sp / sq) + (sq^2 + (mq - mp)^2) / (2 sp^2) - 1/2, summed.

    Returns:
        (B,) non-negative.
    """
    mq, sq, mp, sp = (tensor.float() for tensor in (*q, *p))
    ratio = (sq / sp).square()
    distance = ((mq - mp) / sp).square()
    return (0.5 * (ratio + distance - 1 - ratio.log())).flatten(1).sum(1)
