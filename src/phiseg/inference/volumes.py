"""Samples of a volume, on its own grid.

A model of whole slices runs over all of them, in overlapping tiles where a slice is larger than its images were. A
model of lesion-centred crops is shown a point, and follows the lesion through its slices.

Shapes: N slices of H x W pixels, n of them in a box of h x w pixels, S samples, K classes, L latent levels.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, floor, inf, isfinite, log2, pi
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage
from torch import Tensor
from tqdm import tqdm

from phiseg.core.errors import ConfigError, DataError
from phiseg.imaging.frame import Frame, cut
from phiseg.imaging.volume import Volume, from_slices
from phiseg.inference.preprocessing import PreparedStack, Preprocessing
from phiseg.inference.slice_noise import Level, SliceNoise
from phiseg.metrics import EPSILON
from phiseg.models import Segmenter
from phiseg.models.segmenter import Encoding

OVERLAP = 0.5
"""Of neighbouring tiles, as a share of their size."""
Box = tuple[slice, slice, slice]
"""Slices, rows and columns of a stack."""


@dataclass(frozen=True)
class Prediction:
    """What was sampled of one volume, inside a box of its slices; everything outside of it is background."""

    volume: Volume
    """What was predicted, (I, J, K) or (I, J, K, C)."""
    stack: PreparedStack
    box: Box
    labels: NDArray[np.uint8]
    """(S, n, h, w), the most probable class of every sample."""
    mean_probs: NDArray[np.float32]
    """(K, n, h, w)."""
    mean_log_probs: NDArray[np.float32]
    """(K, n, h, w), the mean over samples of log(probability + eps)."""
    level_variance: NDArray[np.float32] | None
    """(L, n, h, w), how much the foreground's probability varies when the noise of one level is redrawn and that of
    the others is kept, fine to coarse; None for a model with noise of one kind."""
    truncated: NDArray[np.bool_]
    """(S,), whether a sample's lesion is cut off by the crop, by the reach or by the end of the scan."""
    point: tuple[int, int, int] | None
    """(slice, row, column) that a model of lesion-centred crops was shown."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names, the background first."""
        return self.stack.preprocessing.classes

    def voxel(self, number: int, row: int, column: int) -> tuple[int, int, int]:
        """Return the voxel (i, j, k) of the volume at a slice, row and column of the stack."""
        place = np.linalg.inv(self.volume.affine) @ self.stack.stack.affine @ [number, row, column, 1]
        i, j, k = (int(index) for index in np.rint(place[:3]))
        return i, j, k

    def on_grid(self, values: NDArray[np.generic], *, outside: float = 0) -> Volume:
        """Put values of the box, (n, h, w) or (n, h, w, C), onto the grid of the volume.

        Args:
            values: of the box.
            outside: what the rest of the volume gets.
        """
        full = np.full((*self.stack.stack.grid, *values.shape[3:]), outside, dtype=values.dtype)
        full[self.box] = values
        return from_slices(full, self.stack.plane, like=self.volume)

    @property
    def gamma(self) -> NDArray[np.float32]:
        """The gamma map (n, h, w): where the samples disagree."""
        gamma: NDArray[np.float32] = -(self.mean_probs * self.mean_log_probs).sum(0)
        return gamma

    @property
    def consensus(self) -> NDArray[np.uint8]:
        """The most probable class of the mean prediction, (n, h, w)."""
        most_probable: NDArray[np.uint8] = self.mean_probs.argmax(0).astype(np.uint8)
        return most_probable


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How a volume is sampled."""

    num_samples: int = 32
    """S."""
    seed: int = 0
    """The same seed gives the same samples of the same case."""
    noise_length_mm: float = inf
    """How soon a sample's noise changes along the slices; by default never. 0: every slice by itself."""
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
        if not self.noise_length_mm >= 0:
            raise ConfigError(f"noise_length_mm is {self.noise_length_mm}; give 0 or more, or inf")
        if self.reach_mm is not None and not self.reach_mm >= 0:
            raise ConfigError(f"reach_mm is {self.reach_mm}; give 0 or more")


