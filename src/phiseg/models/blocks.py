"""The pieces every network here is built from, so that capacity explains no difference between methods.

Shapes: B batch, C channels, H W pixels of the level at hand.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, Literal

import torch
import torch.distributed
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Norm = Literal["batch", "group", "none"]

_computing_again: ContextVar[bool] = ContextVar("computing_again", default=False)
"""Whether activations that were not kept are computed for a second time: statistics have counted them already."""


class BatchNorm(nn.BatchNorm2d):
    """Batch norm over the global batch: with several processes, their statistics are averaged.

    torch's own SyncBatchNorm works on GPUs only. This one is plain batch norm in a single process, and gives
    the same numbers when the batch is spread evenly over several, on any device.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Normalise `input` (B, C, H, W)."""
        if self.training and _num_processes() > 1:
            return self._synchronised(input)
        if self.training and _computing_again.get():
            return self._normalised_again(input)
        return super().forward(input)

    def folded_into(self, convolution: nn.Conv2d) -> tuple[Tensor, Tensor]:
        """Return weight and bias of the convolution that does what `convolution` and this do in evaluation."""
        assert self.running_mean is not None
        assert self.running_var is not None
        scale = self.weight * torch.rsqrt(self.running_var + self.eps)
        return convolution.weight * scale[:, None, None, None], self.bias - self.running_mean * scale

    def _normalised_again(self, input: Tensor) -> Tensor:
        assert self.running_mean is not None
        assert self.running_var is not None
        mean, variance = self.running_mean.clone(), self.running_var.clone()  # updated in place, and left at that
        return F.batch_norm(input, mean, variance, self.weight, self.bias, training=True, eps=self.eps)

    def _synchronised(self, input: Tensor) -> Tensor:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        values = input.float()
        mean = mean_over_processes(values.mean((0, 2, 3)))
        centred = values - mean[:, None, None]
        variance = mean_over_processes(centred.square().mean((0, 2, 3)))
        if not _computing_again.get():
            with torch.no_grad():
                self.num_batches_tracked += 1
                momentum = self.momentum or 1 / float(self.num_batches_tracked)
                count = values.numel() // values.shape[1] * _num_processes()
                self.running_mean.lerp_(mean, momentum)
                self.running_var.lerp_(variance * count / (count - 1), momentum)
        scale = self.weight * torch.rsqrt(variance + self.eps)
        return (centred * scale[:, None, None] + self.bias[:, None, None]).to(input.dtype)


class _SumOverProcesses(torch.autograd.Function):
    """The sum of a tensor over all processes; so is its gradient, as every process's loss depends on every part."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:  # noqa: ARG004
        total = value.clone()
        torch.distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # noqa: ARG004
        total = gradient.clone()
        torch.distributed.all_reduce(total)
        return total


def _num_processes() -> int:
    return torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1


def mean_over_processes(value: Tensor) -> Tensor:
    """Return the mean of a tensor over all processes, with its gradient; with one process, the tensor itself."""
    if _num_processes() == 1:
        return value
    total: Tensor = _SumOverProcesses.apply(value)  # type: ignore[no-untyped-call]
    return total / _num_processes()


def normalisation(kind: Norm, channels: int) -> nn.Module:
    """Return the layer that follows a convolution.

    Batch norm has the reference code's constants: decay 0.99 (torch momentum 0.01), eps 1e-3.
    """
    if kind == "batch":
        return BatchNorm(channels, momentum=0.01, eps=1e-3)
    if kind == "group":
        return nn.GroupNorm(next(groups for groups in (8, 4, 2, 1) if channels % groups == 0), channels)
    return nn.Identity()


class ConvNormReLU(nn.Sequential):
    """Convolution, norm, ReLU. Batch norm whose statistics are known costs nothing: it goes into the weights."""

    def forward(self, input: Tensor) -> Tensor:
        """Return (B, out, H, W)."""
        convolution, norm, relu = self
        if isinstance(norm, BatchNorm) and not norm.training:
            assert isinstance(convolution, nn.Conv2d)
            weight, bias = norm.folded_into(convolution)
            output: Tensor = relu(F.conv2d(input, weight, bias, padding=convolution.padding))
        else:
            output = super().forward(input)  # type: ignore[no-untyped-call]
        return output


class Block(ConvNormReLU):
    """Convolution, norm, ReLU: (B, in, H, W) -> (B, out, H, W). No bias where a norm follows; He-normal init.

    With `residual`, and as many channels out as in, the input is added to what comes out.
    """

    def __init__(
        self, in_channels: int, out_channels: int, *, norm: Norm, kernel_size: int = 3, residual: bool = False
    ):
        convolution = nn.Conv2d(
            in_channels, out_channels, kernel_size, padding=kernel_size // 2, bias=norm == "none"
        )
        he_normal(convolution)
        super().__init__(convolution, normalisation(norm, out_channels), nn.ReLU(inplace=True))
        self.residual = residual and in_channels == out_channels

    def forward(self, input: Tensor) -> Tensor:
        """Return (B, out, H, W)."""
        output = super().forward(input)
        return input + output if self.residual else output


