"""PHiSeg with a flow on its samples: the hierarchy gives the shape, the flow the details of single pixels.

The PHiSeg is trained before, given by `train.initial_weights`, and stays frozen. With probabilities p of one of its
samples, the path of `phiseg.models.logit_flow` starts at

    u = 2 p - 1 + base_std e,     e ~ N(0, 1)

which has the scale of the labels. In training, the latents of the sample are drawn from the posterior, so that u
resembles the annotation at the end of the path and the flow learns to keep its shape. When sampling, they are drawn
from the prior. The flow network also sees the image. This model is an idea of this project, without a publication.

Shapes: B batch, S samples, K classes, L latent levels, H W pixels.
"""

from collections.abc import Sequence
from typing import Literal, Self

import torch
from pydantic import model_validator
from torch import Tensor

from phiseg.models.logit_flow import FlowConfig, LogitFlow, flow_terms
from phiseg.models.noise import Generators, draw_noise
from phiseg.models.objective import Loss
from phiseg.models.phiseg import PHiSeg, PHiSegConfig
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


class PHiSegFlowConfig(PHiSegConfig, FlowConfig):
    """Settings of PHiSeg with a flow; those of the PHiSeg must be the same as in its training."""

    name: Literal["phiseg-flow"] = "phiseg-flow"  # type: ignore[assignment]

    @model_validator(mode="after")
    def _check_presence(self) -> Self:
        if self.presence:
            raise ValueError("presence = true is not possible in a phiseg-flow; use a PHiSeg without it")
        return self


class PHiSegFlow(PHiSeg, LogitFlow):
    """Frozen PHiSeg and a flow network; only the flow is trained."""

    Config = PHiSegFlowConfig
    config: PHiSegFlowConfig
    needs_initial_weights = True

    def __init__(self, config: PHiSegFlowConfig):
        super().__init__(config)
        self.frozen = ("prior", "posterior", "likelihood")
        for part in self.frozen:
            self.get_submodule(part).requires_grad_(False)
        self.add_flow(config.input_channels)

    def train(self, mode: bool = True) -> Self:
        """Set the mode of the flow; the PHiSeg stays in eval mode, with the statistics of its training."""
        super().train(mode)
        for part in self.frozen:
            self.get_submodule(part).eval()
        return self

    def weights_from(self, other: Segmenter) -> dict[str, Tensor]:
        """Return the weights of a PHiSeg with the present flow, or those of another PHiSeg with a flow."""
        own = {name: tensor for name, tensor in self.state_dict().items() if name.startswith("flow")}
        return own | other.state_dict()

    def forward(self, image: Tensor, labels: Tensor, *, generator: Generators) -> Loss:
        """Return the cross-entropy on the path; see `Segmenter.forward` and `flow_terms`."""
        self.check_image(image)
        size = image_size(image)
        drawn = draw_noise([*self.noise_shapes(size), ()], len(image), 1, generator)
        *noise, pixels, moment = (fold_samples(part).to(image.device) for part in drawn)
        x = self.pad(with_labels(image, labels, self.config.num_classes))
        padded_image = x[:, : self.config.input_channels]
        with torch.no_grad():
            features = self.prior.encode(padded_image) if self.config.shared_encoder else ()
            _, latents = self.posterior.draw(self._encode_labels(x, features), noise)
            logits = unpad(self.likelihood(latents)[0], size)
        return flow_terms(self.path_loss(padded_image, self._start(logits, pixels), labels, moment))

    def encode(self, image: Tensor) -> Encoding:
        """Compute the features of the L levels of the prior, and the padded image (B, C, H', W')."""
        features, size = super().encode(image)
        return Encoding((*features, self.pad(image)), size)

    def noise_shapes(self, size: PerAxis) -> list[tuple[int, ...]]:
        """Return (Z, h_l, w_l) of each level, fine to coarse, and (K, H, W)."""
        return [*super().noise_shapes(size), (self.config.num_classes, *size)]

    @property
    def noise_names(self) -> tuple[str, ...]:
        """What each part of the noise controls: the latent levels, and the start of the flow."""
        return (*super().noise_names, "pixels")

    def decode_samples(self, encoding: Encoding, noise: Sequence[Tensor], num_samples: int) -> Tensor:
        """Follow the flow from samples of the PHiSeg: logits (B, S, K, H, W)."""
        *latent, pixels = noise
        logits = fold_samples(super().decode_samples(encoding, latent, num_samples))
        start = self._start(logits, fold_samples(pixels).to(logits.device))
        image = repeat_samples(encoding.features[self.num_levels], num_samples)
        return unfold_samples(self.follow_flow(image, start), num_samples)

    def sample_levels(self, encoding: Encoding, noise: Sequence[Tensor], num_samples: int) -> list[Tensor]:
        """Return the samples alone: the flow gives logits only once."""
        return [self.decode_samples(encoding, noise, num_samples)]

    def _start(self, logits: Tensor, pixels: Tensor) -> Tensor:
        """Return the start of the path (N, K, H, W), given logits of the PHiSeg and noise of the same shape."""
        return 2 * logits.float().softmax(1) - 1 + self.config.base_std * pixels
