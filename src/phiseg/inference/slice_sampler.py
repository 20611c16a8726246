"""Samples of single slices: the network is shown frames of them, and what it says goes back onto their pixels.

Shapes: H x W pixels of a slice, h x w of a box of it, B slices at once, S samples, K classes, L latent levels.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, floor, inf, isfinite, log2, pi
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from phiseg.core.errors import ConfigError
from phiseg.imaging.frame import Frame, cut
from phiseg.inference.preprocessing import PreparedStack, SliceCoupling
from phiseg.inference.slice_noise import Level, SliceNoise
from phiseg.models import Segmenter
from phiseg.models.segmenter import Encoding

OVERLAP = 0.5
"""Of neighbouring tiles, as a share of their size."""
Box = tuple[slice, slice, slice]
"""Slices, rows and columns of a stack."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How a volume is sampled."""

    num_samples: int = 32
    """S."""
    seed: int = 0
    """The same seed gives the same samples of the same case."""
    noise_length_mm: float | None = None
    """How soon a sample's noise changes along the slices; by default what the model's folder says, else never. 0:
    every slice by itself."""
    noise_shared: float | None = None
    """Share of the noise's variance that does not change along the slices; by default what the model's folder says,
    or 0 where a length is given."""
    levels: tuple[Level, ...] = ()
    """What is done to the noise of each latent level, fine to coarse; nothing if not given."""
    level_draws: int = 8
    """Redraws of each latent level, for the share of the uncertainty that it causes; 0 leaves that out."""
    reach_mm: float | None = None
    """How far from its point a lesion is followed through the slices; by default as far as the crop reaches."""
    batch_size: int = 4
    """Slices encoded at once; a matter of memory, not of results."""
    chunk_size: int = 16
    """Samples of each slice decoded at once; a matter of memory, not of results."""

    def __post_init__(self) -> None:
        for name in ("num_samples", "batch_size", "chunk_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; give at least 1")
        for level in self.levels:
            if not (level.temperature >= 0 and isfinite(level.temperature)):
                raise ConfigError(f"a temperature of {level.temperature}; give a number from 0 on")
        if self.level_draws < 0:
            raise ConfigError(f"level_draws is {self.level_draws}; give 0 or more")
        if self.noise_length_mm is not None and not self.noise_length_mm >= 0:
            raise ConfigError(f"noise_length_mm is {self.noise_length_mm}; give 0 or more, or inf")
        if self.noise_shared is not None and not 0 <= self.noise_shared <= 1:
            raise ConfigError(f"noise_shared is {self.noise_shared}; give a number from 0 to 1")
        if self.reach_mm is not None and not self.reach_mm >= 0:
            raise ConfigError(f"reach_mm is {self.reach_mm}; give 0 or more")

    def coupled_like(self, learned: SliceCoupling) -> Self:
        """Return the same with the noise's length and shared part filled in where they are not set."""
        if self.noise_length_mm is not None:
            return replace(self, noise_shared=self.noise_shared or 0.0)
        return replace(
            self,
            noise_length_mm=inf if learned.length_mm is None else learned.length_mm,
            noise_shared=learned.shared if self.noise_shared is None else self.noise_shared,
        )


