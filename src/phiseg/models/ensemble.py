"""An ensemble of U-Nets (Lakshminarayanan et al., NeurIPS 2017).

Shapes: B batch, M members, K classes.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from phiseg.models.mixture import Mixture
from phiseg.models.noise import Generators
from phiseg.models.objective import Loss
from phiseg.models.segmenter import Encoding, SegmenterConfig
from phiseg.models.unet import UNet, UNetConfig


class EnsembleConfig(SegmenterConfig):
    """Settings of the ensemble; the widths are those of each member."""

    name: Literal["ensemble"] = "ensemble"
    members: int = Field(default=5, ge=1)
    """U-Nets M, the paper's number. The ensemble has M times the parameters of one and takes M times as long."""


class Ensemble(Mixture):
    """M deterministic U-Nets that share nothing; a sample is the output of one of them.

    The loss is the mean of the members' cross entropies: each member's gradient is that of its own loss over M, and
    as Adam does not see that factor, each member is trained as it would be alone. The members differ by their
    random initial weights only: the paper also lets each see the data in its own order, but here all of them are
    given the same batch, with the same annotation of each image. (The paper's adversarial training is left out.)

    By Jensen's inequality the mean of the members' log likelihoods is a lower bound on that of their mixture:
    it is the `elbo`.
    """

    Config = EnsembleConfig
    config: EnsembleConfig

    def __init__(self, config: EnsembleConfig):
        super().__init__(config)
        member = UNetConfig(**config.model_dump(exclude={"name", "members"}))
        self.members = nn.ModuleList(UNet(member) for _ in range(config.members))

    def forward(self, image: Tensor, labels: Tensor, *, generator: Generators) -> Loss:
        """Return the mean of the members' losses; see `Segmenter.forward`. Nothing is drawn."""
        losses = [member(image, labels, generator=generator).total for member in self.members]
        loss = torch.stack(losses).mean()
        return Loss(loss, {"cross_entropy/0": loss.detach(), "elbo": -loss.detach()})

    def encode(self, image: Tensor) -> Encoding:
        """Compute the logits of every member: (B, M, K, H, W)."""
        self.check_image(image)
        logits = [member.encode(image).features[0] for member in self.members]  # type: ignore[operator]
        return Encoding((torch.stack(logits, dim=1),), (image.shape[-2], image.shape[-1]))
