"""Stochastic Segmentation Networks (Monteiro et al., NeurIPS 2020): one Gaussian over the logits of all pixels.

eta | x ~ N(mean(x), F(x) F(x)^T + diag(std(x))^2), with F of low rank; p(s|x) = E_eta prod_i softmax(eta_i)[s_i].

Conventions, and where they leave the authors' code:

* A sample is mean + F e1 + std e2: the covariance is never built or inverted, so their fallback to independent
  normals, for a covariance that is not invertible, is not needed.
* std = softplus(raw) + min_std, as everywhere here; theirs is sqrt(exp(raw) + 1e-5).
* No mask limits the covariance to a region of interest: our images have none.
* The Monte Carlo samples come in mirrored pairs, mean +- deviation, as in their code.
* The log likelihood is summed over pixels and averaged over the batch, as theirs is and as the cross entropy of
  every other model here, so that a learning rate means the same.

Shapes: B batch, S samples, K classes, Q rank, M Monte Carlo samples.
"""

from collections.abc import Sequence
from math import log
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from phiseg.models.blocks import Blocks, UNetBody, output_layer
from phiseg.models.gaussian import GaussianHead
from phiseg.models.noise import Generators, draw_noise
from phiseg.models.objective import Loss, item_cross_entropy
from phiseg.models.segmenter import (
    Encoding,
    LatentConfig,
    Segmenter,
    crop,
    fold_samples,
    repeat_samples,
    unfold_samples,
)


class SSNConfig(LatentConfig):
    """Settings of the Stochastic Segmentation Network; `min_std` and `head_init` are those of the logits."""

    name: Literal["ssn"] = "ssn"
    rank: int = Field(default=10, ge=1)
    """Columns Q of the factor F of the covariance."""
    monte_carlo: int = Field(default=20, ge=2, multiple_of=2)
    """Samples M of the logits that the training loss averages the likelihood over; half of them mirror the rest."""


class SSN(Segmenter):
    """A U-Net whose last features give the mean, the diagonal and the factor of the logits' distribution."""

    Config = SSNConfig
    config: SSNConfig

    def __init__(self, config: SSNConfig):
        super().__init__(config)
        width = config.channels[0]
        self.body = UNetBody(
            config.input_channels, config.channels, num_blocks=config.blocks_per_level, norm=config.norm
        )
        self.combine = Blocks(3, width, width, norm=config.norm, kernel_size=1)
        self.marginal = GaussianHead(width, config.num_classes, min_std=config.min_std, init_scale=config.head_init)
        self.factor = output_layer(width, config.rank * config.num_classes, init_scale=config.head_init)

    def forward(self, image: Tensor, labels: Tensor, *, generator: Generators) -> Loss:
        """Return -log of the mean over M draws of p(labels | eta); see `Segmenter.forward`.

        Its expectation is an upper bound of -log p(labels | image), by Jensen's inequality: `elbo` is its negative.
        """
        encoding = self.encode(image)
        number = self.config.monte_carlo
        half = draw_noise(self.noise_shapes(encoding.size), len(image), number // 2, generator)
        logits = self.decode_samples(encoding, [torch.cat([noise, -noise], dim=1) for noise in half], number)
        negative = item_cross_entropy(fold_samples(logits), repeat_samples(labels, number))
        log_likelihoods = -unfold_samples(negative, number)  # (B, M)
        loss = -(log_likelihoods.logsumexp(dim=1) - log(number)).mean()
        return Loss(loss, {"cross_entropy/0": loss.detach(), "elbo": -loss.detach()})

    def encode(self, image: Tensor) -> Encoding:
        """Compute mean and std (B, K, H, W) and the factor (B, Q, K, H, W), in float32."""
        self.check_image(image)
        size = (image.shape[-2], image.shape[-1])
        features = self.combine(self.body(self.pad(image)))
        factor = self.factor(features).float().unflatten(1, (self.config.rank, self.config.num_classes))
        return Encoding(tuple(crop(tensor, size) for tensor in (*self.marginal(features), factor)), size)

    def noise_shapes(self, size: tuple[int, int]) -> list[tuple[int, ...]]:
        """Return [(Q,), (K, H, W)]."""
        return [(self.config.rank,), (self.config.num_classes, *size)]

    def decode_samples(self, encoding: Encoding, noise: Sequence[Tensor], num_samples: int) -> Tensor:  # noqa: ARG002
        """Turn noise (B, S, Q) and (B, S, K, H, W) into logits (B, S, K, H, W)."""
        mean, std, factor = encoding.features
        shared, single = (tensor.to(mean.device) for tensor in noise)
        with torch.autocast(mean.device.type, enabled=False):
            common = torch.einsum("bsq,bqkhw->bskhw", shared, factor)
        return mean[:, None] + common + std[:, None] * single
