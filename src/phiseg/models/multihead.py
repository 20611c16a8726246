"""U-Net with M heads and the oracle loss (Rupprecht et al., Learning in an Uncertain World, ICCV 2017).

Shapes: B batch, M heads, K classes.
"""

from math import log
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from phiseg.models.blocks import Blocks, UNetBody
from phiseg.models.layers import output_layer
from phiseg.models.mixture import Mixture
from phiseg.models.noise import Generators
from phiseg.models.objective import Loss, item_cross_entropy
from phiseg.models.segmenter import Encoding, SegmenterConfig, image_size, unpad


class MultiHeadConfig(SegmenterConfig):
    """Settings of the multi-head U-Net."""

    name: Literal["multihead"] = "multihead"
    heads: int = Field(default=16, ge=2)
    """Number of heads M. With too few heads, one head averages several annotators. With too many, some heads are
    rarely the best, learn little, and are still sampled as often as the others."""
    relaxation: float = Field(default=0.05, ge=0, lt=1)
    """Fraction epsilon of the loss that is shared by all heads except the best one. With 0, only the best head is
    trained, and a head that is never the best keeps its initial weights."""


class MultiHead(Mixture):
    """U-Net with M heads (three 1x1 blocks and the logits) on one body; a sample is the output of one head.

    The heads branch off where the Probabilistic U-Net concatenates its latent vector: from there on, networks of
    both kinds depend on the sample.
    """

    Config = MultiHeadConfig
    config: MultiHeadConfig

    def __init__(self, config: MultiHeadConfig):
        super().__init__(config)
        width = config.channels[0]
        self.body = UNetBody(
            config.input_channels,
            config.channels,
            pyramid=config.pyramid,
            num_blocks=config.blocks_per_level,
            norm=config.norm,
        )
        self.heads = nn.ModuleList(
            nn.Sequential(
                Blocks(3, width, width, norm=config.norm, kernel=config.pyramid.point),
                output_layer(width, config.num_classes, config.pyramid.point),
            )
            for _ in range(config.heads)
        )

    def forward(self, image: Tensor, labels: Tensor, *, generator: Generators) -> Loss:  # noqa: ARG002
        """Return the relaxed oracle loss; see `Segmenter.forward`. No noise is drawn."""
        (logits,), _ = self.encode(image)
        losses = torch.stack([item_cross_entropy(head, labels) for head in logits.unbind(1)], dim=1)
        return oracle_loss(losses, self.config.relaxation)

    def encode(self, image: Tensor) -> Encoding:
        """Compute the logits of all heads: (B, M, K, H, W)."""
        self.check_image(image)
        size = image_size(image)
        features = self.body(self.pad(image))
        return Encoding((unpad(torch.stack([head(features) for head in self.heads], dim=1), size),), size)


def oracle_loss(losses: Tensor, relaxation: float) -> Loss:
    """Return the relaxed oracle loss: the loss of the best head of each image plus a small part of the others.

    sum_m q_m losses_m, averaged over the batch, with q = 1 - epsilon for the head with the smallest loss of the
    image and epsilon / (M - 1) for all others. With q as the posterior of the head and a uniform prior, the sum of
    this loss and KL[q || 1/M] is the negative ELBO of the mixture. The KL is constant. It is added as `kl/0`, so
    that the total is a bound as for the other models; it does not affect the gradient.

    Args:
        losses: (B, M) -log p_m(s|x), the cross-entropy of each head for each image.
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
