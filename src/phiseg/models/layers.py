"""Elementary layers for images (B, C, H, W) and volumes (B, C, D, H, W).

The length of a kernel or stride, one number for each axis, selects the 2-D or the 3-D version.
"""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phiseg.models.pyramid import PerAxis


class VolumeConvolution(nn.Conv3d):
    """3-D convolution."""

    def forward(self, input: Tensor) -> Tensor:
        """Return (B, out, D, H, W)."""
        return convolve(self, input, self.weight, self.bias)


Convolution = nn.Conv2d | VolumeConvolution


def convolution(
    in_channels: int, out_channels: int, kernel: PerAxis, *, bias: bool, scale: float = 1.0
) -> Convolution:
    """Return a convolution that keeps the size, with He-normal initial weights times `scale` and a bias of zero."""
    kind: type[Convolution] = nn.Conv2d if len(kernel) == 2 else VolumeConvolution
    padding = tuple(side // 2 for side in kernel)
    layer = kind(in_channels, out_channels, kernel, padding=padding, bias=bias)  # type: ignore[arg-type]
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    with torch.no_grad():
        layer.weight *= scale
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def output_layer(in_channels: int, out_channels: int, kernel: PerAxis, *, init_scale: float = 1.0) -> Convolution:
    """Return a linear convolution with bias, for logits, means and raw standard deviations."""
    return convolution(in_channels, out_channels, kernel, bias=True, scale=init_scale)


def convolve(layer: Convolution, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the result of `layer` with other weights.

    For two slices and a kernel of three, zeros are added first: in bfloat16 on a CPU, torch 2.13 otherwise returns
    uninitialised memory as the gradient of the weights.
    """
    if isinstance(layer, nn.Conv2d):
        return F.conv2d(input, weight, bias, padding=layer.padding)
    padding = cast("PerAxis", layer.padding)
    if input.shape[2] == 2 and padding[0] == 1:
        input, padding = F.pad(input, (0, 0, 0, 0, 1, 1)), (0, *padding[1:])
    if _needs_onednn(input):
        return torch.mkldnn_convolution(input, weight, bias, padding, stride=(1,) * 3, dilation=(1,) * 3, groups=1)
    return F.conv3d(input, weight, bias, padding=padding)


def _needs_onednn(volumes: Tensor) -> bool:
    """Return whether a convolution must ask for oneDNN.

    For one volume in float32 on a CPU, torch 2.13 otherwise uses kernels that take up to 12 times as long.
    """
    return (
        not torch.compiler.is_compiling()  # exported models contain standard operators only
        and len(volumes) == 1
        and volumes.device.type == "cpu"
        and volumes.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
        and torch.backends.mkldnn.is_available()
    )


def average_pool(features: Tensor, stride: PerAxis) -> Tensor:
    """Downsample by the mean over `stride` pixels: (B, C, *size) -> (B, C, *size / stride)."""
    return F.avg_pool2d(features, stride) if len(stride) == 2 else F.avg_pool3d(features, stride)


def upsample(features: Tensor, stride: PerAxis) -> Tensor:
    """Upsample linearly by a factor for each axis: (B, C, *size) -> (B, C, *size * stride)."""
    return F.interpolate(features, scale_factor=stride, mode=linear_mode(len(stride)), align_corners=False)


def linear_mode(dims: int) -> str:
    """Return torch's name of linear interpolation along `dims` axes."""
    return {2: "bilinear", 3: "trilinear"}[dims]


def pixel_axes(tensor: Tensor) -> tuple[int, ...]:
    """Return the axes of (B, C, *size) that are neither batch nor channels."""
    return tuple(range(2, tensor.ndim))


def append_axes(tensor: Tensor, ndim: int) -> Tensor:
    """Append axes of length 1 until the tensor has `ndim` dimensions."""
    return tensor.reshape(*tensor.shape, *[1] * (ndim - tensor.ndim))
