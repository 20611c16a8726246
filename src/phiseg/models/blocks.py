"""Building blocks shared by all networks, so that methods do not differ in capacity.

Shapes: B batch, C channels, H W pixels of the current level. For volumes, read D H W for H W. The length
of kernels and strides is the number of dimensions.
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
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from phiseg.models.layers import Convolution, append_axes, average_pool, convolution, convolve, pixel_axes, upsample
from phiseg.models.pyramid import PerAxis, Pyramid

Norm = Literal["batch", "group", "none"]

_recomputing: ContextVar[bool] = ContextVar("recomputing", default=False)
"""Whether checkpointed activations are being recomputed; running statistics were already updated."""


class BatchNorm(_BatchNorm):
    """Batch norm over the global batch: the statistics of all processes are averaged.

    SyncBatchNorm of torch works on GPUs only. This class works on any device. With one process it is plain batch
    norm, and a batch split evenly over several processes gives the same values. It accepts images and volumes.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Normalise `input` (B, C, H, W)."""
        if self.training and _num_processes() > 1:
            return self._synchronised(input)
        if self.training and _recomputing.get():
            return self._normalise_without_update(input)
        return super().forward(input)

    def folded_into(self, layer: Convolution) -> tuple[Tensor, Tensor]:
        """Return weight and bias of a convolution equal to `layer` followed by this layer in eval mode."""
        assert self.running_mean is not None
        assert self.running_var is not None
        scale = self.weight * torch.rsqrt(self.running_var + self.eps)
        return layer.weight * append_axes(scale, layer.weight.ndim), self.bias - self.running_mean * scale

    def _check_input_dim(self, input: Tensor) -> None:
        assert input.ndim in (4, 5)

    def _normalise_without_update(self, input: Tensor) -> Tensor:
        assert self.running_mean is not None
        assert self.running_var is not None
        mean, variance = self.running_mean.clone(), self.running_var.clone()  # updated copies are discarded
        return F.batch_norm(input, mean, variance, self.weight, self.bias, training=True, eps=self.eps)

    def _synchronised(self, input: Tensor) -> Tensor:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        values = input.float()
        axes = (0, *pixel_axes(values))
        mean = mean_over_processes(values.mean(axes))
        centred = values - append_axes(mean, values.ndim - 1)
        variance = mean_over_processes(centred.square().mean(axes))
        if not _recomputing.get():
            with torch.no_grad():
                self.num_batches_tracked += 1
                momentum = self.momentum or 1 / float(self.num_batches_tracked)
                count = values.numel() // values.shape[1] * _num_processes()
                self.running_mean.lerp_(mean, momentum)
                self.running_var.lerp_(variance * count / (count - 1), momentum)
        scale = self.weight * torch.rsqrt(variance + self.eps)
        scale, bias = (append_axes(factor, values.ndim - 1) for factor in (scale, self.bias))
        return (centred * scale + bias).to(input.dtype)


class _SumOverProcesses(torch.autograd.Function):
    """Sum of a tensor over all processes. The gradient is summed too, since every loss depends on every term."""

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
    """Return the mean of a tensor over all processes, with gradient; with one process, the tensor itself."""
    if _num_processes() == 1:
        return value
    total: Tensor = _SumOverProcesses.apply(value)  # type: ignore[no-untyped-call]
    return total / _num_processes()


def normalisation(kind: Norm, channels: int) -> nn.Module:
    """Return the normalisation layer that follows a convolution.

    Batch norm uses the constants of the reference code: decay 0.99 (torch momentum 0.01), eps 1e-3.
    """
    if kind == "batch":
        return BatchNorm(channels, momentum=0.01, eps=1e-3)
    if kind == "group":
        return nn.GroupNorm(next(groups for groups in (8, 4, 2, 1) if channels % groups == 0), channels)
    return nn.Identity()


class ConvNormReLU(nn.Sequential):
    """Convolution, norm, ReLU. In eval mode, batch norm is folded into the weights of the convolution."""

    def forward(self, input: Tensor) -> Tensor:
        """Return (B, out, H, W)."""
        layer, norm, relu = self
        if isinstance(norm, BatchNorm) and not norm.training:
            assert isinstance(layer, Convolution)
            output: Tensor = relu(convolve(layer, input, *norm.folded_into(layer)))
        else:
            output = super().forward(input)  # type: ignore[no-untyped-call]
        return output

    def join(self, items: Tensor, images: Tensor, image_of: Tensor) -> Tensor:
        """Return the result for `items` and the features of their images, concatenated.

        A convolution of concatenated channels is the sum of two convolutions. That of the images is computed once
        per image instead of once per item.

        Args:
            items: (N, in_1, H, W).
            images: (B, in_2, H, W), where in_1 + in_2 are the input channels.
            image_of: (N,), the number of the image of each item.
        """
        layer, norm, relu = self
        assert isinstance(layer, Convolution)
        weight, bias = layer.weight, layer.bias
        if isinstance(norm, BatchNorm) and not norm.training:
            (weight, bias), norm = norm.folded_into(layer), nn.Identity()
        own, shared = weight.split([items.shape[1], images.shape[1]], dim=1)
        total = convolve(layer, items, own, None)
        total += convolve(layer, images, shared, bias)[image_of]
        output: Tensor = relu(norm(total))
        return output


class Block(ConvNormReLU):
    """Convolution, norm, ReLU: (B, in, H, W) -> (B, out, H, W). He-normal init; no bias if followed by a norm.

    With `residual` and equal numbers of channels, the input is added to the output.
    """

    def __init__(
        self, in_channels: int, out_channels: int, *, norm: Norm, kernel: PerAxis = (3, 3), residual: bool = False
    ):
        layer = convolution(in_channels, out_channels, kernel, bias=norm == "none")
        super().__init__(layer, normalisation(norm, out_channels), nn.ReLU(inplace=True))
        self.residual = residual and in_channels == out_channels

    def forward(self, input: Tensor) -> Tensor:
        """Return (B, out, H, W)."""
        output = super().forward(input)
        return input + output if self.residual else output

    def join(self, items: Tensor, images: Tensor, image_of: Tensor) -> Tensor:
        """Return the result for `items` and the features of their images, concatenated."""
        if not self.residual:
            return super().join(items, images, image_of)
        output: Tensor = self(torch.cat([items, images[image_of]], dim=1))
        return output


class Checkpointed(nn.Sequential):
    """Layers that can discard their activations and recompute them in the backward pass.

    Results are bitwise identical: the running statistics of batch norm are updated only in the first pass.
    """

    use_checkpoint = False

    def forward(self, input: Tensor) -> Tensor:
        """Return the output of `compute`."""
        if not (self.use_checkpoint and self.training and torch.is_grad_enabled()):
            return self.compute(input)
        output: Tensor = checkpoint(
            self.compute, input, use_reentrant=False, context_fn=lambda: (nullcontext(), _recompute_context())
        )
        return output

    def compute(self, input: Tensor) -> Tensor:
        """Run the layers in sequence."""
        output: Tensor = super().forward(input)  # type: ignore[no-untyped-call]
        return output


@contextmanager
def _recompute_context() -> Iterator[None]:
    token = _recomputing.set(True)
    try:
        yield
    finally:
        _recomputing.reset(token)


class Blocks(Checkpointed):
    """A chain of `number` blocks: (B, in, H, W) -> (B, out, H, W)."""

    def __init__(
        self,
        number: int,
        in_channels: int,
        out_channels: int,
        *,
        norm: Norm,
        kernel: PerAxis = (3, 3),
        residual: bool = False,
    ):
        widths = [in_channels, *[out_channels] * number]
        super().__init__(
            *[Block(a, b, norm=norm, kernel=kernel, residual=residual) for a, b in itertools.pairwise(widths)]
        )

    def join(self, items: Tensor, images: Tensor, image_of: Tensor) -> Tensor:
        """Return the result for `items` and the features of their images, concatenated: see `ConvNormReLU.join`."""
        first, *others = self
        output: Tensor = first.join(items, images, image_of)  # type: ignore[operator]
        for block in others:
            output = block(output)
        return output


class UpBlock(Checkpointed, ConvNormReLU):
    """Upsampling and a block: (B, in, *size) -> (B, out, *size * stride). Checkpointing includes the upsampling."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        norm: Norm,
        stride: PerAxis = (2, 2),
        kernel: PerAxis = (3, 3),
        residual: bool = False,
    ):
        layers = Block(in_channels, out_channels, norm=norm, kernel=kernel, residual=residual)
        super().__init__(*layers)
        self.stride = stride
        self.residual = layers.residual

    def compute(self, input: Tensor) -> Tensor:
        """Return (B, out, *size * stride)."""
        upsampled = upsample(input, self.stride)
        output = super().compute(upsampled)
        return upsampled + output if self.residual else output


