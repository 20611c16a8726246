"""Flow-SSN (De Sousa Ribeiro et al., ICCV 2025), continuous variant: a flow over logits with a learned base.

The base is the low-rank Gaussian of the SSN, given the image. A sample u of it moves along a straight path to the
labels y, coded as +1 for the class of a pixel and -1 for the others:

    eta_t = (1 - t) u + t y,     t from 0 to 1

A small network sees eta_t, t and the image features of the base, and predicts p(y | eta_t, x). It is trained with
the cross-entropy at a random t. The expected end of the path gives the velocity (E[y | eta_t] - eta_t) / (1 - t),
and a sample follows it from t = 0 in `num_steps` Euler steps. The prediction of the last step is the sample's.

Differences from the authors' code: the blocks of this package; a low-rank base instead of a diagonal one; the base
is trained with the likelihood of the SSN instead of by the flow. Through the flow alone, the base would lose its
noise, because eta_t would then reveal y. `base_std` adds independent noise for the same reason.

Shapes: B batch, S samples, K classes, Q rank, H W pixels.
"""

from collections.abc import Sequence
from typing import Literal, Self

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor

from phiseg.models.blocks import UNetBody
from phiseg.models.layers import output_layer
from phiseg.models.noise import Generators, draw_noise
from phiseg.models.objective import Loss, cross_entropy
from phiseg.models.pyramid import PerAxis
from phiseg.models.segmenter import (
    Encoding,
    fold_samples,
    image_size,
    repeat_samples,
    unfold_samples,
    unpad,
)
from phiseg.models.ssn import SSN, SSNConfig
from phiseg.models.time_channels import TIME_CHANNELS, per_item, time_channels


class FlowSSNConfig(SSNConfig):
    """Settings of Flow-SSN."""

    name: Literal["flow-ssn"] = "flow-ssn"  # type: ignore[assignment]
    flow_channels: tuple[PositiveInt, ...] = Field(default=(16, 24, 32), min_length=1)
    """Width of each resolution level of the flow network, finest first."""
    flow_blocks: int = Field(default=2, ge=1, le=64)
    """Convolution blocks per resolution level of the flow network."""
    num_steps: int = Field(default=10, ge=1)
    """Steps from the base to a sample: passes through the flow network."""
    base_std: float = Field(default=1.0, gt=0)
    """Standard deviation of independent noise that is added to the base."""

    @model_validator(mode="after")
    def _check_flow(self) -> Self:
        if len(self.flow_channels) > len(self.channels):
            raise ValueError(
                f"flow_channels has {len(self.flow_channels)} resolution levels, more than channels "
                f"({len(self.channels)})"
            )
        return self


class FlowSSN(SSN):
    """SSN with a flow from its Gaussian to the distribution of the labels."""

    Config = FlowSSNConfig
    config: FlowSSNConfig

    def __init__(self, config: FlowSSNConfig):
        super().__init__(config)
        inputs = config.num_classes + config.channels[0] + TIME_CHANNELS
        self.flow = UNetBody(
            inputs,
            config.flow_channels,
            pyramid=config.pyramid.finest(len(config.flow_channels)),
            num_blocks=config.flow_blocks,
            norm=config.norm,
        )
        self.flow_output = output_layer(config.flow_channels[0], config.num_classes, config.pyramid.point)

    def forward(self, image: Tensor, labels: Tensor, *, generator: Generators) -> Loss:
        """Return the cross-entropy on the path plus the loss of the base; see `Segmenter.forward`.

        The terms are `cross_entropy/0` on the path and `cross_entropy/1` of the base. `elbo` is the negative of the
        first, for comparison between steps; it is not a bound on log p(s|x).
        """
        encoding = self.encode(image)
        base = self.likelihood_loss(encoding, labels, generator)
        shapes = [*self.noise_shapes(encoding.size), ()]
        *noise, moment = (level.to(image.device) for level in draw_noise(shapes, len(image), 1, generator))
        start = self.draw_logits(encoding, noise, more_std=self.config.base_std)[:, 0].detach()
        end = 2 * F.one_hot(labels, self.config.num_classes).movedim(-1, 1).to(start.dtype) - 1
        time = torch.special.ndtr(moment[:, 0])  # (B,) uniform
        position = start + per_item(time, end.ndim - 1) * (end - start)
        path = cross_entropy(self._predict(encoding.features[3], position, time, encoding.size), labels)
        terms = {"cross_entropy/0": path, "cross_entropy/1": base.total, "elbo": -path}
        return Loss(path + base.total, {name: term.detach() for name, term in terms.items()})

    def encode(self, image: Tensor) -> Encoding:
        """Compute mean, std and factor as in the SSN, and the features (B, C, H', W') of the padded image."""
        self.check_image(image)
        size = image_size(image)
        features = self.combine(self.body(self.pad(image)))
        return Encoding((*self.distribution(features, size), features), size)

    def decode_samples(self, encoding: Encoding, noise: Sequence[Tensor], num_samples: int) -> Tensor:
        """Follow the flow from samples of the base, given by noise (B, S, Q) and (B, S, K, H, W)."""
        features = repeat_samples(encoding.features[3], num_samples)
        position = fold_samples(self.draw_logits(encoding, noise, more_std=self.config.base_std))
        steps = self.config.num_steps
        for number in range(steps):
            time = position.new_full((len(position),), number / steps)
            logits = self._predict(features, position, time, encoding.size)
            expected = 2 * logits.float().softmax(1) - 1
            position = position + (expected - position) / (steps - number)  # (1 / steps) / (1 - t)
        return unfold_samples(logits, num_samples)

    def _predict(self, features: Tensor, position: Tensor, time: Tensor, size: PerAxis) -> Tensor:
        """Return the logits (N, K, H, W) of p(y | eta_t, x) for positions eta_t (N, K, H, W) and times (N,)."""
        padded = self.pad(position.to(features.dtype))
        x = torch.cat([padded, features, time_channels(time, image_size(padded)).to(features.dtype)], dim=1)
        logits: Tensor = self.flow_output(self.flow(x))
        return unpad(logits, size)
