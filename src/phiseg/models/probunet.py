"""Probabilistic U-Net (Kohl et al., NeurIPS 2018), as in the PHiSeg paper: with batch norm and the same blocks.

Shapes: B batch, S samples, Z latent dimensions.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from phiseg.models.blocks import Blocks, Encoder, UNetBody
from phiseg.models.gaussian import Gaussian, GaussianHead
from phiseg.models.layers import append_axes, output_layer, pixel_axes
from phiseg.models.noise import Generators, draw_noise
from phiseg.models.objective import Loss, negative_elbo
from phiseg.models.pyramid import PerAxis
from phiseg.models.segmenter import (
    Encoding,
    LatentConfig,
    Segmenter,
    fold_samples,
    image_size,
    repeat_samples,
    unfold_samples,
    unpad,
    with_labels,
)


class VectorLatentConfig(LatentConfig):
    """Settings of models with one latent vector."""

    latent_dimensions: int = Field(default=6, ge=1)
    """Length Z of the latent vector."""
    kl_weight: float = Field(default=1.0, ge=0)
    """Weight of the KL term."""


class ProbUNetConfig(VectorLatentConfig):
    """Settings of the Probabilistic U-Net."""

    name: Literal["probunet"] = "probunet"


class VectorGaussian(nn.Module):
    """Encoder with a distribution N(z | mean, std^2) of a vector: (B, in, H, W) -> mean and std (B, Z)."""

    def __init__(self, in_channels: int, config: VectorLatentConfig):
        super().__init__()
        pyramid = config.pyramid
        self.encoder = Encoder(
            in_channels, config.channels, pyramid=pyramid, num_blocks=config.blocks_per_level, norm=config.norm
        )
        self.head = GaussianHead(
            config.channels[-1],
            config.latent_dimensions,
            min_std=config.min_std,
            init_scale=config.head_init,
            mean_kernel=pyramid.point,
        )

    def forward(self, x: Tensor) -> Gaussian:
        """Return the distribution of z; mean and std are averaged over the pixels of the coarsest level."""
        mean, std = self.head(self.encoder(x)[-1])
        return Gaussian(mean.mean(pixel_axes(mean)), std.mean(pixel_axes(std)))


class ProbUNet(Segmenter):
    """U-Net with a global latent vector concatenated to its last features."""

    Config = ProbUNetConfig
    config: ProbUNetConfig

    def __init__(self, config: ProbUNetConfig):
        super().__init__(config)
        width = config.channels[0]
        self.body = UNetBody(
            config.input_channels,
            config.channels,
            pyramid=config.pyramid,
            num_blocks=config.blocks_per_level,
            norm=config.norm,
        )
        self.prior = VectorGaussian(config.input_channels, config)
        self.posterior = VectorGaussian(config.input_channels + config.num_classes, config)
        self.combine = Blocks(
            3, width + config.latent_dimensions, width, norm=config.norm, kernel=config.pyramid.point
        )
        self.output = output_layer(width, config.num_classes, config.pyramid.point)

    def forward(self, image: Tensor, labels: Tensor, *, generator: Generators) -> Loss:
        """Return the cross-entropy plus the weighted KL; see `Segmenter.forward`."""
        encoding = self.encode(image)
        features, *prior = encoding.features
        noise = draw_noise(self.noise_shapes(encoding.size), len(image), 1, generator)[0][:, 0].to(image.device)
        posterior = self.posterior(self.pad(with_labels(image, labels, self.config.num_classes)))
        logits = unpad(self._combine(features, posterior.draw(noise)), encoding.size)
        return negative_elbo([logits], labels, [posterior], [Gaussian(*prior)], [self.config.kl_weight])

    def encode(self, image: Tensor) -> Encoding:
        """Compute the U-Net features (B, C, H, W) and the mean and std of the prior (B, Z)."""
        self.check_image(image)
        x = self.pad(image)
        return Encoding((self.body(x), *self.prior(x)), image_size(image))

    def noise_shapes(self, size: PerAxis) -> list[tuple[int, ...]]:  # noqa: ARG002
        """Return [(Z,)]."""
        return [(self.config.latent_dimensions,)]

    def decode_samples(self, encoding: Encoding, noise: Sequence[Tensor], num_samples: int) -> Tensor:
        """Decode noise (B, S, Z) to logits (B, S, K, H, W)."""
        features, mean, std = encoding.features
        latent = mean[:, None] + std[:, None] * noise[0].to(mean.device)  # (B, S, Z)
        logits = unpad(self._combine(repeat_samples(features, num_samples), fold_samples(latent)), encoding.size)
        return unfold_samples(logits, num_samples)

    def _combine(self, features: Tensor, latent: Tensor) -> Tensor:
        logits: Tensor = self.output(self.combine(join_vector(features, latent)))
        return logits


def join_vector(features: Tensor, latent: Tensor) -> Tensor:
    """Concatenate a latent vector (B, Z) to the features (B, C, H, W) of every pixel: (B, C + Z, H, W)."""
    tiled = append_axes(latent, features.ndim).expand(-1, -1, *features.shape[2:])
    return torch.cat([features, tiled.to(features.dtype)], dim=1)
