"""Draw samples of slices: the network processes frames of a slice, and its output is put back on the slice.

`slice_sampler` implements this for 2-D models, `volume_sampler` for 3-D models.

Shapes: H x W pixels of a slice, h x w of a box of it, B slices at once, S samples, K classes, L latent levels. The
network's input has the axes *size: (h, w), or (B, h, w) for a 3-D model.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from phiseg.core.errors import ConfigError
from phiseg.imaging.frame import Frame, crop
from phiseg.inference.prepared_stack import PreparedStack
from phiseg.inference.sampling_options import Sampling
from phiseg.inference.slice_noise import level_settings
from phiseg.inference.tiling import Box, back_from, pixels_of, taper
from phiseg.models import Segmenter
from phiseg.models.segmenter import Encoding

Numbers = Sequence[int] | NDArray[np.int64]
"""Numbers of consecutive slices."""
Network = Callable[[Numbers, NDArray[np.float32], Frame], Sequence[NDArray[np.float32]]]
"""Maps slices, their images (B, C, h, w) and the frame of these to maps (B, ..., h, w)."""


class FrameSampler(ABC):
    """Draw samples of slices as probabilities on the pixels of the stack.

    Args:
        model: network.
        stack: slices.
        sampling: sampling options.
        frames: parts of a slice that the network processes one after another; their positions differ by multiples
            of its stride.
    """

    joint: ClassVar[bool]
    """Whether slices are predicted together, so that sampling more slices changes the others."""

    def __init__(self, model: Segmenter, stack: PreparedStack, sampling: Sampling, frames: Sequence[Frame]) -> None:
        self.sampling = sampling.for_model(model, stack.preprocessing.slice_coupling)
        self.model, self.stack, self.frames = model, stack, frames
        self.device = next(model.parameters()).device
        for level, takes in zip(sampling.levels, model.takes_temperature, strict=False):
            if level.temperature != 1 and not takes:
                raise ConfigError(
                    f"model '{model.config.name}' has no temperature for this noise, which selects a component "
                    "instead of scaling the spread; use 1"
                )
        self.levels = level_settings(sampling.levels, len(model.noise_names))
        self.level_names = model.noise_names if sampling.level_draws and len(model.noise_names) > 1 else ()

    @abstractmethod
    def slices_seen(self, number: int) -> range:
        """Return the slices that the network sees to predict a slice; some may be outside the scan."""

    @property
    @abstractmethod
    def ahead(self) -> int:
        """Number of slices by which to continue where a lesion has not ended."""

    @property
    def passes(self) -> list[range]:
        """Parts of the samples that are drawn one after another if a whole scan is predicted."""
        return [range(self.sampling.num_samples)]

    @abstractmethod
    def _maps(
        self, numbers: Sequence[int], box: Box, network: Network
    ) -> Iterator[tuple[list[NDArray[np.float32]], NDArray[np.bool_]]]:
        """Yield for each slice the maps (..., h, w) of the network, and the pixels (h, w) inside any frame."""

    @abstractmethod
    def _input(self, images: NDArray[np.float32]) -> Tensor:
        """Return the network's input (N, C, *size) for images (B, C, h, w) of slices."""

    @abstractmethod
    def _slices(self, maps: Tensor) -> Tensor:
        """Return maps (N, ..., *size) of the network as maps (B, ..., h, w) of slices."""

    @abstractmethod
    def _noise(self, numbers: Numbers, frame: Frame, samples: range, *, redrawn: bool = False) -> list[Tensor]:
        """Return the calibrated noise (N, S, *shape) of some samples in a frame of the given slices.

        `redrawn` gives other noise, to replace that of single levels.
        """

    def offset(self, frame: Frame) -> tuple[int, int]:
        """Return the offset (down, right) of a frame from the first one in pixels of the network."""
        first = self.frames[0]
        row, column = (round((o - f) / s) for o, f, s in zip(frame.origin, first.origin, frame.step, strict=True))
        return row, column

    def sample_slices(
        self, numbers: Sequence[int], box: Box, samples: range | None = None
    ) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
        """Yield for each slice the probabilities (S, K, h, w) and the variance of each level (L, h, w).

        Args:
            numbers: numbers of the slices.
            box: pixels of the slices to return; those outside all frames are background.
            samples: samples to draw; by default all. The variances of all samples are the sum over such parts.
        """
        samples = range(self.sampling.num_samples) if samples is None else samples
        for (probs, levels), reached in self._maps(numbers, box, partial(self._network, samples)):
            probs[:, 0, ~reached] = 1
            yield probs, levels

    def levels_of_first_sample(self, number: int, box: Box) -> NDArray[np.float32]:
        """Return the foreground probability in a slice after each level of the first sample, (L, h, w)."""

        def network(numbers: Numbers, images: NDArray[np.float32], frame: Frame) -> list[NDArray[np.float32]]:
            encoding = self.model.encode(self._input(images))
            noise = self._noise(numbers, frame, range(1))
            levels = torch.stack(self.model.sample_levels(encoding, noise, 1), dim=1)[:, :, 0]  # (N, L, K, *size)
            probs = (levels.float() / self.model.calibration.logits).softmax(2)
            return [1 - self._slices(probs[:, :, 0]).cpu().numpy()]

        (((levels,), _),) = self._maps(range(number, number + 1), box, network)
        return levels

    def _assemble(
        self,
        numbers: Numbers,
        box: Box,
        network: Callable[[NDArray[np.float32], Frame], Sequence[NDArray[np.float32]]],
    ) -> tuple[list[NDArray[np.float32]], NDArray[np.bool_]]:
        """Run the network on one frame after another, and put its output on the pixels of the box.

        Overlapping tiles are blended with weights that decrease towards their borders.

        Args:
            numbers: numbers of the slices.
            box: rows and columns to return.
            network: maps images (B, C, h', w') of a frame to maps (B, ..., h', w').

        Returns:
            The maps (B, ..., h, w), and the pixels (h, w) inside any frame.
        """
        rows, columns = box[1:]
        size = rows.stop - rows.start, columns.stop - columns.start
        inside = np.ones(self.stack.stack.grid[1:], np.float32)
        weight = np.zeros(size, np.float32)
        sums: list[NDArray[np.float32]] = []
        for frame in self.frames:
            share = crop(inside, frame, fill=0, interpolation="nearest")  # padding has no weight
            if len(self.frames) > 1:
                share *= np.outer(taper(frame.size[0]), taper(frame.size[1])).astype(np.float32)
            reach = [pixels_of(frame, axis, length) for axis, length in enumerate(inside.shape)]
            here = tuple(
                slice(max(r.start, b.start), min(r.stop, b.stop))
                for r, b in zip(reach, (rows, columns), strict=True)
            )
            back = back_from(frame, here)
            place = tuple(
                slice(h.start - b.start, h.stop - b.start) for h, b in zip(here, (rows, columns), strict=True)
            )
            weight[place] += crop(share, back, fill=0, interpolation="linear")
            images = self.stack.images(np.asarray(numbers), frame, context=self.model.config.context)
            found = network(images, frame)
            sums = sums or [np.zeros((*values.shape[:-2], *size), np.float32) for values in found]
            for total, values in zip(sums, found, strict=True):
                total[..., place[0], place[1]] += crop(share * values, back, fill=0, interpolation="linear")
        reached = weight > 0
        for total in sums:
            total[..., reached] /= weight[reached]
        return sums, reached

    def _network(
        self, samples: range, numbers: Numbers, images: NDArray[np.float32], frame: Frame
    ) -> list[NDArray[np.float32]]:
        """Return probabilities (B, S, K, h, w) and variances (B, L, h, w) of images (B, C, h, w)."""
        encoding = self.model.encode(self._input(images))
        draws = min(self.sampling.level_draws, self.sampling.num_samples)
        drawn = []
        levels = np.zeros((len(images), len(self.level_names), *images.shape[2:]), np.float32)
        for some in self._chunks(samples, len(images)):
            noise = self._noise(numbers, frame, some)
            probs = self._decode(encoding, noise, len(some))
            drawn.append(probs)
            again = range(some.start, min(some.stop, draws))  # the samples of which levels are redrawn
            if not (self.level_names and again):
                continue
            kept = [level[:, : len(again)] for level in noise]
            redrawn = self._noise(numbers, frame, again, redrawn=True)
            for number, control in enumerate(self.levels):
                if not control.hold:
                    mixed = [*kept[:number], redrawn[number], *kept[number + 1 :]]
                    changed = self._decode(encoding, mixed, len(again))
                    levels[:, number] += ((changed[:, :, 0] - probs[:, : len(again), 0]) ** 2).sum(1) / draws / 2
        return [drawn[0] if len(drawn) == 1 else np.concatenate(drawn, axis=1), levels]

    def _chunks(self, samples: range, num_slices: int) -> list[range]:  # noqa: ARG002
        """Return parts of the samples whose noise is drawn together, for a number of slices."""
        return [samples]

    def _decode(self, encoding: Encoding, noise: Sequence[Tensor], num_samples: int) -> NDArray[np.float32]:
        """Return the probabilities (B, S, K, h, w) of noise (N, S, *shape), decoded in chunks."""
        chunks = []
        for start in range(0, num_samples, self.sampling.chunk_size):
            part = [level[:, start : start + self.sampling.chunk_size] for level in noise]
            size = min(self.sampling.chunk_size, num_samples - start)
            logits = self.model.calibration.apply(self.model.decode_samples(encoding, part, size), dim=2)
            chunks.append(self._slices(logits.float().softmax(2)).cpu().numpy())
        return np.concatenate(chunks, axis=1)
