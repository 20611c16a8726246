"""Hierarchical Probabilistic U-Net (Kohl et al. 2019, arXiv 1905.13077), trained with GECO.

At each of its L coarsest resolutions, the decoder of the U-Net draws a small latent image from a normal
distribution given by a 1x1 convolution of the features, and concatenates it to the features. The prior and the
segmentation network are therefore one network. The posterior is a second such U-Net that also sees the labels and
ends at the finest latent. In training, its latents are injected into the first U-Net.

GECO (Rezende and Viola, arXiv 1810.00597) minimises the KL subject to a cross-entropy of at most kappa nats per
pixel:

    sum_l KL_l + lambda * n * (CE - kappa),      lambda <- lambda * exp(rate * average of (CE - kappa))

where CE is the mean cross-entropy of n pixels of an image. They are drawn in each step with probabilities
proportional to their cross-entropies (`top_k` of all pixels). lambda starts at 1 and the moving average at 0.

Differences from DeepMind's code: the blocks of this package instead of residual blocks, for equal capacity; std =
softplus(raw) + min_std instead of exp(raw); hard pixels are drawn per image instead of from the whole batch, so
that the loss of an image does not depend on the other images; lambda is updated by the exponential rule of the GECO
paper, within bounds, instead of by Adam.

Shapes: B batch, S samples, N = B * S, Z latent channels, C_r channels of resolution level r. Lists run fine to
coarse.
"""

from collections.abc import Sequence
from math import ceil
from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from phiseg.models.blocks import Blocks, UNetBody, mean_over_processes
from phiseg.models.gaussian import Gaussian, GaussianHead, kl_divergence
from phiseg.models.hierarchy import LatentSample
from phiseg.models.layers import output_layer
from phiseg.models.noise import Generators, draw_noise
from phiseg.models.objective import Loss, negative_elbo, pixel_cross_entropy
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


class HProbUNetConfig(LatentConfig):
    """Settings of the Hierarchical Probabilistic U-Net. Latents, kappa, top_k and decay: as in DeepMind's code."""

    name: Literal["hprobunet"] = "hprobunet"
    num_levels: int = Field(default=4, ge=1)
    """Number of latent levels L, at the L coarsest resolutions; must be smaller than the number of resolutions."""
    latent_channels: int = Field(default=1, ge=1)
    """Channels Z of each latent variable."""
    kappa: float = Field(default=0.05, ge=0)
    """GECO constraint: maximum mean cross-entropy in nats of the drawn pixels."""
    top_k: float | None = Field(default=0.02, gt=0, le=1)
    """Fraction of the pixels of an image that are drawn; null uses all pixels."""
    geco_decay: float = Field(default=0.99, ge=0, lt=1)
    """Decay of the moving average of the constraint."""
    geco_rate: float = Field(default=0.05, gt=0)
    """Learning rate of the multiplier. DeepMind's 0.01 applies to a different update rule."""
    max_multiplier: float = Field(default=100.0, ge=1)
    """Upper bound of the multiplier, which would grow without limit if kappa cannot be reached; the lower bound is
    its inverse. With the default top_k, 100 gives the drawn pixels about 5 to 7 times the weight that all pixels
    have in the ELBO (measured on the lesion phantom)."""

    @model_validator(mode="after")
    def _check_levels(self) -> Self:
        if self.num_levels >= len(self.channels):
            raise ValueError(
                f"num_levels = {self.num_levels} needs at least {self.num_levels + 1} resolution levels, but "
                f"channels has {len(self.channels)}"
            )
        return self


class LatentUNet(nn.Module):
    """U-Net with a latent variable at each of its L coarsest resolutions; its decoder ends at level `finest`."""

    def __init__(self, in_channels: int, config: HProbUNetConfig, *, finest: int):
        super().__init__()
        self.finest = finest
        self.offset = len(config.channels) - config.num_levels
        self.body = UNetBody(
            in_channels,
            config.channels,
            pyramid=config.pyramid,
            num_blocks=config.blocks_per_level,
            norm=config.norm,
            finest=finest,
            joined=dict.fromkeys(range(self.offset, len(config.channels)), config.latent_channels),
        )
        self.heads = nn.ModuleList(
            GaussianHead(
                width,
                config.latent_channels,
                min_std=config.min_std,
                init_scale=config.head_init,
                mean_kernel=config.pyramid.point,
            )
            for width in config.channels[self.offset :]
        )

    def decode(
        self, features: Sequence[Tensor], *, noise: Sequence[Tensor] = (), given: Sequence[Tensor] = ()
    ) -> tuple[LatentSample, Tensor]:
        """Run the decoder; the distribution of each latent depends on all coarser latents.

        Args:
            features: encoder features (N, C_r, h_r, w_r) of each resolution.
            noise: standard normal (N, Z, h_l, w_l) for each latent level; unused if the latents are given.
            given: latents (N, Z, h_l, w_l) of each level to use instead of drawing.

        Returns:
            Distributions and latents of all levels, and the last features (N, C_f, h_f, w_f) with f = `finest`. The
            features of the posterior are not used.
        """
        distributions: list[Gaussian] = []
        latents: list[Tensor] = []
        x = features[-1]
        for resolution in reversed(range(self.finest, len(features))):
            level = resolution - self.offset
            if level >= 0:
                distribution: Gaussian = self.heads[level](x)
                latent = given[level] if given else distribution.draw(noise[level].to(x.device))
                distributions.insert(0, distribution)
                latents.insert(0, latent)
                x = torch.cat([x, latent.to(x.dtype)], dim=1)
            if resolution > self.finest:
                x = self.body.ascend(resolution - 1, x, features[resolution - 1])
        return LatentSample(distributions, latents), x