class Encoder(nn.Module):
    """Encoder: `num_blocks` blocks per resolution level, average pooling by the stride between levels.

    (B, in, *size) -> one tensor (B, channels[r], *size / scale(r)) per level r, finest first.
    """

    def __init__(
        self,
        in_channels: int,
        channels: Sequence[int],
        *,
        pyramid: Pyramid,
        num_blocks: int,
        norm: Norm,
        residual: bool = False,
    ):
        super().__init__()
        self.strides = pyramid.strides
        widths = itertools.pairwise([in_channels, *channels])
        self.levels = nn.ModuleList(
            Blocks(num_blocks, a, b, norm=norm, kernel=kernel, residual=residual)
            for (a, b), kernel in zip(widths, pyramid.kernels, strict=True)
        )

    def forward(self, x: Tensor, num_levels: int | None = None) -> list[Tensor]:
        """Return the features of all levels, or of the `num_levels` finest, finest first."""
        features: list[Tensor] = []
        for level in range(len(self.levels) if num_levels is None else num_levels):
            x = self.descend(level, x)
            features.append(x)
        return features

    def descend(self, level: int, x: Tensor) -> Tensor:
        """Return the features of `level` given those of the next finer level (at level 0: given the input)."""
        features: Tensor = self.levels[level](average_pool(x, self.strides[level - 1]) if level > 0 else x)
        return features


