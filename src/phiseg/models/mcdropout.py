"""U-Net with Monte Carlo dropout (Kendall et al., Bayesian SegNet, BMVC 2017; Kendall & Gal, NeurIPS 2017).

Shapes: B batch, S samples, N = B * S items, K classes, R resolution levels.
"""

from collections.abc import Sequence
from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from phiseg.models.blocks import Blocks, UNetBody
from phiseg.models.layers import output_layer
from phiseg.models.noise import Generators, draw_noise
from phiseg.models.objective import Loss, cross_entropy
from phiseg.models.pyramid import PerAxis
from phiseg.models.segmenter import (
    Encoding,
    Segmenter,
    SegmenterConfig,
    fold_samples,
    image_size,
    repeat_samples,
    unfold_samples,
    unpad,
)


class MCDropoutConfig(SegmenterConfig):
    """Settings of the U-Net with Monte Carlo dropout."""

    name: Literal["mcdropout"] = "mcdropout"
    dropout: float = Field(default=0.5, ge=0, lt=1)
    """Probability that an element of a feature map is set to zero, in training and sampling."""
    dropout_levels: int = Field(default=3, ge=1)
    """Number of resolution levels with dropout, starting at the coarsest. In the paper, dropout in the central part
    of the network was best; dropout everywhere regularised too strongly."""

    @model_validator(mode="after")
    def _check_levels(self) -> Self:
        if self.dropout_levels > len(self.channels):
            raise ValueError(
                f"dropout_levels = {self.dropout_levels} needs that many resolution levels, but channels has "
                f"{len(self.channels)}"
            )
        return self


class MCDropout(Segmenter):
    """U-Net with dropout after the blocks of its coarsest levels, in the encoder and the decoder.

    A sample is one forward pass with one random set of dropout masks, in training and sampling alike. The masks are
    the only latent variables, and their distribution is not learned. The cross-entropy under random masks is
    therefore a bound, E[-log p(s|x, masks)] >= -log E[p(s|x, masks)], and `elbo` is its negative. Dropout is
    elementwise, and remaining elements are divided by 1 - p. The input of the next level and the skip connection
    share one mask.
    """

    Config = MCDropoutConfig
    config: MCDropoutConfig

    def __init__(self, config: MCDropoutConfig):
        super().__init__(config)
        self.body = UNetBody(
            config.input_channels,
            config.channels,
            pyramid=config.pyramid,
            num_blocks=config.blocks_per_level,
            norm=config.norm,
        )
        self.combine = Blocks(
            3, config.channels[0], config.channels[0], norm=config.norm, kernel=config.pyramid.point
        )
        self.output = output_layer(config.channels[0], config.num_classes, config.pyramid.point)

    @property
    def first_dropped(self) -> int:
        """The finest resolution level with dropout."""
        return len(self.config.channels) - self.config.dropout_levels

    def forward(self, image: Tensor, labels: Tensor, *, generator: Generators) -> Loss:
        """Return the cross-entropy with one set of masks per image; see `Segmenter.forward`."""
        encoding = self.encode(image)
        noise = draw_noise(self.noise_shapes(encoding.size), len(image), 1, generator)
        logits = self.decode_samples(encoding, [tensor.to(image.device) for tensor in noise], 1)[:, 0]
        loss = cross_entropy(logits, labels)
        return Loss(loss, {"cross_entropy/0": loss.detach(), "elbo": -loss.detach()})

    def encode(self, image: Tensor) -> Encoding:
        """Compute the part before the first dropout: the encoder levels up to the first with dropout."""
        self.check_image(image)
        features = self.body.encoder(self.pad(image), self.first_dropped + 1)
        return Encoding(tuple(features), image_size(image))

    def noise_shapes(self, size: PerAxis) -> list[tuple[int, ...]]:
        """Return the shapes of the masks in order of use: encoder, then decoder."""
        down = list(enumerate(self.config.channels))[self.first_dropped :]
        up = down[-2::-1]
        return [(channels, *self.level_size(size, level)) for level, channels in [*down, *up]]

    @property
    def takes_temperature(self) -> tuple[bool, ...]:
        """False: the noise is thresholded, so a factor changes the dropout rate, or has no effect at 0.5."""
        return tuple(False for _ in self.noise_shapes(self.strides))

    def decode_samples(self, encoding: Encoding, noise: Sequence[Tensor], num_samples: int) -> Tensor:
        """Decode the noise of the masks, each (B, S, C, h, w), to logits (B, S, K, H, W)."""
        masks = (dropout_mask(fold_samples(tensor), self.config.dropout) for tensor in noise)
        features = [repeat_samples(tensor, num_samples) for tensor in encoding.features]  # each (N, C, h, w)
        features[-1] = features[-1] * next(masks)
        for level in range(self.first_dropped + 1, len(self.config.channels)):
            features.append(self.body.encoder.descend(level, features[-1]) * next(masks))
        *skips, x = features
        for level in reversed(range(len(skips))):
            x = self.body.ascend(level, x, skips[level])
            if level >= self.first_dropped:
                x = x * next(masks)
        return unfold_samples(unpad(self.output(self.combine(x)), encoding.size), num_samples)


def dropout_mask(noise: Tensor, dropout: float) -> Tensor:
    """Convert standard normal noise to a mask: 0 with probability `dropout`, otherwise 1 / (1 - dropout).

    >>> dropout_mask(torch.tensor([-2.0, -0.7, -0.6, 2.0]), 0.25)
    tensor([0.0000, 0.0000, 1.3333, 1.3333])
    """
    uniform: Tensor = torch.special.ndtr(noise)
    return (uniform >= dropout) / (1 - dropout)
