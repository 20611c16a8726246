"""Hierarchy of latent variables: the common architecture of the prior and posterior networks.

Shapes: N = B * S items, Z latent channels, h_l w_l pixels of the latent of level l (d_l h_l w_l for volumes). Lists
run fine to coarse.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from phiseg.models.blocks import Blocks, Encoder
from phiseg.models.gaussian import Gaussian, GaussianHead
from phiseg.models.layers import upsample
from phiseg.models.segmenter import LatentConfig


class LatentSample(NamedTuple):
    """Distributions of all levels and the latents drawn from them, fine to coarse."""

    distributions: list[Gaussian]
    latents: list[Tensor]


class LatentLevel(nn.Module):
    """p(z_l | z_{l+1}, x) or q(z_l | z_{l+1}, s, x): eqs. 3 and 4 for one level finer than the coarsest."""

    def __init__(
        self,
        feature_channels: int,
        channels: int,
        config: LatentConfig,
        *,
        resolution: int,
        latent_channels: int,
        embedding_channels: int,
        residual: bool,
    ):
        super().__init__()
        pyramid = config.pyramid
        kernel = pyramid.kernels[resolution]
        self.stride = pyramid.strides[resolution]
        self.embed = Blocks(
            2, latent_channels, embedding_channels, norm=config.norm, kernel=kernel, residual=residual
        )
        self.merge = Blocks(
            2,
            embedding_channels + feature_channels,
            channels,
            norm=config.norm,
            kernel=kernel,
            residual=residual,
        )
        self.head = GaussianHead(
            channels,
            latent_channels,
            min_std=config.min_std,
            init_scale=config.head_init,
            mean_kernel=pyramid.point,
        )

    def forward(self, features: Tensor, below: Tensor, image_of: Tensor | None = None) -> Gaussian:
        """Return the distribution of z_l (N, Z, h, w) given features (B, C, h, w) and z_{l+1} (`below`).

        `image_of` (N,) is the number of the image of each item; without it, N is B.
        """
        embedded = self.embed(upsample(below, self.stride))
        if image_of is None:
            merged = self.merge(torch.cat([embedded, features], dim=1))
        else:
            merged = self.merge.join(embedded, features, image_of)
        distribution: Gaussian = self.head(merged)
        return distribution


class LatentHierarchy(nn.Module):
    """Prior or posterior network: an encoder and one latent variable per level.

    Latent level l is at resolution level l + offset. Features of resolutions coarser than the coarsest latent
    (offset < R - L) are upsampled with skip connections, as in a U-Net.
    """

    def __init__(
        self,
        in_channels: int,
        config: LatentConfig,
        *,
        num_levels: int,
        offset: int,
        latent_channels: int,
        embedding_channels: int,
        num_blocks: int,
        residual: bool,
    ):
        super().__init__()
        channels, norm, pyramid = config.channels, config.norm, config.pyramid
        self.strides = pyramid.strides
        self.num_levels = num_levels
        self.offset = offset
        deepest = offset + num_levels - 1
        self.encoder = Encoder(
            in_channels, channels, pyramid=pyramid, num_blocks=num_blocks, norm=norm, residual=residual
        )
        self.ascent = nn.ModuleList(
            Blocks(
                2,
                channels[r] + channels[r + 1],
                channels[r],
                norm=norm,
                kernel=pyramid.kernels[r],
                residual=residual,
            )
            for r in range(deepest, len(channels) - 1)
        )
        self.levels = nn.ModuleList(
            LatentLevel(
                channels[level + offset],
                channels[level],
                config,
                resolution=level + offset,
                latent_channels=latent_channels,
                embedding_channels=embedding_channels,
                residual=residual,
            )
            for level in range(num_levels - 1)
        )
        self.coarsest = GaussianHead(
            channels[deepest],
            latent_channels,
            min_std=config.min_std,
            init_scale=config.head_init,
            mean_kernel=pyramid.kernels[deepest],
        )

    def encode(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the input features (B, C_l, h_l, w_l) of the latent levels, fine to coarse."""
        features = self.encoder(x)
        lowest = len(features) - len(self.ascent) - 1
        for r, blocks in reversed(list(enumerate(self.ascent, start=lowest))):
            upsampled = upsample(features[r + 1], self.strides[r])
            features[r] = blocks(torch.cat([upsampled, features[r]], dim=1))
        return tuple(features[self.offset : self.offset + self.num_levels])

    def draw(
        self,
        features: Sequence[Tensor],
        noise: Sequence[Tensor] | None,
        *,
        image_of: Tensor | None = None,
        given: Mapping[int, Tensor] | None = None,
        temperatures: Sequence[float] | None = None,
    ) -> LatentSample:
        """Draw latents from coarse to fine; each level is conditioned on the next coarser one.

        Args:
            features: features of B images, fine to coarse.
            noise: standard normal (N, Z, h_l, w_l) for each level; None if all levels are given.
            image_of: (N,), the number of the image of each item; default: N / B consecutive items per image.
            given: by level, latents (N, Z, h_l, w_l) to use instead of drawing.
            temperatures: factor on the standard deviation of each level; default 1.
        """
        given = given or {}
        temperatures = [1.0] * self.num_levels if temperatures is None else temperatures
        num_images = features[0].shape[0]
        num_items = (given[0] if noise is None else noise[0]).shape[0]
        if image_of is None and num_items != num_images:
            numbers = torch.arange(num_images, device=features[0].device)
            image_of = numbers.repeat_interleave(num_items // num_images)
        distributions: list[Gaussian] = []
        latents: list[Tensor] = []
        for level in reversed(range(self.num_levels)):
            if latents:
                distribution: Gaussian = self.levels[level](features[level], latents[-1], image_of)
            else:
                distribution = self.coarsest(features[level])
                if image_of is not None:
                    distribution = Gaussian(*(tensor[image_of] for tensor in distribution))
            if level in given:
                latent = given[level]
            else:
                assert noise is not None
                latent = distribution.draw(noise[level].to(distribution.mean.device), temperatures[level])
            distributions.append(distribution)
            latents.append(latent)
        return LatentSample(distributions[::-1], latents[::-1])