class UNetBody(nn.Module):
    """U-Net without output layer: (B, in, H, W) -> (B, channels[0], H, W).

    Models that concatenate further channels to the features of some levels in the decoder, or whose decoder stops
    at level `finest`, call `encoder` and `ascend` themselves.

    Args:
        in_channels: number of input channels.
        channels: width of each level, finest first.
        pyramid: strides and kernels of the levels.
        num_blocks: blocks per level in the encoder and in the decoder.
        norm: normalisation after each convolution.
        joined: by level, the number of channels that are concatenated to its features before upsampling.
        finest: last level of the decoder.
    """

    def __init__(
        self,
        in_channels: int,
        channels: Sequence[int],
        *,
        pyramid: Pyramid,
        num_blocks: int,
        norm: Norm,
        joined: Mapping[int, int] | None = None,
        finest: int = 0,
    ):
        super().__init__()
        joined = joined or {}
        self.finest = finest
        self.strides = pyramid.strides
        self.encoder = Encoder(in_channels, channels, pyramid=pyramid, num_blocks=num_blocks, norm=norm)
        self.decoder = nn.ModuleList(
            Blocks(
                num_blocks,
                channels[r + 1] + joined.get(r + 1, 0) + channels[r],
                channels[r],
                norm=norm,
                kernel=pyramid.kernels[r],
            )
            for r in range(finest, len(channels) - 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the decoder features at full resolution."""
        *skips, x = self.encoder(x)
        for level in reversed(range(len(skips))):
            x = self.ascend(level, x, skips[level])
        return x

    def ascend(self, level: int, x: Tensor, skip: Tensor) -> Tensor:
        """Return the decoder features of `level` given those of the next coarser level and the skip connection."""
        upsampled = upsample(x, self.strides[level])
        features: Tensor = self.decoder[level - self.finest](torch.cat([upsampled, skip], dim=1))
        return features