def predict_volume(
    model: Segmenter,
    volume: Volume,
    *,
    point: Sequence[float] | None = None,
    slices: range | None = None,
    sampling: Sampling | None = None,
    name: str = "volume",
    progress: bool = False,
) -> Prediction:
    """Draw samples of a volume.

    Args:
        model: in evaluation mode, on any device.
        volume: (I, J, K) or (I, J, K, C), in the unit of the model's training images (HU for CT).
        point: (i, j, k), a place inside the lesion in voxels of the volume; models of lesion-centred crops need it.
        slices: neighbouring slices in the model's plane that a model of whole slices looks at; by default all.
        sampling: how.
        name: what errors call the volume.
        progress: show a progress bar over the slices.

    Raises:
        DataError: the volume does not fit the model, or the point lies outside of it.
        ConfigError: a point is missing, or given to a model of whole slices; there are no such slices.
    """
    sampling = sampling or Sampling()
    preprocessing = Preprocessing.of(model)
    check_point(preprocessing, point, name=name)
    stack = PreparedStack.of(volume, preprocessing, name=name)
    every = range(stack.stack.grid[0])
    numbers = every if slices is None else slices
    if point is not None and slices is not None:
        raise ConfigError(f"{name}: a lesion is followed from its point; choose no slices")
    if not numbers or numbers.step != 1 or numbers[0] not in every or numbers[-1] not in every:
        raise ConfigError(f"{name}: slices {numbers} are not neighbours among the {len(every)} of the scan")
    bar: tqdm[Any] = tqdm(desc=name, unit="slice", leave=False, disable=not progress, dynamic_ncols=True)
    with bar, torch.inference_mode():
        if point is None:
            return _predict_slices(
                _Slices(model, stack, sampling, _tiles(stack, model.stride)), volume, numbers, bar
            )
        place = _to_stack(volume, stack, point)
        frame = Frame.centred(place[1:], preprocessing.size, stack.step)
        return _predict_lesion(_Slices(model, stack, sampling, [frame]), volume, place, bar)


def check_point(preprocessing: Preprocessing, point: object | None, *, name: str) -> None:
    """Refuse a point for a model of whole slices, and a model of lesion-centred crops without one."""
    if preprocessing.centred_on is None and point is not None:
        raise ConfigError(f"the model looks at whole slices and takes no point; predict {name} without one")
    if preprocessing.centred_on is not None and point is None:
        raise ConfigError(
            f"the model looks at crops around a {preprocessing.centred_on}; say where one is in {name} (--at x,y,z)"
        )


class _Slices:
    """The samples of single slices, as probabilities on the pixels of the stack.

    Args:
        model: the network.
        stack: the slices.
        sampling: how.
        frames: what the network is shown of a slice, one after another; their places differ by multiples of its
            stride.
    """

    def __init__(self, model: Segmenter, stack: PreparedStack, sampling: Sampling, frames: Sequence[Frame]) -> None:
        self.model, self.stack, self.sampling, self.frames = model, stack, sampling, frames
        self.device = next(model.parameters()).device
        size = stack.preprocessing.size
        self.padded = model.padded_size(size)
        self.tile_shapes = model.noise_shapes(size)
        row, column = (max(self._offset(frame)[axis] for frame in frames) for axis in (0, 1))
        shapes = self.tile_shapes
        if (row, column) != (0, 0):  # noise for the whole slice, of which every tile has its part
            shapes = model.noise_shapes((row + self.padded[0], column + self.padded[1]))
        self.num_levels = len(shapes) if sampling.level_draws and len(shapes) > 1 else 0
        source = partial(
            SliceNoise, shapes, seed=sampling.seed, length_mm=sampling.noise_length_mm, levels=sampling.levels
        )
        self.noise = source(num_samples=sampling.num_samples, keys=())
        self.redrawn = source(num_samples=max(1, sampling.level_draws), keys=("redrawn",))

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
            reach = [_reach(frame, axis, length) for axis, length in enumerate(inside.shape)]
            here = tuple(
                slice(max(r.start, b.start), min(r.stop, b.stop))
                for r, b in zip(reach, (rows, columns), strict=True)
            )
            back = _back(frame, here)
            place = tuple(
                slice(h.start - b.start, h.stop - b.start) for h, b in zip(here, (rows, columns), strict=True)
            )
            weight[place] += cut(share, back, fill=0, interpolation="linear")
            found = network(self.stack.images(batch, frame), frame)
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
        levels = np.zeros((len(images), self.num_levels, *images.shape[2:]), np.float32)
        if self.num_levels:
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


def _predict_slices(slices: _Slices, volume: Volume, numbers: range, bar: "tqdm[Any]") -> Prediction:
    """Run over slices, keeping nothing of a slice but what is returned."""
    stack, num_samples = slices.stack, slices.sampling.num_samples
    depth, (height, width) = len(numbers), stack.stack.grid[1:]
    box = (slice(numbers.start, numbers.stop), slice(0, height), slice(0, width))
    bar.total = depth
    labels = np.zeros((num_samples, depth, height, width), np.uint8)
    mean_probs = np.zeros((len(stack.preprocessing.classes), depth, height, width), np.float32)
    mean_log_probs = np.zeros_like(mean_probs)
    variance = np.zeros((slices.num_levels, depth, height, width), np.float32)
    for number, (probs, levels) in enumerate(slices.look(numbers, box)):
        labels[:, number], mean_probs[:, number], mean_log_probs[:, number] = _summary(probs)
        variance[:, number] = levels
        bar.update()
    levels_or_none = variance if slices.num_levels else None
    whole = np.zeros(num_samples, dtype=bool)
    return Prediction(volume, stack, box, labels, mean_probs, mean_log_probs, levels_or_none, whole, None)