class GECO(nn.Module):
    """Lagrange multiplier and moving average of the constraint; buffers, so that both are stored in checkpoints."""

    multiplier: Tensor
    average: Tensor

    def __init__(self, *, decay: float, rate: float, largest: float):
        super().__init__()
        self.decay, self.rate, self.largest = decay, rate, largest
        self.register_buffer("multiplier", torch.ones(()))
        self.register_buffer("average", torch.zeros(()))

    def forward(self, constraint: Tensor) -> Tensor:
        """Return the multiplier for the loss of this step, and update it for the next step.

        It is updated only when gradients are computed: not in eval mode, and not while batch-norm statistics are
        recomputed. Several processes use the mean of their constraints, so that the multiplier is equal in all.
        """
        multiplier = self.multiplier.clone()
        if self.training and torch.is_grad_enabled():
            self.average.lerp_(mean_over_processes(constraint.detach()), 1 - self.decay)
            self.multiplier.mul_((self.rate * self.average).exp()).clamp_(1 / self.largest, self.largest)
        return multiplier


class HProbUNet(Segmenter):
    """U-Net with latents in its decoder (the prior), a posterior of the same form, and GECO."""

    Config = HProbUNetConfig
    config: HProbUNetConfig

    def __init__(self, config: HProbUNetConfig):
        super().__init__(config)
        width = config.channels[0]
        self.prior = LatentUNet(config.input_channels, config, finest=0)
        self.posterior = LatentUNet(config.input_channels + config.num_classes, config, finest=self.prior.offset)
        self.combine = Blocks(3, width, width, norm=config.norm, kernel=config.pyramid.point)
        self.output = output_layer(width, config.num_classes, config.pyramid.point)
        self.geco = GECO(decay=config.geco_decay, rate=config.geco_rate, largest=config.max_multiplier)

    def forward(self, image: Tensor, labels: Tensor, *, generator: Generators) -> Loss:
        """Return the GECO loss in training mode and the negative ELBO in eval mode; see `Segmenter.forward`.

        GECO losses with different multipliers are not comparable and cannot be used to select the best model.
        Terms: those of the ELBO, `multiplier` and `constraint`.
        """
        encoding = self.encode(image)
        shapes = [*self.noise_shapes(encoding.size), encoding.size]
        *noise, pixel_noise = (fold_samples(part) for part in draw_noise(shapes, len(image), 1, generator))
        x = self.pad(with_labels(image, labels, self.config.num_classes))
        (posteriors, latents), _ = self.posterior.decode(self.posterior.body.encoder(x), noise=noise)
        (priors, _), features = self.prior.decode(encoding.features, given=latents)
        logits = unpad(self.output(self.combine(features)), encoding.size)
        bound = negative_elbo([logits], labels, posteriors, priors, [1.0] * self.config.num_levels)
        if not self.training:
            return bound
        costs = pixel_cross_entropy(logits, labels).flatten(1)  # (B, H * W)
        if self.config.top_k is not None:
            costs = draw_hard_pixels(costs, self.config.top_k, pixel_noise.flatten(1).to(costs.device))
        constraint = costs.mean() - self.config.kappa
        multiplier = self.geco(constraint)
        divergences = [kl_divergence(q, p).mean() for q, p in zip(posteriors, priors, strict=True)]
        total = torch.stack(divergences).sum() + multiplier * costs.shape[1] * constraint
        return Loss(total, bound.terms | {"multiplier": multiplier, "constraint": constraint.detach()})

    def encode(self, image: Tensor) -> Encoding:
        """Compute the encoder features (B, C_r, h_r, w_r) of all resolutions."""
        self.check_image(image)
        return Encoding(tuple(self.prior.body.encoder(self.pad(image))), image_size(image))

    @property
    def num_levels(self) -> int:
        """The number L of latent levels."""
        return self.config.num_levels

    def noise_shapes(self, size: PerAxis) -> list[tuple[int, ...]]:
        """Return (Z, h_l, w_l) of each level."""
        resolutions = range(self.prior.offset, len(self.config.channels))
        return [(self.config.latent_channels, *self.level_size(size, level)) for level in resolutions]

    def decode_samples(self, encoding: Encoding, noise: Sequence[Tensor], num_samples: int) -> Tensor:
        """Decode noise (B, S, Z, h_l, w_l) to logits (B, S, K, H, W)."""
        repeated = [repeat_samples(level, num_samples) for level in encoding.features]
        _, features = self.prior.decode(repeated, noise=[fold_samples(level) for level in noise])
        return unfold_samples(unpad(self.output(self.combine(features)), encoding.size), num_samples)


def draw_hard_pixels(costs: Tensor, fraction: float, noise: Tensor) -> Tensor:
    """Draw pixels without replacement, with probabilities proportional to their costs.

    The k largest values of log cost + Gumbel noise are such a draw.

    Args:
        costs: (B, P) non-negative.
        fraction: fraction of the P pixels, rounded up to an integer k.
        noise: (B, P) standard normal.

    Returns:
        The costs (B, k) of the drawn pixels.
    """
    gumbel = -(-torch.special.log_ndtr(noise)).log()
    scores = costs.detach().clamp(min=torch.finfo(costs.dtype).tiny).log() + gumbel
    drawn = scores.topk(ceil(fraction * costs.shape[1] - 1e-9), dim=1).indices
    return costs.gather(1, drawn)
