"""Conditional VAE for segmentation (Sohn et al., NeurIPS 2015), built from the same blocks as the other models.

It has the prior p(z|x), the posterior q(z|x, s) and the KL of the Probabilistic U-Net. It differs in where the
latent vector enters the network: here it is concatenated to the coarsest features of the U-Net, so the whole
decoder runs for each sample; in the Probabilistic U-Net, it is concatenated to the last features, before three 1x1
convolutions. Two parts of the paper are omitted: the initial guess as input of the prior, and the hybrid with a
Gaussian stochastic network.

Shapes: B batch, S samples, Z latent dimensions, C_r channels of resolution level r.
"""

from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from phiseg.models.blocks import Blocks, UNetBody
from phiseg.models.gaussian import Gaussian
from phiseg.models.layers import output_layer
from phiseg.models.noise import Generators, draw_noise
from phiseg.models.objective import Loss, negative_elbo
from phiseg.models.probunet import VectorGaussian, VectorLatentConfig, join_vector
from phiseg.models.pyramid import PerAxis
from phiseg.models.segmenter import (
    Encoding,
    Segmenter,
    fold_samples,
    image_size,
    repeat_samples,
    unfold_samples,
    unpad,
    with_labels,
)


class CVAEConfig(VectorLatentConfig):
    """Settings of the conditional VAE."""

    name: Literal["cvae"] = "cvae"


class CVAE(Segmenter):
    """U-Net with a global latent vector concatenated to its coarsest features."""

    Config = CVAEConfig
    config: CVAEConfig

    def __init__(self, config: CVAEConfig):
        super().__init__(config)
        width, latent = config.channels[0], config.latent_dimensions
        self.body = UNetBody(
            config.input_channels,
            config.channels,
            pyramid=config.pyramid,
            num_blocks=config.blocks_per_level,
            norm=config.norm,
            joined={len(config.channels) - 1: latent},
        )
        self.prior = VectorGaussian(config.input_channels, config)
        self.posterior = VectorGaussian(config.input_channels + config.num_classes, config)
        joined = latent if len(config.channels) == 1 else 0  # with one level, the coarsest features are the last
        self.combine = Blocks(3, width + joined, width, norm=config.norm, kernel=config.pyramid.point)
        self.output = output_layer(width, config.num_classes, config.pyramid.point)

    def forward(self, image: Tensor, labels: Tensor, *, generator: Generators) -> Loss:
        """Return the cross-entropy plus the weighted KL; see `Segmenter.forward`."""
        encoding = self.encode(image)
        *features, mean, std = encoding.features
        noise = draw_noise(self.noise_shapes(encoding.size), len(image), 1, generator)[0][:, 0].to(image.device)
        posterior = self.posterior(self.pad(with_labels(image, labels, self.config.num_classes)))
        logits = unpad(self._decode(features, posterior.draw(noise)), encoding.size)
        return negative_elbo([logits], labels, [posterior], [Gaussian(mean, std)], [self.config.kl_weight])

    def encode(self, image: Tensor) -> Encoding:
        """Compute the encoder features (B, C_r, h_r, w_r), finest first, and mean and std of the prior (B, Z)."""
        self.check_image(image)
        x = self.pad(image)
        return Encoding((*self.body.encoder(x), *self.prior(x)), image_size(image))

    def noise_shapes(self, size: PerAxis) -> list[tuple[int, ...]]:  # noqa: ARG002
        """Return [(Z,)]."""
        return [(self.config.latent_dimensions,)]

    def decode_samples(self, encoding: Encoding, noise: Sequence[Tensor], num_samples: int) -> Tensor:
        """Decode noise (B, S, Z) to logits (B, S, K, H, W)."""
        *features, mean, std = encoding.features
        latent = mean[:, None] + std[:, None] * noise[0].to(mean.device)  # (B, S, Z)
        repeated = [repeat_samples(level, num_samples) for level in features]
        return unfold_samples(unpad(self._decode(repeated, fold_samples(latent)), encoding.size), num_samples)

    def _decode(self, features: Sequence[Tensor], latent: Tensor) -> Tensor:
        *skips, x = features
        x = join_vector(x, latent)
        for level in reversed(range(len(skips))):
            x = self.body.ascend(level, x, skips[level])
        logits: Tensor = self.output(self.combine(x))
        return logits
