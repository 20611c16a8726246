"""Draw samples of slices with a 3-D model: patches of several slices share their noise and are blended.

Shapes: D slices of h x w pixels of a patch, S samples, K classes, L latent levels.
"""

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
from phiseg.inference.tiling import Box, covering, taper
from phiseg.inference.volume_noise import VolumeNoise
from phiseg.models import Segmenter


class VolumeSampler(FrameSampler):
    """Draw samples of slices with a 3-D model.

    A whole scan is covered by overlapping windows of as many slices as in training. Around a point, a single
    window is used, which is extended if more slices are requested. Slices outside the scan repeat its ends, as in
    training.

    `FrameSampler` describes the other arguments.

    Args:
        key: key of the case; cases with different keys have independent noise.
        centre: slice of the point; None for a whole scan.
    """

    joint = True

    def __init__(
        self,
        model: Segmenter,
        stack: PreparedStack,
        sampling: Sampling,
        frames: Sequence[Frame],
        *,
        key: str,
        centre: int | None = None,
    ) -> None:
        super().__init__(model, stack, sampling, frames)
        self.depth, self.centre = stack.preprocessing.inference_patch_size[0], centre
        self.origin = 0 if centre is None else centre - self.depth // 2
        source = partial(VolumeNoise, model, seed=sampling.seed, levels=sampling.levels)
        self.noise, self.redrawn = source(keys=(key,)), source(keys=(key, "redrawn"))

    def windows(self, numbers: range) -> list[range]:
        """Return the windows that cover some slices, in order; some of their slices may be outside the scan."""
        if self.centre is not None:
            stride = self.model.strides[0]
            missing = max(0, self.origin - numbers.start)
            start = self.origin - stride * -(-missing // stride)
            return [range(start, max(self.origin + self.depth, numbers.stop))]
        starts = covering(self.stack.stack.grid[0], self.depth, self.model.strides[0])
        found = [range(start, start + self.depth) for start in starts]
        return [one for one in found if one.start < numbers.stop and numbers.start < one.stop]

    def slices_seen(self, number: int) -> range:
        """Return the window of a slice."""
        return self.windows(range(number, number + 1))[0]

    @property
    def ahead(self) -> int:
        """Return half the slices of a patch."""
        return max(1, self.depth // 2)

    @property
    def passes(self) -> list[range]:
        """Return parts of the samples that are decoded at once, which bounds the memory."""
        return self._chunks(range(self.sampling.num_samples), self.depth)

    def _chunks(self, samples: range, num_slices: int) -> list[range]:
        """Return parts with as many slices of samples as a 2-D model decodes at once."""
        step = max(1, self.sampling.batch_size * self.sampling.chunk_size // num_slices)
        return [samples[start : start + step] for start in range(0, len(samples), step)]

    def _maps(
        self, numbers: Sequence[int], box: Box, network: Network
    ) -> Iterator[tuple[list[NDArray[np.float32]], NDArray[np.bool_]]]:
        """Yield the maps of each slice as soon as all its windows are predicted; see `FrameSampler`."""
        wanted = range(numbers[0], numbers[-1] + 1)
        assert len(wanted) == len(numbers), "the slices are not consecutive"
        windows = self.windows(wanted)
        waiting: dict[int, tuple[float, list[NDArray[np.float32]]]] = {}
        for window, following in zip(windows, [*windows[1:], None], strict=True):
            inside = np.clip(window, 0, self.stack.stack.grid[0] - 1)
            maps, reached = self._assemble(inside, box, partial(network, window))
            for number, weight, *values in zip(window, taper(len(window)), *maps, strict=True):
                if number in wanted:
                    total, sums = waiting.get(number, (0.0, [np.zeros_like(value) for value in values]))
                    for one, value in zip(sums, values, strict=True):
                        one += np.float32(weight) * value
                    waiting[number] = total + weight, sums
            end = wanted.stop if following is None else following.start
            for number in [number for number in waiting if number < end]:
                total, sums = waiting.pop(number)
                yield [one / np.float32(total) for one in sums], reached

    def _input(self, images: NDArray[np.float32]) -> Tensor:
        return torch.from_numpy(images).movedim(0, 1)[None].to(self.device)  # (1, C, D, h, w)

    def _slices(self, maps: Tensor) -> Tensor:
        return maps[0].movedim(-3, 0)  # (1, ..., D, h, w) -> (D, ..., h, w)

    def _noise(self, numbers: Numbers, frame: Frame, samples: range, *, redrawn: bool = False) -> list[Tensor]:
        source = self.redrawn if redrawn else self.noise
        start = (int(numbers[0]) - self.origin, *self.offset(frame))
        noise = source.patch(start, (len(numbers), *frame.size), samples)
        return self.model.temper([level.to(self.device) for level in noise])