def _predict_lesion(slices: _Slices, volume: Volume, point: tuple[int, int, int], bar: "tqdm[Any]") -> Prediction:
    """Follow a lesion from its point through the slices, until no sample has any of it in two slices running.

    Of each sample the piece nearest to the point is kept. Mean and gamma are those of all samples, as the network
    gave them, where any sample kept something and around it; everywhere else there is background.
    """
    stack, sampling, frame = slices.stack, slices.sampling, slices.frames[0]
    centre = point[0]
    depth = stack.stack.grid[0]
    rows, columns = (_reach(frame, axis, stack.stack.grid[1 + axis]) for axis in (0, 1))
    sizes = zip(frame.size, frame.step, stack.stack.spacing_mm[1:], strict=True)
    reach = max(n * step * mm for n, step, mm in sizes) / 2 if sampling.reach_mm is None else sampling.reach_mm
    far = int(min(reach / stack.stack.spacing_mm[0], depth) + 1e-6)
    box = (slice(centre, centre + 1), rows, columns)
    found: dict[int, tuple[NDArray[np.float32], NDArray[np.float32]]] = {}

    def follow(numbers: Sequence[int], num_empty: NDArray[np.int64]) -> NDArray[np.int64]:
        """Look at slices in their order; return in how many running, up to the last, each sample had nothing."""
        for number, (probs, levels) in zip(numbers, slices.look(numbers, box), strict=False):
            found[number] = probs, levels
            bar.update()
            num_empty = np.where((probs.argmax(1) > 0).any((1, 2)), 0, num_empty + 1)
            if (num_empty > 1).all():
                break
        return num_empty

    at_point = follow([centre], np.zeros(sampling.num_samples, np.int64))
    follow(range(centre + 1, min(centre + far + 1, depth)), at_point)
    follow(range(centre - 1, max(centre - far - 1, -1), -1), at_point)
    numbers = sorted(found)
    probs = np.stack([found[number][0] for number in numbers], axis=2)  # (S, K, n, h, w)
    labels = probs.argmax(1).astype(np.uint8)
    drawn = (labels > 0).any(0)
    place = (centre - numbers[0], point[1] - rows.start, point[2] - columns.start)
    for sample in labels:
        sample[~_nearest_piece(sample > 0, place, stack.stack.spacing_mm)] = 0
    touched = (labels > 0).any(0)
    around = ndimage.binary_dilation(touched, np.ones((1, 3, 3), dtype=bool), iterations=2) & (touched | ~drawn)
    mean_probs, mean_log_probs = (probs.mean(0), np.log(probs + EPSILON).mean(0))
    mean_probs[:, ~around] = np.eye(len(mean_probs), 1, dtype=np.float32)
    mean_log_probs[0, ~around] = 0
    variance = None
    if slices.num_levels:
        variance = np.stack([found[number][1] for number in numbers], axis=1) * around
    ends = [
        numbers.index(n) for n in (centre - far, centre + far, 0, depth - 1) if n in found and far and depth > 1
    ]
    sides = [(rows.start, rows.stop, stack.stack.grid[1]), (columns.start, columns.stop, stack.stack.grid[2])]
    cut_off = _touches(labels > 0, ends, [(first > 0, last < length) for first, last, length in sides])
    box = (slice(numbers[0], numbers[-1] + 1), rows, columns)
    return Prediction(volume, stack, box, labels, mean_probs, mean_log_probs, variance, cut_off, point)


def _nearest_piece(
    mask: NDArray[np.bool_], place: tuple[int, int, int], spacing_mm: tuple[float, float, float]
) -> NDArray[np.bool_]:
    """Return the piece of a mask (n, h, w) that is nearest to a place; an empty slice within does not divide it."""
    if not mask.any():
        return mask
    bridged = mask.copy()
    bridged[1:] |= mask[:-1]
    pieces, _ = ndimage.label(bridged)
    voxels = np.argwhere(mask)
    nearest = voxels[(((voxels - place) * spacing_mm) ** 2).sum(1).argmin()]
    piece: NDArray[np.bool_] = mask & (pieces == pieces[tuple(nearest)])
    return piece


