"""Draw samples of single slices: the network processes frames of a slice, and its output is put back on the slice.

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
from phiseg.inference.prepared_stack import PreparedStack
from phiseg.inference.preprocessing import SliceCoupling
from phiseg.inference.slice_noise import Level, SliceNoise
from phiseg.models import Segmenter
from phiseg.models.segmenter import Encoding

OVERLAP = 0.5
"""Overlap of neighbouring tiles as a share of their size."""
Box = tuple[slice, slice, slice]
"""Range of slices, rows and columns of a stack."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Sampling options of a volume."""

    num_samples: int = 32
    """S."""
    seed: int = 0
    """Seed of the samples."""
    noise_length_mm: float | None = None
    """Distance over which the noise of a sample changes along the slices; None uses the length stored with the
    model, or inf. With 0, slices are independent."""
    noise_shared: float | None = None
    """Share of the noise variance that is constant along the slices; None uses the share stored with the model, or
    0 if a length is given."""
    levels: tuple[Level, ...] = ()
    """Changes to the noise of each latent level, fine to coarse; None for no changes."""
    level_draws: int = 8
    """Number of redraws per latent level to attribute the uncertainty to levels; 0 skips this."""
    reach_mm: float | None = None
    """Maximum distance from the point over which a lesion is followed; None is half the longer side of the crop."""
    batch_size: int = 4
    """Number of slices encoded at once. Affects memory use only, not results."""
    chunk_size: int = 16
    """Number of samples per slice decoded at once. Affects memory use only, not results."""

    def __post_init__(self) -> None:
        for name in ("num_samples", "batch_size", "chunk_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for level in self.levels:
            if not (level.temperature >= 0 and isfinite(level.temperature)):
                raise ConfigError(f"the temperature is {level.temperature}; it must be 0 or more")
        if self.level_draws < 0:
            raise ConfigError(f"level_draws is {self.level_draws}; it must be 0 or more")
        if self.noise_length_mm is not None and not self.noise_length_mm >= 0:
            raise ConfigError(f"noise_length_mm is {self.noise_length_mm}; it must be 0 or more, or inf")
        if self.noise_shared is not None and not 0 <= self.noise_shared <= 1:
            raise ConfigError(f"noise_shared is {self.noise_shared}; it must be between 0 and 1")
        if self.reach_mm is not None and not self.reach_mm >= 0:
            raise ConfigError(f"reach_mm is {self.reach_mm}; it must be 0 or more")

    def coupled_like(self, learned: SliceCoupling) -> Self:
        """Return a copy with the length and shared part of the noise filled in if they are not set."""
        if self.noise_length_mm is not None:
            return replace(self, noise_shared=self.noise_shared or 0.0)
        return replace(
            self,
            noise_length_mm=inf if learned.length_mm is None else learned.length_mm,
            noise_shared=learned.shared if self.noise_shared is None else self.noise_shared,
        )


class SliceSampler:
    """Draw samples of single slices as probabilities on the pixels of the stack.

    Args:
        model: network.
        stack: slices.
        sampling: sampling options.
        frames: parts of a slice that the network processes one after another; their positions differ by multiples
            of its stride.
        key: key of the case; cases with different keys have independent noise.
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
        if (row, column) != (0, 0):  # noise of the whole slice, from which tiles are cut
            shapes = model.noise_shapes((row + self.padded[0], column + self.padded[1]))
        for level, takes in zip(sampling.levels, model.takes_temperature, strict=False):
            if level.temperature != 1 and not takes:
                raise ConfigError(
                    f"model '{model.config.name}' has no temperature for this noise, which selects a component "
                    "instead of scaling the spread; use 1"
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
        """Return the offset (down, right) of a frame from the first one in pixels of the network."""
        first = self.frames[0]
        row, column = (round((o - f) / s) for o, f, s in zip(frame.origin, first.origin, frame.step, strict=True))
        return row, column

    def look(self, numbers: Sequence[int], box: Box) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
        """Yield for each slice the probabilities (S, K, h, w) and the variance of each level (L, h, w).

        Args:
            numbers: numbers of the slices.
            box: pixels of the slices to return; those outside all frames are background.
        """
        for start in range(0, len(numbers), self.sampling.batch_size):
            batch = np.array(numbers[start : start + self.sampling.batch_size])
            (probs, levels), reached = self._assemble(batch, box, partial(self._network, batch))
            probs[:, :, 0, ~reached] = 1
            yield from zip(probs, levels, strict=True)

    def levels_of_first_sample(self, number: int, box: Box) -> NDArray[np.float32]:
        """Return the foreground probability in a slice after each level of the first sample, (L, h, w)."""
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
        """Run the network on one frame after another, and put its output on the pixels of the box.

        Overlapping tiles are blended with weights that decrease towards their borders.

        Args:
            batch: numbers of the slices.
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
            share = cut(inside, frame, fill=0, interpolation="nearest")  # padding has no weight
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
        """Return the probabilities (B, S, K, h, w) of noise (B, S, *shape), decoded in chunks."""
        number = noise[0].shape[1] if noise else self.sampling.num_samples
        chunks = []
        for start in range(0, number, self.sampling.chunk_size):
            part = [level[:, start : start + self.sampling.chunk_size] for level in noise]
            size = min(self.sampling.chunk_size, number - start)
            logits = self.model.decode_samples(encoding, part, size) / self.model.calibration.logits
            chunks.append(logits.float().softmax(2).cpu().numpy())
        return np.concatenate(chunks, axis=1)

    def _noise(self, source: SliceNoise, numbers: NDArray[np.int64], frame: Frame) -> list[Tensor]:
        """Return the calibrated noise (B, S, *shape) of a frame of the given slices."""
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
    """Return the frames that cover a slice: a centred one if it is large enough, as in training, otherwise a grid.

    The tiles of a grid start at multiples of the network's stride, so that the noise can be cut in the same way (or
    at multiples of a smaller power of two if the tiles are not larger than the stride).
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
    """Return the pixels of a slice whose centres are inside a frame."""
    edge = frame.origin[axis] - frame.step[axis] / 2
    first, last = edge + 1e-6, edge + frame.step[axis] * frame.size[axis] - 1e-6
    return slice(max(0, int(np.ceil(first))), min(length, int(np.floor(last)) + 1))


def _window(size: tuple[int, int]) -> NDArray[np.float32]:
    """Return weights (h, w) that decrease towards the border, so that tiles are blended without a seam."""
    row, column = (np.sin((np.arange(length) + 0.5) / length * pi) ** 2 + 1e-3 for length in size)
    return np.outer(row, column).astype(np.float32)


def _back(frame: Frame, part: tuple[slice, ...]) -> Frame:
    """Return the frame that extracts some rows and columns of a slice from the network's image."""
    rows, columns = part
    moved = Frame((frame.origin[0] - rows.start, frame.origin[1] - columns.start), frame.step, frame.size)
    return moved.inverse((rows.stop - rows.start, columns.stop - columns.start))
