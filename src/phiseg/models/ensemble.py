"""Deep ensemble of U-Nets (Lakshminarayanan et al., NeurIPS 2017).

Shapes: B batch, M members, K classes.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from phiseg.models.mixture import Mixture
from phiseg.models.noise import Generators
from phiseg.models.objective import Loss
from phiseg.models.segmenter import Encoding, SegmenterConfig, image_size
from phiseg.models.unet import UNet, UNetConfig


class EnsembleConfig(SegmenterConfig):
    """Settings of the ensemble; `channels` are those of each member."""

    name: Literal["ensemble"] = "ensemble"
    members: int = Field(default=5, ge=1)
    """Number of U-Nets M (5 in the paper). Parameters and computation time are M times those of one U-Net."""


class Ensemble(Mixture):
    """M independent deterministic U-Nets; a sample is the output of one of them.

    The loss is the mean of the cross-entropies of the members. The gradient of each member is that of its own loss
    divided by M. Adam is invariant to this factor, so each member is trained as it would be alone. Members differ
    only in their random initial weights: in the paper, each member also sees the data in a different order, but
    here all members receive the same batch with the same annotations. (The adversarial training of the paper is
    omitted.)

    By Jensen's inequality, the mean log-likelihood of the members is a lower bound on that of their mixture; it is
    the `elbo`.
    """

    Config = EnsembleConfig
    config: EnsembleConfig

    def __init__(self, config: EnsembleConfig):
        super().__init__(config)
        member = UNetConfig(**config.model_dump(exclude={"name", "members"}))
        self.members = nn.ModuleList(UNet(member) for _ in range(config.members))

    def forward(self, image: Tensor, labels: Tensor, *, generator: Generators) -> Loss:
        """Return the mean loss of the members; see `Segmenter.forward`. No noise is drawn."""
        losses = [member(image, labels, generator=generator).total for member in self.members]
        loss = torch.stack(losses).mean()
        return Loss(loss, {"cross_entropy/0": loss.detach(), "elbo": -loss.detach()})

    def encode(self, image: Tensor) -> Encoding:
        """Compute the logits of all members: (B, M, K, H, W)."""
        self.check_image(image)
        logits = [member.encode(image).features[0] for member in self.members]  # type: ignore[operator]
        return Encoding((torch.stack(logits, dim=1),), image_size(image))