def _touches(
    masks: NDArray[np.bool_], slices: Sequence[int], sides: Sequence[tuple[bool, bool]]
) -> NDArray[np.bool_]:
    """Tell which masks (S, n, h, w) have something in some slices, or at those sides of the picture that count.

    Args:
        masks: of the samples.
        slices: which.
        sides: whether the first and the last row count, and the first and the last column.
    """
    (top, bottom), (left, right) = sides
    borders = ((masks[:, :, 0], top), (masks[:, :, -1], bottom), (masks[..., 0], left), (masks[..., -1], right))
    parts = [masks[:, list(slices)].any((1, 2, 3)), *(border.any((1, 2)) for border, counts in borders if counts)]
    touching: NDArray[np.bool_] = np.any(parts, axis=0)
    return touching


def _summary(probs: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.float32]]:
    """Reduce probabilities (S, K, h, w) to labels (S, h, w), and the means of probabilities and logs (K, h, w)."""
    return probs.argmax(1).astype(np.uint8), probs.mean(0), np.log(probs + EPSILON).mean(0)


def level_outputs(
    model: Segmenter,
    volume: Volume,
    *,
    point: Sequence[float] | None = None,
    slice_number: int = 0,
    sampling: Sampling | None = None,
    name: str = "volume",
) -> NDArray[np.float32]:
    """Return the foreground's probability after each level of the first sample in one slice, (L, h, w).

    A model without a hierarchy has one level: its sample.

    Args:
        model: as for `predict_volume`, whose first sample it is.
        volume: likewise.
        point: likewise.
        sampling: likewise.
        name: likewise.
        slice_number: the slice, for a model of whole slices; else it is that of the point.

    Returns:
        Fine to coarse.
    """
    stack = PreparedStack.of(volume, Preprocessing.of(model), name=name)
    frames, rows, columns = (
        _tiles(stack, model.stride),
        slice(0, stack.stack.grid[1]),
        slice(0, stack.stack.grid[2]),
    )
    if point is not None:
        slice_number, row, column = _to_stack(volume, stack, point)
        frames = [Frame.centred((row, column), stack.preprocessing.size, stack.step)]
        rows, columns = (_reach(frames[0], axis, stack.stack.grid[1 + axis]) for axis in (0, 1))
    sampler = _Slices(model, stack, sampling or Sampling(), frames)
    with torch.inference_mode():
        return sampler.levels_of_first_sample(slice_number, (slice(slice_number, slice_number + 1), rows, columns))


def _tiles(stack: PreparedStack, stride: int) -> list[Frame]:
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


def _window(size: tuple[int, int]) -> NDArray[np.float32]:
    """Return weights (h, w) that fall towards the border, so that tiles pass into each other without a seam."""
    row, column = (np.sin((np.arange(length) + 0.5) / length * pi) ** 2 + 1e-3 for length in size)
    return np.outer(row, column).astype(np.float32)


def _back(frame: Frame, part: tuple[slice, ...]) -> Frame:
    """Return the frame that takes some rows and columns of a slice out of the network's image."""
    rows, columns = part
    moved = Frame((frame.origin[0] - rows.start, frame.origin[1] - columns.start), frame.step, frame.size)
    return moved.inverse((rows.stop - rows.start, columns.stop - columns.start))


def _reach(frame: Frame, axis: int, length: int) -> slice:
    """Return the pixels of a slice that a frame touches."""
    first = frame.origin[axis]
    last = first + frame.step[axis] * (frame.size[axis] - 1)
    return slice(max(0, int(np.floor(first))), min(length, int(np.ceil(last)) + 1))


def _to_stack(volume: Volume, stack: PreparedStack, point: Sequence[float]) -> tuple[int, int, int]:
    """Return the (slice, row, column) of a voxel of the volume."""
    if len(point) != 3 or not np.isfinite(point).all():
        raise DataError(f"{stack.name}: a point needs three finite numbers, got {tuple(point)}")
    if any(not -0.5 <= place < number - 0.5 for place, number in zip(point, volume.grid, strict=True)):
        shape = " x ".join(map(str, volume.grid))
        given = ", ".join(f"{place:g}" for place in point)
        raise DataError(f"{stack.name}: the point ({given}) lies outside of the scan's {shape} voxels; check --at")
    world = volume.world(np.asarray(point, dtype=np.float64))
    place = np.linalg.inv(stack.stack.affine) @ [*world, 1]
    nearest = np.clip(np.rint(place[:3]), 0, np.array(stack.stack.grid) - 1)  # half a voxel may be rounded outwards
    number, row, column = (int(value) for value in nearest)
    return number, row, column