class SliceSampler:
    """The samples of single slices, as probabilities on the pixels of the stack.

    Args:
        model: the network.
        stack: the slices.
        sampling: how.
        frames: what the network is shown of a slice, one after another; their places differ by multiples of its
            stride.
        key: of the case; cases with different keys have independent noise.
    """

    def __init__(
        self, model: Segmenter, stack: PreparedStack, sampling: Sampling, frames: Sequence[Frame], *, key: str
    ) -> None:
        sampling = sampling.coupled_like(stack.preprocessing.slice_coupling)
        assert sampling.noise_length_mm is not None
        assert sampling.noise_shared is not None
        self.model, self.stack, self.sampling, self.frames = model, stack, sampling, frames
        self.device = next(model.parameters()).device
        size = stack.preprocessing.size
        self.padded = model.padded_size(size)
        self.tile_shapes = model.noise_shapes(size)
        row, column = (max(self._offset(frame)[axis] for frame in frames) for axis in (0, 1))
        shapes = self.tile_shapes
        if (row, column) != (0, 0):  # noise for the whole slice, of which every tile has its part
            shapes = model.noise_shapes((row + self.padded[0], column + self.padded[1]))
        for level, takes in zip(sampling.levels, model.takes_temperature, strict=False):
            if level.temperature != 1 and not takes:
                raise ConfigError(
                    f"model '{model.config.name}' takes no temperature on this noise, which selects instead of "
                    "spreading samples; leave it at 1"
                )
        self.level_names = model.noise_names if sampling.level_draws and len(shapes) > 1 else ()
        source = partial(
            SliceNoise,
            shapes,
            seed=sampling.seed,
            length_mm=sampling.noise_length_mm,
            shared=sampling.noise_shared,
            levels=sampling.levels,
        )
        self.noise = source(num_samples=sampling.num_samples, keys=(key,))
        self.redrawn = source(num_samples=max(1, sampling.level_draws), keys=(key, "redrawn"))

    def _offset(self, frame: Frame) -> tuple[int, int]:
        """Return how many pixels of the network a frame lies below and to the right of the first one."""
        first = self.frames[0]
        row, column = (round((o - f) / s) for o, f, s in zip(frame.origin, first.origin, frame.step, strict=True))
        return row, column

    def look(self, numbers: Sequence[int], box: Box) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
        """Yield, for each of some slices, probabilities (S, K, h, w) and the variance of each level (L, h, w).

        Args:
            numbers: of the slices.
            box: the pixels of the slices that are wanted; those that no frame reaches are background.
        """
        for start in range(0, len(numbers), self.sampling.batch_size):
            batch = np.array(numbers[start : start + self.sampling.batch_size])
            (probs, levels), reached = self._assemble(batch, box, partial(self._network, batch))
            probs[:, :, 0, ~reached] = 1
            yield from zip(probs, levels, strict=True)

    def levels_of_first_sample(self, number: int, box: Box) -> NDArray[np.float32]:
        """Return the foreground's probability in a slice after each level of the first sample, (L, h, w)."""
        batch = np.array([number])

        def network(images: NDArray[np.float32], frame: Frame) -> list[NDArray[np.float32]]:
            encoding = self.model.encode(torch.from_numpy(images).to(self.device))
            noise = [level[:, :1] for level in self._noise(self.noise, batch, frame)]
            levels = torch.stack(self.model.sample_levels(encoding, noise, 1), dim=1)[:, :, 0]  # (1, L, K, h, w)
            probs = (levels.float() / self.model.calibration.logits).softmax(2)
            return [1 - probs[:, :, 0].cpu().numpy()]

        (levels,), _ = self._assemble(batch, box, network)
        first: NDArray[np.float32] = levels[0]
        return first

    def _assemble(
        self,
        batch: NDArray[np.int64],
        box: Box,
        network: Callable[[NDArray[np.float32], Frame], Sequence[NDArray[np.float32]]],
    ) -> tuple[list[NDArray[np.float32]], NDArray[np.bool_]]:
        """Show the network one frame after another, and put what it returns onto the pixels of the box.

        Where tiles overlap, their weights fall towards their borders.

        Args:
            batch: numbers of the slices.
            box: whose rows and columns are wanted.
            network: turns images (B, C, h', w') of a frame into maps (B, ..., h', w').

        Returns:
            The maps (B, ..., h, w), and the pixels (h, w) that any frame reaches.
        """
        rows, columns = box[1:]
        size = rows.stop - rows.start, columns.stop - columns.start
        inside = np.ones(self.stack.stack.grid[1:], np.float32)
        weight = np.zeros(size, np.float32)
        sums: list[NDArray[np.float32]] = []
        for frame in self.frames:
            share = cut(inside, frame, fill=0, interpolation="nearest")  # what was padded counts for nothing
            if len(self.frames) > 1:
                share *= _window(frame.size)
            reach = [pixels_of(frame, axis, length) for axis, length in enumerate(inside.shape)]
            here = tuple(
                slice(max(r.start, b.start), min(r.stop, b.stop))
                for r, b in zip(reach, (rows, columns), strict=True)
            )
            back = _back(frame, here)
            place = tuple(
                slice(h.start - b.start, h.stop - b.start) for h, b in zip(here, (rows, columns), strict=True)
            )
            weight[place] += cut(share, back, fill=0, interpolation="linear")
            found = network(self.stack.images(batch, frame, context=self.model.config.context), frame)
            sums = sums or [np.zeros((*values.shape[:-2], *size), np.float32) for values in found]
            for total, values in zip(sums, found, strict=True):
                total[..., place[0], place[1]] += cut(share * values, back, fill=0, interpolation="linear")
        reached = weight > 0
        for total in sums:
            total[..., reached] /= weight[reached]
        return sums, reached

    def _network(
        self, numbers: NDArray[np.int64], images: NDArray[np.float32], frame: Frame
    ) -> list[NDArray[np.float32]]:
        """Return probabilities (B, S, K, h, w) and variances (B, L, h, w) of network images (B, C, h, w)."""
        encoding = self.model.encode(torch.from_numpy(images).to(self.device))
        noise = self._noise(self.noise, numbers, frame)
        probs = self._decode(encoding, noise)
        draws = min(self.sampling.level_draws, self.sampling.num_samples)
        levels = np.zeros((len(images), len(self.level_names), *images.shape[2:]), np.float32)
        if self.level_names:
            kept = [level[:, :draws] for level in noise]
            redrawn = [level[:, :draws] for level in self._noise(self.redrawn, numbers, frame)]
            for number, control in enumerate(self.noise.levels):
                if not control.hold:
                    changed = self._decode(encoding, [*kept[:number], redrawn[number], *kept[number + 1 :]])
                    levels[:, number] = ((changed[:, :, 0] - probs[:, :draws, 0]) ** 2).mean(1) / 2
        return [probs, levels]

    def _decode(self, encoding: Encoding, noise: Sequence[Tensor]) -> NDArray[np.float32]:
        """Return the probabilities (B, S, K, h, w) of noise (B, S, *shape), some samples at a time."""
        number = noise[0].shape[1] if noise else self.sampling.num_samples
        chunks = []
        for start in range(0, number, self.sampling.chunk_size):
            part = [level[:, start : start + self.sampling.chunk_size] for level in noise]
            size = min(self.sampling.chunk_size, number - start)
            logits = self.model.decode_samples(encoding, part, size) / self.model.calibration.logits
            chunks.append(logits.float().softmax(2).cpu().numpy())
        return np.concatenate(chunks, axis=1)

    def _noise(self, source: SliceNoise, numbers: NDArray[np.int64], frame: Frame) -> list[Tensor]:
        """Return the calibrated noise (B, S, *shape) of a frame of some slices."""
        distance = self.stack.stack.spacing_mm[0]
        offset = self._offset(frame)
        levels = []
        for shape, level in zip(
            self.tile_shapes,
            zip(*(source.at(float(number) * distance) for number in numbers), strict=True),
            strict=True,
        ):
            noise = torch.cat(level)
            if noise.shape[2:] != shape:
                row, column = (o * n // p for o, n, p in zip(offset, shape[-2:], self.padded, strict=True))
                noise = noise[..., row : row + shape[-2], column : column + shape[-1]]
            levels.append(noise.to(self.device))
        return self.model.temper(levels)


def tiles(stack: PreparedStack, stride: int) -> list[Frame]:
    """Return the frames that cover a slice: one around its middle where it fits, as in training, else a grid.

    The tiles of a grid begin at multiples of the network's stride, so that its noise can be cut along with them (of
    a smaller power of two where they are no larger than that).
    """
    axes = []
    for length, size, step in zip(stack.stack.grid[1:], stack.preprocessing.size, stack.step, strict=True):
        whole = ceil(length / step - 1e-6)  # pixels of the network
        spare = max(0, whole - size)
        first = (length - 1) / 2 - step * (max(whole, size) - 1) / 2
        first = float(np.floor(first)) if step == 1 else first
        grain = min(stride, 2 ** floor(log2(size / 2)) if size > 1 else 1)
        steps = ceil(spare / grain)
        number = ceil(spare / (size * (1 - OVERLAP)))
        places = sorted({grain * round(steps * n / number) for n in range(number + 1)}) if number else [0]
        axes.append([first + step * place for place in places])
    return [Frame((row, column), stack.step, stack.preprocessing.size) for row in axes[0] for column in axes[1]]


def pixels_of(frame: Frame, axis: int, length: int) -> slice:
    """Return the pixels of a slice whose centre lies inside of a frame."""
    edge = frame.origin[axis] - frame.step[axis] / 2
    first, last = edge + 1e-6, edge + frame.step[axis] * frame.size[axis] - 1e-6
    return slice(max(0, int(np.ceil(first))), min(length, int(np.floor(last)) + 1))


def _window(size: tuple[int, int]) -> NDArray[np.float32]:
    """Return weights (h, w) that fall towards the border, so that tiles pass into each other without a seam."""
    row, column = (np.sin((np.arange(length) + 0.5) / length * pi) ** 2 + 1e-3 for length in size)
    return np.outer(row, column).astype(np.float32)


def _back(frame: Frame, part: tuple[slice, ...]) -> Frame:
    """Return the frame that takes some rows and columns of a slice out of the network's image."""
    rows, columns = part
    moved = Frame((frame.origin[0] - rows.start, frame.origin[1] - columns.start), frame.step, frame.size)
    return moved.inverse((rows.stop - rows.start, columns.stop - columns.start))
