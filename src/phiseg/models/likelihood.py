"""The likelihood network p(s | z_1..z_L): a decoder that does not see the image.

Shapes: N items, K classes; for volumes, read D H W for H W. Lists run fine to coarse.
"""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phiseg.models.blocks import Blocks, Norm, UpBlock
from phiseg.models.layers import linear_mode, output_layer
from phiseg.models.pyramid import PerAxis, Pyramid

Upsampling = Literal["nearest", "bilinear"]


class Likelihood(nn.Module):
    """Decoder from latents to the accumulated logits of all levels.

    Level l has the size of resolution level l; level 0 is the image itself. The coarsest level predicts a
    segmentation, and each finer level adds a residual, so that z_l refines the prediction of the coarser levels.
    """

    def __init__(
        self,
        channels: Sequence[int],
        *,
        pyramid: Pyramid,
        num_levels: int,
        offset: int,
        latent_channels: int,
        num_classes: int,
        norm: Norm,
        residual: bool,
        upsampling: Upsampling,
    ):
        super().__init__()
        self.upsampling = upsampling
        merged = [channels[level + offset] for level in range(num_levels - 1)] + [channels[num_levels - 1]]
        self.embed = nn.ModuleList(
            Blocks(
                2,
                latent_channels,
                channels[level],
                norm=norm,
                kernel=pyramid.kernels[level + offset],
                residual=residual,
            )
            for level in range(num_levels)
        )

        def up(in_channels: int, level: int, resolution: int) -> UpBlock:
            return UpBlock(
                in_channels,
                channels[level],
                norm=norm,
                stride=pyramid.strides[resolution],
                kernel=pyramid.kernels[resolution],
                residual=residual,
            )

        self.ascend = nn.ModuleList(
            nn.ModuleList(
                up(channels[level], level, resolution) for resolution in reversed(range(level, level + offset))
            )
            for level in range(num_levels)
        )
        self.carry = nn.ModuleList(up(merged[level + 1], level, level) for level in range(num_levels - 1))
        self.merge = nn.ModuleList(
            Blocks(
                2,
                2 * channels[level],
                merged[level],
                norm=norm,
                kernel=pyramid.kernels[level],
                residual=residual,
            )
            for level in range(num_levels - 1)
        )
        self.output = nn.ModuleList(output_layer(width, num_classes, pyramid.point) for width in merged)

    def forward(self, latents: Sequence[Tensor]) -> list[Tensor]:
        """Return the accumulated logits of all levels, fine to coarse.

        With nearest upsampling, those of level l are constant on the cells of its grid, so they have one value per
        cell: (N, K, H / 2^l, W / 2^l). With bilinear upsampling, all are (N, K, H, W).

        Args:
            latents: z_l (N, Z, h_l, w_l), fine to coarse.
        """
        residuals: list[Tensor] = []
        context: Tensor | None = None
        for level in reversed(range(len(latents))):
            x = self.embed[level](latents[level])
            for block in self._ascent(level):
                x = block(x)
            if context is not None:
                x = self.merge[level](torch.cat([self.carry[level](context), x], dim=1))
            context = x
            residuals.append(self.output[level](x))
        accumulated: list[Tensor] = []
        for residual in residuals:  # coarse to fine
            if self.upsampling == "bilinear":
                residual = self.upsampled(residual, residuals[-1].shape[2:])
            accumulated.append(
                residual + self.upsampled(accumulated[-1], residual.shape[2:]) if accumulated else residual
            )
        return accumulated[::-1]

    def upsampled(self, logits: Tensor, size: PerAxis) -> Tensor:
        """Upsample logits (N, K, h, w) to `size`."""
        if logits.shape[2:] == size:
            return logits
        if self.upsampling == "nearest":
            return F.interpolate(logits, size=size, mode="nearest")
        return F.interpolate(logits, size=size, mode=linear_mode(len(size)), align_corners=False)

    def _ascent(self, level: int) -> nn.ModuleList:
        blocks = self.ascend[level]
        assert isinstance(blocks, nn.ModuleList)
        return blocks
