"""The likelihood network p(s | z_1..z_L): a decoder that does not see the image.

Shapes: N items, K classes. Lists run fine to coarse.
"""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phiseg.models.blocks import Blocks, Norm, UpBlock, output_layer

Upsampling = Literal["nearest", "bilinear"]


class Likelihood(nn.Module):
    """Decoder from latents to the accumulated logits of all levels.

    Level l has 2^-l times the resolution of the image. The coarsest level predicts a segmentation, and each finer
    level adds a residual, so that z_l refines the prediction of the coarser levels.
    """

    def __init__(
        self,
        channels: Sequence[int],
        *,
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
            Blocks(2, latent_channels, channels[level], norm=norm, residual=residual) for level in range(num_levels)
        )
        self.ascend = nn.ModuleList(
            nn.ModuleList(
                UpBlock(channels[level], channels[level], norm=norm, residual=residual) for _ in range(offset)
            )
            for level in range(num_levels)
        )
        self.carry = nn.ModuleList(
            UpBlock(merged[level + 1], channels[level], norm=norm, residual=residual)
            for level in range(num_levels - 1)
        )
        self.merge = nn.ModuleList(
            Blocks(2, 2 * channels[level], merged[level], norm=norm, residual=residual)
            for level in range(num_levels - 1)
        )
        self.output = nn.ModuleList(output_layer(width, num_classes) for width in merged)

    def forward(self, latents: Sequence[Tensor]) -> list[Tensor]:
        """Return the accumulated logits (N, K, H, W) of all levels at full resolution, fine to coarse.

        Args:
            latents: z_l (N, D, h_l, w_l), fine to coarse.
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
        size = residuals[-1].shape[-2:]
        accumulated: list[Tensor] = []
        for residual in residuals:  # coarse to fine
            full = residual if residual.shape[-2:] == size else self._upsampled(residual, size)
            accumulated.append(accumulated[-1] + full if accumulated else full)
        return accumulated[::-1]

    def _upsampled(self, logits: Tensor, size: torch.Size) -> Tensor:
        aligned = None if self.upsampling == "nearest" else False
        return F.interpolate(logits, size=size, mode=self.upsampling, align_corners=aligned)

    def _ascent(self, level: int) -> nn.ModuleList:
        blocks = self.ascend[level]
        assert isinstance(blocks, nn.ModuleList)
        return blocks
