"""Axis-aligned normal distributions (eqs. 3 and 4 of the paper).

Shapes: all tensors are (B, Z, h, w), (B, Z, d, h, w) for volumes, or (B, Z) for the latent vector of the
Probabilistic U-Net.
"""

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from phiseg.models.layers import output_layer
from phiseg.models.pyramid import PerAxis


class Gaussian(NamedTuple):
    """N(mean, std^2) with independent elements. `std` is the standard deviation."""

    mean: Tensor
    std: Tensor

    def draw(self, noise: Tensor, temperature: float = 1.0) -> Tensor:
        """Return mean + temperature * std * noise, with standard normal `noise` of the same shape."""
        return self.mean + temperature * self.std * noise


class GaussianHead(nn.Module):
    """Two linear layers from features (B, C, h, w) to a distribution over (B, Z, h, w), in float32.

    std = softplus(raw) + min_std: the minimum keeps the KL finite.
    """

    def __init__(
        self,
        in_channels: int,
        latent_channels: int,
        *,
        min_std: float,
        init_scale: float,
        mean_kernel: PerAxis = (1, 1),
    ):
        super().__init__()
        self.min_std = min_std
        self.mean = output_layer(in_channels, latent_channels, mean_kernel, init_scale=init_scale)
        point = (1,) * len(mean_kernel)
        self.raw_std = output_layer(in_channels, latent_channels, point, init_scale=init_scale)

    def forward(self, features: Tensor) -> Gaussian:
        """Return the distribution."""
        std = F.softplus(self.raw_std(features).float()) + self.min_std
        return Gaussian(self.mean(features).float(), std)


def kl_divergence(q: Gaussian, p: Gaussian) -> Tensor:
    """Return KL[q || p] of each item in float32, summed over all dimensions except the batch.

    log(sp / sq) + (sq^2 + (mq - mp)^2) / (2 sp^2) - 1/2, summed.

    Returns:
        (B,) non-negative.
    """
    mq, sq, mp, sp = (tensor.float() for tensor in (*q, *p))
    ratio = (sq / sp).square()
    distance = ((mq - mp) / sp).square()
    return (0.5 * (ratio + distance - 1 - ratio.log())).flatten(1).sum(1)
