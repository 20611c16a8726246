"""A U-Net with M heads and the oracle loss (Rupprecht et al., Learning in an Uncertain World, ICCV 2017).

Shapes: B batch, M heads, K classes.
"""

from math import log
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from phiseg.models.blocks import Blocks, UNetBody, output_layer
from phiseg.models.mixture import Mixture
from phiseg.models.noise import Generators
from phiseg.models.objective import Loss, item_cross_entropy
from phiseg.models.segmenter import Encoding, SegmenterConfig, crop


class MultiHeadConfig(SegmenterConfig):
    """Settings of the U-Net with many heads."""

    name: Literal["multihead"] = "multihead"
    heads: int = Field(default=16, ge=2)
    """Heads M. With too few, a head stands between several annotators; with too many, some are seldom the best for
    any image, learn little, and are sampled as often as the others."""
    relaxation: float = Field(default=0.05, ge=0, lt=1)
    """The share epsilon of the loss that the heads which were not the best divide among them. With 0 only the best
    head learns, and one that is never the best stays as it was initialised."""


class MultiHead(Mixture):
    """The U-Net with M of its heads (three 1x1 blocks and the logits) on one body; a sample is the output of one.

    The heads branch off where the Probabilistic U-Net joins its latent vector: there the network first knows which
    of the possible segmentations it is to draw.
    """

    Config = MultiHeadConfig
    config: MultiHeadConfig

    def __init__(self, config: MultiHeadConfig):
        super().__init__(config)
        width = config.channels[0]
        self.body = UNetBody(
            config.input_channels, config.channels, num_blocks=config.blocks_per_level, norm=config.norm
        )
        self.heads = nn.ModuleList(
            nn.Sequential(
                Blocks(3, width, width, norm=config.norm, kernel_size=1), output_layer(width, config.num_classes)
            )
            for _ in range(config.heads)
        )

    def forward(self, image: Tensor, labels: Tensor, *, generator: Generators) -> Loss:  # noqa: ARG002
        """Return the relaxed oracle loss; see `Segmenter.forward`. Nothing is drawn."""
        (logits,), _ = self.encode(image)
        losses = torch.stack([item_cross_entropy(head, labels) for head in logits.unbind(1)], dim=1)
        return oracle_loss(losses, self.config.relaxation)

    def encode(self, image: Tensor) -> Encoding:
        """Compute the logits of every head: (B, M, K, H, W)."""
        self.check_image(image)
        size = (image.shape[-2], image.shape[-1])
        features = self.body(self.pad(image))
        return Encoding((crop(torch.stack([head(features) for head in self.heads], dim=1), size),), size)


def oracle_loss(losses: Tensor, relaxation: float) -> Loss:
    """Return the loss of the best head of each image, and a little of the others'.

    sum_m q_m losses_m with q = 1 - epsilon for the head with the smallest loss of the image and epsilon / (M - 1)
    for each other, averaged over the batch. With q as the posterior of the head and all heads equally likely a
    priori, this and KL[q || 1/M] make the negative ELBO of the mixture. That KL is a constant: it is added, as
    `kl/0`, so that the total is a bound like the other models'; to the gradient it adds nothing.

    Args:
        losses: (B, M) -log p_m(s|x), the cross entropy of each head for each image.
        relaxation: epsilon.
    """
    number = losses.shape[1]
    posterior = torch.full_like(losses, relaxation / (number - 1))
    posterior.scatter_(1, losses.argmin(1, keepdim=True), 1 - relaxation)
    cross_entropy = (posterior * losses).sum(1).mean()
    divergence = log(number) - torch.special.entr(posterior).sum(1).mean()
    total = cross_entropy + divergence
    terms = {"cross_entropy/0": cross_entropy, "kl/0": divergence, "elbo": -total}
    return Loss(total, {name: term.detach() for name, term in terms.items()})
