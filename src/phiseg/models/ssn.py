"""Stochastic Segmentation Networks (Monteiro et al., NeurIPS 2020): a Gaussian over the logits of all pixels.

eta | x ~ N(mean(x), F(x) F(x)^T + diag(std(x))^2), with F of low rank; p(s|x) = E_eta prod_i softmax(eta_i)[s_i].

Conventions, and differences from the authors' code:

* A sample is mean + F e1 + std e2. The covariance is never computed or inverted, so the authors' fallback to
  independent normals for a singular covariance is not needed.
* std = softplus(raw) + min_std, as in all models here; the authors use sqrt(exp(raw) + 1e-5).
* The covariance is not restricted to a region of interest.
* The mean can be trained before: `train.initial_weights` with a trained `unet`.
* Monte Carlo samples are antithetic pairs, mean +- deviation, as in the authors' code.
* The log-likelihood is summed over pixels and averaged over the batch, as in the authors' code and as the
  cross-entropy of all other models here, so that learning rates are comparable.

Shapes: B batch, S samples, K classes, Q rank, M Monte Carlo samples.
"""

from collections.abc import Sequence
from math import log
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from phiseg.models.blocks import Blocks, UNetBody
from phiseg.models.gaussian import GaussianHead
from phiseg.models.layers import output_layer
from phiseg.models.noise import Generators, draw_noise
from phiseg.models.objective import Loss, item_cross_entropy
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
)
from phiseg.models.unet import UNet


class SSNConfig(LatentConfig):
    """Settings of the Stochastic Segmentation Network; `min_std` and `head_init` apply to the logits."""

    name: Literal["ssn"] = "ssn"
    rank: int = Field(default=10, ge=1)
    """Rank Q of the covariance: number of columns of the factor F."""
    monte_carlo: int = Field(default=20, ge=2, multiple_of=2)
    """Number of Monte Carlo samples M of the likelihood in the training loss, in antithetic pairs."""


class SSN(Segmenter):
    """U-Net that predicts the mean, the diagonal and the factor of the distribution of the logits."""

    Config = SSNConfig
    config: SSNConfig

    def __init__(self, config: SSNConfig):
        super().__init__(config)
        width = config.channels[0]
        self.body = UNetBody(
            config.input_channels,
            config.channels,
            pyramid=config.pyramid,
            num_blocks=config.blocks_per_level,
            norm=config.norm,
        )
        self.combine = Blocks(3, width, width, norm=config.norm, kernel=config.pyramid.point)
        point = config.pyramid.point
        self.marginal = GaussianHead(
            width, config.num_classes, min_std=config.min_std, init_scale=config.head_init, mean_kernel=point
        )
        self.factor = output_layer(width, config.rank * config.num_classes, point, init_scale=config.head_init)

    def weights_from(self, other: Segmenter) -> dict[str, Tensor]:
        """Return the weights of another SSN, or those of a U-Net for the mean and the present std and factor."""
        if not isinstance(other, UNet):
            return super().weights_from(other)
        mean = {name.replace("output.", "marginal.mean."): tensor for name, tensor in other.state_dict().items()}
        return self.state_dict() | mean

    def forward(self, image: Tensor, labels: Tensor, *, generator: Generators) -> Loss:
        """Return -log of the mean of p(labels | eta) over M samples; see `Segmenter.forward`.

        By Jensen's inequality, its expectation is an upper bound of -log p(labels | image); `elbo` is its negative.
        """
        return self.likelihood_loss(self.encode(image), labels, generator)

    def likelihood_loss(self, encoding: Encoding, labels: Tensor, generator: Generators) -> Loss:
        """Return the loss of the Gaussian over the logits."""
        number = self.config.monte_carlo
        half = draw_noise(self.noise_shapes(encoding.size), len(labels), number // 2, generator)
        logits = self.draw_logits(encoding, [torch.cat([noise, -noise], dim=1) for noise in half])
        negative = item_cross_entropy(fold_samples(logits), repeat_samples(labels, number))
        log_likelihoods = -unfold_samples(negative, number)  # (B, M)
        loss = -(log_likelihoods.logsumexp(dim=1) - log(number)).mean()
        return Loss(loss, {"cross_entropy/0": loss.detach(), "elbo": -loss.detach()})

    def encode(self, image: Tensor) -> Encoding:
        """Compute mean and std (B, K, H, W) and the factor (B, Q, K, H, W) in float32."""
        self.check_image(image)
        size = image_size(image)
        return Encoding(self.distribution(self.combine(self.body(self.pad(image))), size), size)

    def distribution(self, features: Tensor, size: PerAxis) -> tuple[Tensor, ...]:
        """Return mean, std and factor, given the features (B, C, H', W') of the padded image."""
        factor = self.factor(features).float().unflatten(1, (self.config.rank, self.config.num_classes))
        return tuple(unpad(tensor, size) for tensor in (*self.marginal(features), factor))

    def noise_shapes(self, size: PerAxis) -> list[tuple[int, ...]]:
        """Return [(Q,), (K, H, W)]."""
        return [(self.config.rank,), (self.config.num_classes, *size)]

    @property
    def noise_names(self) -> tuple[str, ...]:
        """What each part of the noise controls: what all pixels share, and single pixels."""
        return ("shared", "pixels")

    def decode_samples(self, encoding: Encoding, noise: Sequence[Tensor], num_samples: int) -> Tensor:  # noqa: ARG002
        """Decode noise (B, S, Q) and (B, S, K, H, W) to logits (B, S, K, H, W)."""
        return self.draw_logits(encoding, noise)

    def draw_logits(self, encoding: Encoding, noise: Sequence[Tensor], *, more_std: float = 0.0) -> Tensor:
        """Return samples (B, S, K, H, W) of the Gaussian, with independent noise of `more_std` added."""
        mean, std, factor = encoding.features[:3]
        if more_std:
            std = (std.square() + more_std**2).sqrt()
        shared, single = (tensor.to(mean.device) for tensor in noise)
        with torch.autocast(mean.device.type, enabled=False):
            common = torch.einsum("bsq,bqk...->bsk...", shared, factor)
        return mean[:, None] + common + std[:, None] * single
