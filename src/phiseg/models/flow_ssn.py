"""Flow-SSN (De Sousa Ribeiro et al., ICCV 2025), continuous variant: a flow over logits with a learned base.

The labels y are coded as +1 for the class of a pixel and -1 for the others. A sample u of the base, the low-rank
Gaussian of the SSN given the image, moves along a straight path,

    eta_t = (1 - t) u + t y,     t from 0 to 1

A small network sees eta_t, t and features of the image, and predicts p(y | eta_t, x). It is trained with the
cross-entropy at a random t. The expected end of the path gives the velocity (E[y | eta_t] - eta_t) / (1 - t), and a
sample follows it from t = 0 in `num_steps` Euler steps. The prediction of the last step is the sample's.

Differences from the authors' code: the blocks of this package; a low-rank base instead of a diagonal one; the base
is trained with the likelihood of the SSN instead of by the flow, because eta_t would reveal y to the flow and the
base could lose its noise. `base_std` adds independent noise for the same reason; in their LIDC setting, it is the
only noise of the base. The flow network also sees the features of the base, theirs on LIDC only eta_t and t. Labels
are coded as +1 and -1 instead of 1 and 0.

Shapes: B batch, S samples, N = B S items, K classes, Q rank, C feature channels, H W pixels; H' W' with padding.
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
from phiseg.models.segmenter import Encoding, fold_samples, image_size, repeat_samples, unfold_samples, unpad
from phiseg.models.ssn import SSN, SSNConfig
from phiseg.models.time_channels import SAME_TIME, TIME_CHANNELS, per_item, time_channels


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

    @property
    def sampling_statistics_problem(self) -> str | None:
        """In sampling, all items of a batch have the same time."""
        return SAME_TIME

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
        self.flow = UNetBody(
            config.num_classes + config.channels[0] + TIME_CHANNELS,
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
        base = self.likelihood_loss(encoding, labels, generator).total
        shapes = [*self.noise_shapes(encoding.size), ()]
        *noise, moment = (level.to(image.device) for level in draw_noise(shapes, len(image), 1, generator))
        start = self.draw_logits(encoding, noise, more_std=self.config.base_std)[:, 0]
        path = self._path_loss(encoding.features[3], start, labels, moment[:, 0])
        terms = {"cross_entropy/0": path.detach(), "cross_entropy/1": base.detach(), "elbo": -path.detach()}
        return Loss(path + base, terms)

    def encode(self, image: Tensor) -> Encoding:
        """Compute mean, std and factor as in the SSN, and the features (B, C, H', W') of the padded image."""
        self.check_image(image)
        size = image_size(image)
        features = self.combine(self.body(self.pad(image)))
        return Encoding((*self.distribution(features, size), features), size)

    def decode_samples(self, encoding: Encoding, noise: Sequence[Tensor], num_samples: int) -> Tensor:
        """Follow the flow from samples of the base, given by noise (B, S, Q) and (B, S, K, H, W)."""
        start = fold_samples(self.draw_logits(encoding, noise, more_std=self.config.base_std))
        features = repeat_samples(encoding.features[3], num_samples)
        return unfold_samples(self._follow_flow(features, start), num_samples)

    def _path_loss(self, features: Tensor, start: Tensor, labels: Tensor, moment: Tensor) -> Tensor:
        """Return the cross-entropy on the path.

        Args:
            features: (B, C, H', W') of the padded image.
            start: (B, K, H, W) start of the path; no gradient flows to it.
            labels: (B, H, W) class indices at its end.
            moment: (B,) standard normal noise that gives the time.
        """
        start = start.detach()
        end = 2 * F.one_hot(labels, self.config.num_classes).movedim(-1, 1).to(start.dtype) - 1
        time = torch.special.ndtr(moment)  # (B,) uniform
        position = start + per_item(time, end.ndim - 1) * (end - start)
        return cross_entropy(self._predict(features, position, time, image_size(start)), labels)

    def _follow_flow(self, features: Tensor, start: Tensor) -> Tensor:
        """Return the logits (N, K, H, W) at the end of paths from `start`, given features (N, C, H', W')."""
        position, size, steps = start, image_size(start), self.config.num_steps
        for number in range(steps):
            time = position.new_full(position.shape[:1], number / steps)
            logits = self._predict(features, position, time, size)
            expected = 2 * logits.float().softmax(1) - 1
            position = position + (expected - position) / (steps - number)  # (1 / steps) / (1 - t)
        return logits

    def _predict(self, features: Tensor, position: Tensor, time: Tensor, size: PerAxis) -> Tensor:
        """Return the logits (N, K, H, W) of p(y | eta_t, x) for positions eta_t (N, K, H, W) and times (N,)."""
        padded = self.pad(position.to(features.dtype))
        x = torch.cat([padded, features, time_channels(time, image_size(padded)).to(features.dtype)], dim=1)
        logits: Tensor = self.flow_output(self.flow(x))
        return unpad(logits, size)
