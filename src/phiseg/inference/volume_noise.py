"""Noise as a field over a volume: patches that overlap share it, so that a sample is one hypothesis.

Shapes: S samples, D x H x W voxels of a patch, d x h x w cells of a level in it.
"""

from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

from phiseg.inference.slice_noise import Level, level_settings
from phiseg.models import Segmenter
from phiseg.models.noise import draw_noise, seeded_generator
from phiseg.models.pyramid import PerAxis

MIN_BLOCK = 8
"""Minimum side of a block, in voxels, below which there would be many seeds."""


class VolumeNoise:
    """The noise of samples at any place of a volume, for a 3-D model.

    The volume is divided into blocks whose sides are multiples of the network's strides. The noise of a block
    depends only on the seed, the keys, the sample and the place of the block. Noise without a place (a latent
    vector, the presence) is the same everywhere.

    Args:
        model: 3-D model.
        seed: seed of the samples.
        keys: name of the stream; streams are independent.
        levels: changes to each part of the noise; empty for no changes.
    """

    def __init__(self, model: Segmenter, *, seed: int, keys: tuple[str, ...], levels: Sequence[Level] = ()) -> None:
        self.model, self.seed, self.keys = model, seed, keys
        self.block = tuple(stride * -(-MIN_BLOCK // stride) for stride in model.strides)
        self.shapes = model.noise_shapes(self.block)
        self.levels = level_settings(levels, len(self.shapes))

    def patch(self, start: PerAxis, size: PerAxis, samples: range) -> list[Tensor]:
        """Return the noise of some samples in a patch, one tensor (1, S, *shape) per shape.

        Args:
            start: first voxel of the patch, which may be negative. If it is not a multiple of the strides, coarse
                levels begin up to one of their cells before it.
            size: (D, H, W).
            samples: numbers of the samples.
        """
        shapes = self.model.noise_shapes(size)
        padded = self.model.padded_size(size)
        blocks = [range(s // b, -(-(s + n) // b)) for s, n, b in zip(start, padded, self.block, strict=True)]
        noise = [torch.empty(1, len(samples), *shape) for shape in shapes]
        for row, sample in enumerate(samples):
            for part, (shape, of_block, level) in enumerate(zip(shapes, self.shapes, self.levels, strict=True)):
                source = 0 if level.hold else sample
                if len(shape) <= self.model.config.dims:  # the same everywhere
                    noise[part][0, row] = self._draw(part, source, ())
                    continue
                field = torch.empty(shape[0], *(len(b) * n for b, n in zip(blocks, of_block[1:], strict=True)))
                for place in product(*blocks):
                    corner = [(p - b.start) * n for p, b, n in zip(place, blocks, of_block[1:], strict=True)]
                    _part(field, corner, of_block[1:]).copy_(self._draw(part, source, place))
                cells = [b // n for b, n in zip(self.block, of_block[1:], strict=True)]
                first = [
                    s // c - b.start * n for s, c, b, n in zip(start, cells, blocks, of_block[1:], strict=True)
                ]
                noise[part][0, row] = _part(field, first, shape[1:])
        return [level.temperature * values for level, values in zip(self.levels, noise, strict=True)]

    def _draw(self, part: int, sample: int, place: PerAxis) -> Tensor:
        """Return one part of the noise of a block, or of the whole volume if there is no place."""
        keys = (*self.keys, f"level seed {self.levels[part].seed}") if self.levels[part].seed else self.keys
        generator = seeded_generator(self.seed, "field", *keys, sample, part, *place)
        return draw_noise([self.shapes[part]], 1, 1, [generator])[0][0, 0]


def _part(field: Tensor, first: Sequence[int], size: PerAxis) -> Tensor:
    """Return a part (C, d, h, w) of a field."""
    return field[(slice(None), *(slice(f, f + n) for f, n in zip(first, size, strict=True)))]
