"""Deterministic U-Net: the architecture of the Probabilistic U-Net without its stochastic parts."""

from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from phiseg.models.blocks import Blocks, UNetBody
from phiseg.models.layers import output_layer
from phiseg.models.noise import Generators
from phiseg.models.objective import Loss, cross_entropy
from phiseg.models.pyramid import PerAxis
from phiseg.models.segmenter import Encoding, Segmenter, SegmenterConfig, image_size, unpad


class UNetConfig(SegmenterConfig):
    """Settings of the deterministic U-Net."""

    name: Literal["unet"] = "unet"


class UNet(Segmenter):
    """Deterministic baseline. All samples are equal."""

    Config = UNetConfig
    config: UNetConfig

    def __init__(self, config: UNetConfig):
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

    def forward(self, image: Tensor, labels: Tensor, *, generator: Generators) -> Loss:  # noqa: ARG002
        """Return the cross-entropy; see `Segmenter.forward`. No noise is drawn."""
        (logits,), _ = self.encode(image)
        loss = cross_entropy(logits, labels)
        return Loss(loss, {"cross_entropy/0": loss.detach(), "elbo": -loss.detach()})

    def encode(self, image: Tensor) -> Encoding:
        """Compute the logits (B, K, H, W)."""
        self.check_image(image)
        size = image_size(image)
        return Encoding((unpad(self.output(self.combine(self.body(self.pad(image)))), size),), size)

    def noise_shapes(self, size: PerAxis) -> list[tuple[int, ...]]:  # noqa: ARG002
        """Return an empty list: the model uses no noise."""
        return []

    def decode_samples(self, encoding: Encoding, noise: Sequence[Tensor], num_samples: int) -> Tensor:  # noqa: ARG002
        """Repeat the logits S times: (B, S, K, H, W)."""
        (logits,) = encoding.features
        return logits[:, None].expand(-1, num_samples, *logits.shape[1:])