class Forgetful(nn.Sequential):
    """A part of a network that can forget its activations and compute them anew in the backward pass.

    What comes out is the same to the last bit: batch norm's running statistics are updated the first time only.
    """

    forgets = False

    def forward(self, input: Tensor) -> Tensor:
        """Return what `compute` does."""
        if not (self.forgets and self.training and torch.is_grad_enabled()):
            return self.compute(input)
        output: Tensor = checkpoint(
            self.compute, input, use_reentrant=False, context_fn=lambda: (nullcontext(), _second_time())
        )
        return output

    def compute(self, input: Tensor) -> Tensor:
        """Run the layers one after the other."""
        output: Tensor = super().forward(input)  # type: ignore[no-untyped-call]
        return output


@contextmanager
def _second_time() -> Iterator[None]:
    token = _computing_again.set(True)
    try:
        yield
    finally:
        _computing_again.reset(token)


class Blocks(Forgetful):
    """A chain of `number` blocks: (B, in, H, W) -> (B, out, H, W)."""

    def __init__(
        self,
        number: int,
        in_channels: int,
        out_channels: int,
        *,
        norm: Norm,
        kernel_size: int = 3,
        residual: bool = False,
    ):
        widths = [in_channels, *[out_channels] * number]
        super().__init__(
            *[
                Block(a, b, norm=norm, kernel_size=kernel_size, residual=residual)
                for a, b in itertools.pairwise(widths)
            ]
        )


def output_layer(
    in_channels: int, out_channels: int, *, kernel_size: int = 1, init_scale: float = 1.0
) -> nn.Conv2d:
    """Return a linear convolution with bias: logits, means and raw standard deviations."""
    layer = nn.Conv2d(in_channels, out_channels, kernel_size, padding=kernel_size // 2)
    he_normal(layer, scale=init_scale)
    return layer


def he_normal(layer: nn.Conv2d, *, scale: float = 1.0) -> None:
    """Initialise a convolution's weights He-normal, times `scale`, and its bias, if any, with zero."""
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    with torch.no_grad():
        layer.weight *= scale
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def double(features: Tensor) -> Tensor:
    """Upsample bilinearly by two: (B, C, H, W) -> (B, C, 2H, 2W)."""
    return F.interpolate(features, scale_factor=2, mode="bilinear", align_corners=False)


class UpBlock(Forgetful, ConvNormReLU):
    """A block after an upsampling: (B, in, H, W) -> (B, out, 2H, 2W). It forgets what was upsampled, too."""

    def __init__(self, in_channels: int, out_channels: int, *, norm: Norm, residual: bool = False):
        layers = Block(in_channels, out_channels, norm=norm, residual=residual)
        super().__init__(*layers)
        self.residual = layers.residual

    def compute(self, input: Tensor) -> Tensor:
        """Return (B, out, 2H, 2W)."""
        doubled = double(input)
        output = super().compute(doubled)
        return doubled + output if self.residual else output


class Encoder(nn.Module):
    """The downward path: `num_blocks` blocks a resolution level, 2x2 average pooling between levels.

    (B, in, H, W) -> one tensor (B, channels[r], H / 2^r, W / 2^r) for each level r, finest first.
    """

    def __init__(
        self, in_channels: int, channels: Sequence[int], *, num_blocks: int, norm: Norm, residual: bool = False
    ):
        super().__init__()
        widths = [in_channels, *channels]
        self.levels = nn.ModuleList(
            Blocks(num_blocks, a, b, norm=norm, residual=residual) for a, b in itertools.pairwise(widths)
        )

    def forward(self, x: Tensor, num_levels: int | None = None) -> list[Tensor]:
        """Return the features of every level, or of the `num_levels` finest, finest first."""
        features: list[Tensor] = []
        for level in range(len(self.levels) if num_levels is None else num_levels):
            x = self.descend(level, x)
            features.append(x)
        return features

    def descend(self, level: int, x: Tensor) -> Tensor:
        """Return the features of `level`, given those of the finer level beside it (or, at level 0, the input)."""
        features: Tensor = self.levels[level](F.avg_pool2d(x, 2) if level > 0 else x)
        return features


class UNetBody(nn.Module):
    """An encoder and the upward path with skip connections: (B, in, H, W) -> (B, channels[0], H, W).

    A model that joins further channels to the features of some levels on their way up, or that goes up to `finest`
    only, runs `encoder` and `ascend` itself.

    Args:
        in_channels: of the input.
        channels: width of each level, finest first.
        num_blocks: a level and path.
        norm: after each convolution.
        joined: how many channels are joined to the features of a level before they go up, by level.
        finest: the level where the upward path ends.
    """

    def __init__(
        self,
        in_channels: int,
        channels: Sequence[int],
        *,
        num_blocks: int,
        norm: Norm,
        joined: Mapping[int, int] | None = None,
        finest: int = 0,
    ):
        super().__init__()
        joined = joined or {}
        self.finest = finest
        self.encoder = Encoder(in_channels, channels, num_blocks=num_blocks, norm=norm)
        self.decoder = nn.ModuleList(
            Blocks(num_blocks, channels[r + 1] + joined.get(r + 1, 0) + channels[r], channels[r], norm=norm)
            for r in range(finest, len(channels) - 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the last features at full resolution."""
        *skips, x = self.encoder(x)
        for level in reversed(range(len(skips))):
            x = self.ascend(level, x, skips[level])
        return x

    def ascend(self, level: int, x: Tensor, skip: Tensor) -> Tensor:
        """Return the upward path's features of `level`, given those of the coarser level beside it and the skip."""
        features: Tensor = self.decoder[level - self.finest](torch.cat([double(x), skip], dim=1))
        return features
