"""Samples of a volume, on its own grid.

A model of whole slices runs over all of them, in overlapping tiles where a slice is larger than its images were. A
model of lesion-centred crops is shown a point, and follows the lesion through its slices.

Shapes: N slices of H x W pixels, n of them in a box of h x w pixels, S samples, K classes, L latent levels.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, inf, pi
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
from phiseg.models.phiseg import PHiSeg
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
    """(L, n, h, w), how much the foreground's probability varies when one level alone is redrawn, fine to coarse;
    None for a model without a hierarchy."""
    point: tuple[int, int, int] | None
    """(slice, row, column) that a model of lesion-centred crops was shown."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names, the background first."""
        return self.stack.preprocessing.classes

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

    num_samples: int = 16
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
        name: what errors call the volume; another name has other samples.
        progress: show a progress bar over the slices.

    Raises:
        DataError: the volume does not fit the model, or the point lies outside of it.
        ConfigError: a point is missing, or given to a model of whole slices.
    """
    sampling = sampling or Sampling()
    preprocessing = Preprocessing.of(model)
    check_point(preprocessing, point, name=name)
    stack = PreparedStack.of(volume, preprocessing, name=name)
    sampler = _Slices(model, stack, sampling)
    bar: tqdm[Any] = tqdm(desc=name, unit="slice", leave=False, disable=not progress, dynamic_ncols=True)
    with bar, torch.inference_mode():
        if point is None:
            return _predict_slices(sampler, volume, slices or range(stack.stack.grid[0]), bar)
        return _predict_lesion(sampler, volume, _to_stack(volume, stack, point), bar)


def check_point(preprocessing: Preprocessing, point: object | None, *, name: str) -> None:
    """Refuse a point for a model of whole slices, and a model of lesion-centred crops without one."""
    if preprocessing.centred_on is None and point is not None:
        raise ConfigError(f"the model looks at whole slices and takes no point; predict {name} without one")
    if preprocessing.centred_on is not None and point is None:
        raise ConfigError(
            f"the model looks at crops around a {preprocessing.centred_on}; say where one is in {name} (--at x,y,z)"
        )


class _Slices:
    """The samples of single slices, as probabilities on the pixels of the stack."""

    def __init__(self, model: Segmenter, stack: PreparedStack, sampling: Sampling) -> None:
        self.model, self.stack, self.sampling = model, stack, sampling
        self.device = next(model.parameters()).device
        shapes = model.noise_shapes(stack.preprocessing.size)
        self.num_levels = len(shapes) if isinstance(model, PHiSeg) and sampling.level_draws else 0
        source = partial(
            SliceNoise, shapes, seed=sampling.seed, length_mm=sampling.noise_length_mm, levels=sampling.levels
        )
        self.noise = source(num_samples=sampling.num_samples, keys=(stack.name,))
        self.redrawn = source(num_samples=sampling.level_draws, keys=(stack.name, "redrawn"))

    def look(
        self, numbers: Sequence[int], frames: Sequence[Frame], box: Box
    ) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
        """Yield, for each of some slices, probabilities (S, K, h, w) and the variance of each level (L, h, w).

        Args:
            numbers: of the slices.
            frames: what the network is shown of a slice, one after another.
            box: the pixels of the slices that are wanted; those that no frame reaches are background.
        """
        for start in range(0, len(numbers), self.sampling.batch_size):
            batch = np.array(numbers[start : start + self.sampling.batch_size])
            (probs, levels), reached = self._assemble(batch, frames, box, partial(self._network, batch))
            probs[:, :, 0, ~reached] = 1
            yield from zip(probs, levels, strict=True)

    def levels_of_first_sample(self, number: int, frames: Sequence[Frame], box: Box) -> NDArray[np.float32]:
        """Return the foreground's probability in a slice after each level of the first sample, (L, h, w)."""
        batch = np.array([number])

        def network(images: NDArray[np.float32]) -> list[NDArray[np.float32]]:
            encoding = self.model.encode(torch.from_numpy(images).to(self.device))
            noise = [level[:, :1] for level in self._noise(self.noise, batch)]
            levels = torch.stack(self.model.sample_levels(encoding, noise, 1), dim=1)[:, :, 0]  # (1, L, K, h, w)
            probs = (levels.float() / self.model.calibration.logits).softmax(2)
            return [1 - probs[:, :, 0].cpu().numpy()]

        (levels,), _ = self._assemble(batch, frames, box, network)
        first: NDArray[np.float32] = levels[0]
        return first

    def _assemble(
        self,
        batch: NDArray[np.int64],
        frames: Sequence[Frame],
        box: Box,
        network: Callable[[NDArray[np.float32]], Sequence[NDArray[np.float32]]],
    ) -> tuple[list[NDArray[np.float32]], NDArray[np.bool_]]:
        """Show the network one frame after another, and put what it returns onto the pixels of the box.

        Args:
            batch: numbers of the slices.
            frames: where tiles overlap, their weights fall towards their borders.
            box: whose rows and columns are wanted.
            network: turns images (B, C, h', w') into maps (B, ..., h', w').

        Returns:
            The maps (B, ..., h, w), and the pixels (h, w) that any frame reaches.
        """
        rows, columns = box[1:]
        size = rows.stop - rows.start, columns.stop - columns.start
        inside = np.ones(self.stack.stack.grid[1:], np.float32)
        weight = np.zeros(size, np.float32)
        sums: list[NDArray[np.float32]] = []
        for frame in frames:
            share = cut(inside, frame, fill=0, interpolation="nearest")  # what was padded counts for nothing
            if len(frames) > 1:
                share *= _window(frame.size)
            back = _back(frame, rows.start, columns.start, size)
            weight += cut(share, back, fill=0, interpolation="linear")
            found = network(self.stack.images(batch, frame))
            parts = [cut(share * values, back, fill=0, interpolation="linear") for values in found]
            sums = [total + part for total, part in zip(sums, parts, strict=True)] if sums else parts
        reached = weight > 0
        for total in sums:
            total[..., reached] /= weight[reached]
        return sums, reached

    def _network(
        self, numbers: NDArray[np.int64], images: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return probabilities (B, S, K, h, w) and variances (B, L, h, w) of network images (B, C, h, w)."""
        encoding = self.model.encode(torch.from_numpy(images).to(self.device))
        noise = self._noise(self.noise, numbers)
        chunks = []
        for start in range(0, self.sampling.num_samples, self.sampling.chunk_size):
            part = [level[:, start : start + self.sampling.chunk_size] for level in noise]
            number = min(self.sampling.chunk_size, self.sampling.num_samples - start)
            logits = self.model.decode_samples(encoding, part, number) / self.model.calibration.logits
            chunks.append(logits.float().softmax(2).cpu())
        levels = np.zeros((len(images), 0, *images.shape[2:]), np.float32)
        if isinstance(self.model, PHiSeg) and self.num_levels:
            redrawn = [
                held if level.hold else other
                for level, held, other in zip(
                    self.noise.levels, noise, self._noise(self.redrawn, numbers), strict=True
                )
            ]
            levels = self._level_variance(self.model, encoding, noise, redrawn)
        return torch.cat(chunks, dim=1).numpy(), levels

    def _level_variance(
        self, model: PHiSeg, encoding: Encoding, noise: Sequence[Tensor], redrawn: Sequence[Tensor]
    ) -> NDArray[np.float32]:
        """Return half the mean square of the change: the variance given the other levels, (B, L, h, w)."""
        draws, step = min(self.sampling.level_draws, self.sampling.num_samples), self.sampling.chunk_size
        parts = [slice(start, min(start + step, draws)) for start in range(0, draws, step)]
        changes = [
            _changes(model, encoding, [level[:, part] for level in noise], [level[:, part] for level in redrawn])
            for part in parts
        ]
        return (torch.cat(changes, dim=1).square().mean(1) / 2).numpy()

    def _noise(self, source: SliceNoise, numbers: NDArray[np.int64]) -> list[Tensor]:
        distance = self.stack.stack.spacing_mm[0]
        at_slices = zip(*(source.at(float(number) * distance) for number in numbers), strict=True)
        return self.model.temper([torch.cat(level).to(self.device) for level in at_slices])


def _changes(model: PHiSeg, encoding: Encoding, noise: Sequence[Tensor], redrawn: Sequence[Tensor]) -> Tensor:
    """Return how much the foreground's probability changes when one level is redrawn, (B, S, L, h, w)."""

    def foreground(latents: Sequence[Tensor]) -> Tensor:
        logits = model.decode(latents, encoding.size)[0] / model.calibration.logits
        return 1 - logits.float().softmax(2)[:, :, 0]  # (B, S, h, w)

    latents = model.sample_latents(encoding, noise)
    before = foreground(latents)
    changes = []
    for level in range(len(latents)):
        others = {number: latent for number, latent in enumerate(latents) if number != level}
        after = foreground(model.sample_latents(encoding, redrawn, given=others))
        changes.append((after - before).cpu())
    return torch.stack(changes, dim=2)


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
    for number, (probs, levels) in enumerate(slices.look(numbers, _tiles(stack), box)):
        labels[:, number], mean_probs[:, number], mean_log_probs[:, number] = _summary(probs)
        variance[:, number] = levels
        bar.update()
    levels_or_none = variance if slices.num_levels else None
    return Prediction(volume, stack, box, labels, mean_probs, mean_log_probs, levels_or_none, None)


def _predict_lesion(slices: _Slices, volume: Volume, point: tuple[int, int, int], bar: "tqdm[Any]") -> Prediction:
    """Follow a lesion from its point through the slices, until no sample has any of it."""
    stack, sampling = slices.stack, slices.sampling
    centre, row, column = point
    frame = Frame.centred((row, column), stack.preprocessing.size, stack.step)
    rows, columns = (_reach(frame, axis, stack.stack.grid[1 + axis]) for axis in (0, 1))
    distance = stack.stack.spacing_mm[0]
    in_plane = max(
        n * step * mm for n, step, mm in zip(frame.size, frame.step, stack.stack.spacing_mm[1:], strict=True)
    )
    reach = in_plane / 2 if sampling.reach_mm is None else sampling.reach_mm
    far = int(min(reach / distance, stack.stack.grid[0]) + 1e-6)
    box = (slice(centre, centre + 1), rows, columns)
    found: dict[int, tuple[NDArray[np.float32], NDArray[np.float32]]] = {}

    def follow(numbers: Sequence[int], going_on: NDArray[np.bool_]) -> None:
        """Look at slices in their order; a sample that has nothing in one has nothing in those behind it."""
        for number, (probs, levels) in zip(numbers, slices.look(numbers, [frame], box), strict=False):
            probs[~going_on] = _nothing(probs[~going_on])
            found[number] = probs, levels
            bar.update()
            going_on = going_on & (probs.argmax(1) > 0).any((1, 2))
            if not going_on.any():
                break

    follow([centre], np.ones(sampling.num_samples, dtype=bool))
    present = (found[centre][0].argmax(1) > 0).any((1, 2))
    if present.any():
        follow(range(centre + 1, min(centre + far + 1, stack.stack.grid[0])), present)
        follow(range(centre - 1, max(centre - far - 1, -1), -1), present)
    numbers = sorted(found)
    probs = np.stack([found[number][0] for number in numbers], axis=2)  # (S, K, n, h, w)
    _keep_connected(probs, numbers.index(centre))
    summaries = [_summary(probs[:, :, index]) for index in range(len(numbers))]
    labels, mean_probs, mean_log_probs = (np.stack(parts, axis=-3) for parts in zip(*summaries, strict=True))
    variance = np.stack([found[number][1] for number in numbers], axis=1) if slices.num_levels else None
    box = (slice(numbers[0], numbers[-1] + 1), rows, columns)
    return Prediction(volume, stack, box, labels, mean_probs, mean_log_probs, variance, point)


def _keep_connected(probs: NDArray[np.float32], centre: int) -> None:
    """Leave of every sample (S, K, n, h, w) what hangs together with its foreground in the slice of the point.

    Any other piece goes with its surroundings, the voxels that are nearest to it: their probabilities are of it.
    """
    for sample in probs:
        pieces, number = ndimage.label(sample.argmax(0) > 0)
        kept = np.unique(pieces[centre][pieces[centre] > 0])
        if len(kept) < number:
            nearest = ndimage.distance_transform_edt(pieces == 0, return_distances=False, return_indices=True)
            dropped = ~np.isin(pieces[tuple(nearest)], kept)
            sample[0, dropped] = 1
            sample[1:, dropped] = 0


def _nothing(probs: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return probabilities (S, K, h, w) of nothing but background."""
    nothing = np.zeros_like(probs)
    nothing[:, 0] = 1
    return nothing


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
) -> NDArray[np.float32] | None:
    """Return the foreground's probability after each level of the first sample in one slice, (L, h, w).

    Args:
        model: as for `predict_volume`, whose first sample it is.
        volume: likewise.
        point: likewise.
        sampling: likewise.
        name: likewise.
        slice_number: the slice, for a model of whole slices; else it is that of the point.

    Returns:
        Fine to coarse; None for a model without a hierarchy.
    """
    if not isinstance(model, PHiSeg):
        return None
    stack = PreparedStack.of(volume, Preprocessing.of(model), name=name)
    sampler = _Slices(model, stack, sampling or Sampling())
    frames, rows, columns = _tiles(stack), slice(0, stack.stack.grid[1]), slice(0, stack.stack.grid[2])
    if point is not None:
        slice_number, row, column = _to_stack(volume, stack, point)
        frames = [Frame.centred((row, column), stack.preprocessing.size, stack.step)]
        rows, columns = (_reach(frames[0], axis, stack.stack.grid[1 + axis]) for axis in (0, 1))
    with torch.inference_mode():
        box = (slice(slice_number, slice_number + 1), rows, columns)
        return sampler.levels_of_first_sample(slice_number, frames, box)


def _tiles(stack: PreparedStack) -> list[Frame]:
    """Return the frames that cover a slice: one around its middle where it fits, as in training, else a grid."""
    axes = []
    for length, size, step in zip(stack.stack.grid[1:], stack.preprocessing.size, stack.step, strict=True):
        whole = ceil(length / step - 1e-6)  # pixels of the network
        spare = whole - size
        first = (length - 1) / 2 - step * (max(whole, size) - 1) / 2
        first = float(np.floor(first)) if step == 1 else first
        number = 1 if spare <= 0 else ceil(spare / (size * (1 - OVERLAP))) + 1
        axes.append([first + step * (round(spare * n / (number - 1)) if number > 1 else 0) for n in range(number)])
    return [Frame((row, column), stack.step, stack.preprocessing.size) for row in axes[0] for column in axes[1]]


def _window(size: tuple[int, int]) -> NDArray[np.float32]:
    """Return weights (h, w) that fall towards the border, so that tiles pass into each other without a seam."""
    row, column = (np.sin((np.arange(length) + 0.5) / length * pi) ** 2 + 1e-3 for length in size)
    return np.outer(row, column).astype(np.float32)


def _back(frame: Frame, row: int, column: int, size: tuple[int, int]) -> Frame:
    """Return the frame that takes the pixels of a box out of the network's image."""
    moved = Frame((frame.origin[0] - row, frame.origin[1] - column), frame.step, frame.size)
    return moved.inverse(size)


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
