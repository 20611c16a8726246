"""A flow from logits of a base model to labels, shared by Flow-SSN and PHiSeg with a flow.

The labels y are coded as +1 for the class of a pixel and -1 for the others. A start u moves along a straight path,

    eta_t = (1 - t) u + t y,     t from 0 to 1

A small network sees eta_t, t and features of the image, and predicts p(y | eta_t, x). It is trained with the
cross-entropy at a random t. The expected end of the path gives the velocity (E[y | eta_t] - eta_t) / (1 - t), and a
sample follows it from t = 0 in `num_steps` Euler steps. The prediction of the last step is the sample's.

Shapes: B batch, N items, K classes, C feature channels, H W pixels; H' W' with padding.
"""

from typing import Self

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor

from phiseg.models.blocks import UNetBody
from phiseg.models.layers import output_layer
from phiseg.models.objective import Loss, cross_entropy
from phiseg.models.pyramid import PerAxis
from phiseg.models.segmenter import Segmenter, SegmenterConfig, image_size, unpad
from phiseg.models.time_channels import SAME_TIME, TIME_CHANNELS, per_item, time_channels


class FlowConfig(SegmenterConfig):
    """Settings of a flow over logits."""

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


class LogitFlow(Segmenter):
    """Base class of models with a flow network; a subclass calls `add_flow` in its constructor."""

    config: FlowConfig

    def add_flow(self, feature_channels: int) -> None:
        """Create the flow network for features of the image with this number of channels."""
        config = self.config
        self.flow = UNetBody(
            config.num_classes + feature_channels + TIME_CHANNELS,
            config.flow_channels,
            pyramid=config.pyramid.finest(len(config.flow_channels)),
            num_blocks=config.flow_blocks,
            norm=config.norm,
        )
        self.flow_output = output_layer(config.flow_channels[0], config.num_classes, config.pyramid.point)

    def path_loss(self, features: Tensor, start: Tensor, labels: Tensor, moment: Tensor) -> Tensor:
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

    def follow_flow(self, features: Tensor, start: Tensor) -> Tensor:
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


def flow_terms(path: Tensor, *others: Tensor) -> Loss:
    """Return the sum of the loss on the path and of other losses, as `cross_entropy/0`, `cross_entropy/1` ...

    `elbo` is the negative of the first, for comparison between steps; it is not a bound on log p(s|x).
    """
    parts = (path, *others)
    terms = {f"cross_entropy/{number}": part.detach() for number, part in enumerate(parts)}
    return Loss(torch.stack(parts).sum(), terms | {"elbo": -path.detach()})
