"""Draw samples of slices with a 2-D model, whose noise is correlated along the slices."""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from phiseg.imaging.frame import Frame
from phiseg.inference.frame_sampler import FrameSampler, Network, Numbers
from phiseg.inference.prepared_stack import PreparedStack
from phiseg.inference.sampling_options import Sampling
from phiseg.inference.slice_noise import SliceNoise
from phiseg.inference.tiling import Box
from phiseg.models import Segmenter


class SliceSampler(FrameSampler):
    """Draw samples of slices with a 2-D model, which sees one slice at a time.

    `FrameSampler` describes the other arguments.

    Args:
        key: key of the case; cases with different keys have independent noise.
    """

    joint = False

    def __init__(
        self, model: Segmenter, stack: PreparedStack, sampling: Sampling, frames: Sequence[Frame], *, key: str
    ) -> None:
        super().__init__(model, stack, sampling, frames)
        assert self.sampling.noise_length_mm is not None
        assert self.sampling.noise_shared is not None
        size = frames[0].size
        self.padded = model.padded_size(size)
        self.tile_shapes = model.noise_shapes(size)
        self.padded_shapes = model.noise_shapes(self.padded)
        row, column = (max(self.offset(frame)[axis] for frame in frames) for axis in (0, 1))
        shapes = self.tile_shapes
        if (row, column) != (0, 0):  # noise of the whole slice, from which tiles are cut
            shapes = model.noise_shapes((row + self.padded[0], column + self.padded[1]))
        source = partial(
            SliceNoise,
            shapes,
            seed=sampling.seed,
            length_mm=self.sampling.noise_length_mm,
            shared=self.sampling.noise_shared,
            levels=sampling.levels,
        )
        self.noise = source(num_samples=sampling.num_samples, keys=(key,))
        self.redrawn = source(num_samples=max(1, sampling.level_draws), keys=(key, "redrawn"))

    def slices_seen(self, number: int) -> range:
        """Return the slice alone."""
        return range(number, number + 1)

    @property
    def ahead(self) -> int:
        """Return the number of slices that are encoded at once."""
        return self.sampling.batch_size

    def _maps(
        self, numbers: Sequence[int], box: Box, network: Network
    ) -> Iterator[tuple[list[NDArray[np.float32]], NDArray[np.bool_]]]:
        for start in range(0, len(numbers), self.sampling.batch_size):
            batch = numbers[start : start + self.sampling.batch_size]
            maps, reached = self._assemble(batch, box, partial(network, batch))
            yield from ((list(of_slice), reached) for of_slice in zip(*maps, strict=True))

    def _input(self, images: NDArray[np.float32]) -> Tensor:
        return torch.from_numpy(images).to(self.device)

    def _slices(self, maps: Tensor) -> Tensor:
        return maps

    def _noise(self, numbers: Numbers, frame: Frame, samples: range, *, redrawn: bool = False) -> list[Tensor]:
        source = self.redrawn if redrawn else self.noise
        distance = self.stack.stack.spacing_mm[0]
        offset = self.offset(frame)
        levels = []
        for shape, cells, level in zip(
            self.tile_shapes,
            self.padded_shapes,
            zip(*(source.at(float(number) * distance) for number in numbers), strict=True),
            strict=True,
        ):
            noise = torch.cat(level)[:, samples.start : samples.stop]
            if noise.shape[2:] != shape:
                row, column = (o * n // p for o, n, p in zip(offset, cells[-2:], self.padded, strict=True))
                noise = noise[..., row : row + shape[-2], column : column + shape[-1]]
            levels.append(noise.to(self.device))
        return self.model.temper(levels)
