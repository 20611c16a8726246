"""Samples of a volume, on its own grid.

A model of whole slices runs over all of them, in overlapping tiles where a slice is larger than its images were. A
model of lesion-centred crops is shown a point, and follows the lesion through its slices.

Shapes: N slices of H x W pixels, n of them in a box of h x w pixels, S samples, K classes, L latent levels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage
from tqdm import tqdm

from phiseg.core.errors import ConfigError, DataError
from phiseg.imaging.frame import Frame
from phiseg.imaging.volume import Volume, from_slices
from phiseg.inference.preprocessing import PreparedStack, Preprocessing
from phiseg.inference.slice_sampler import Box, Sampling, SliceSampler, pixels_of, tiles
from phiseg.metrics import EPSILON
from phiseg.models import Segmenter

__all__ = ["Prediction", "Sampling", "check_point", "level_outputs", "predict_volume"]


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
    level_names: tuple[str, ...]
    """Of what `level_variance` has, as `Segmenter.noise_names` calls them."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names, the background first."""
        return self.stack.preprocessing.classes

    def voxel(self, number: int, row: int, column: int) -> tuple[int, int, int]:
        """Return the voxel (i, j, k) of the volume at a slice, row and column of the stack."""
        place = np.linalg.inv(self.volume.affine) @ self.stack.stack.affine @ [number, row, column, 1]
        i, j, k = (int(index) for index in np.rint(place[:3]))
        return i, j, k

    def on_grid(self, values: NDArray[np.generic]) -> Volume:
        """Put values of the box, (n, h, w) or (n, h, w, C), onto the grid of the volume, which is 0 elsewhere."""
        full = np.zeros((*self.stack.stack.grid, *values.shape[3:]), dtype=values.dtype)
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
                SliceSampler(model, stack, sampling, tiles(stack, model.stride)), volume, numbers, bar
            )
        place = _to_stack(volume, stack, point)
        frame = Frame.centred(place[1:], preprocessing.size, stack.step)
        return _predict_lesion(SliceSampler(model, stack, sampling, [frame]), volume, place, bar)


def check_point(preprocessing: Preprocessing, point: object | None, *, name: str) -> None:
    """Refuse a point for a model of whole slices, and a model of lesion-centred crops without one."""
    if preprocessing.centred_on is None and point is not None:
        raise ConfigError(f"the model looks at whole slices and takes no point; predict {name} without one")
    if preprocessing.centred_on is not None and point is None:
        raise ConfigError(
            f"the model looks at crops around a {preprocessing.centred_on}; say where one is in {name} (--at x,y,z)"
        )


def _predict_slices(slices: SliceSampler, volume: Volume, numbers: range, bar: "tqdm[Any]") -> Prediction:
    """Run over slices, keeping nothing of a slice but what is returned."""
    stack, num_samples = slices.stack, slices.sampling.num_samples
    depth, (height, width) = len(numbers), stack.stack.grid[1:]
    box = (slice(numbers.start, numbers.stop), slice(0, height), slice(0, width))
    bar.total = depth
    labels = np.zeros((num_samples, depth, height, width), np.uint8)
    mean_probs = np.zeros((len(stack.preprocessing.classes), depth, height, width), np.float32)
    mean_log_probs = np.zeros_like(mean_probs)
    variance = np.zeros((len(slices.level_names), depth, height, width), np.float32)
    for number, (probs, levels) in enumerate(slices.look(numbers, box)):
        labels[:, number], mean_probs[:, number], mean_log_probs[:, number] = _summary(probs)
        variance[:, number] = levels
        bar.update()
    levels_or_none = variance if slices.level_names else None
    whole = np.zeros(num_samples, dtype=bool)
    return Prediction(
        volume, stack, box, labels, mean_probs, mean_log_probs, levels_or_none, whole, None, slices.level_names
    )


def _predict_lesion(
    slices: SliceSampler, volume: Volume, point: tuple[int, int, int], bar: "tqdm[Any]"
) -> Prediction:
    """Follow a lesion from its point through the slices, until no sample has any of it in two slices running.

    Of each sample the piece nearest to the point is kept, if it comes within a slice of it. Mean and gamma are
    those of all samples, as the network gave them, where any sample kept something and around it; everywhere else
    there is background.
    """
    stack, sampling, frame = slices.stack, slices.sampling, slices.frames[0]
    centre = point[0]
    depth = stack.stack.grid[0]
    rows, columns = (pixels_of(frame, axis, stack.stack.grid[1 + axis]) for axis in (0, 1))
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
    if slices.level_names:
        variance = np.stack([found[number][1] for number in numbers], axis=1) * around
    ends = [
        numbers.index(n) for n in (centre - far, centre + far, 0, depth - 1) if n in found and far and depth > 1
    ]
    sides = [(rows.start, rows.stop, stack.stack.grid[1]), (columns.start, columns.stop, stack.stack.grid[2])]
    cut_off = _touches(labels > 0, ends, [(first > 0, last < length) for first, last, length in sides])
    box = (slice(numbers[0], numbers[-1] + 1), rows, columns)
    return Prediction(
        volume, stack, box, labels, mean_probs, mean_log_probs, variance, cut_off, point, slices.level_names
    )


def _nearest_piece(
    mask: NDArray[np.bool_], place: tuple[int, int, int], spacing_mm: tuple[float, float, float]
) -> NDArray[np.bool_]:
    """Return the piece of a mask (n, h, w) that is nearest to a place; an empty slice within does not divide it.

    A piece that is neither in the slice of the place nor in one beside it is another lesion: nothing is returned.
    """
    if not mask.any():
        return np.zeros_like(mask)
    bridged = mask.copy()
    bridged[1:] |= mask[:-1]
    pieces, _ = ndimage.label(bridged)
    voxels = np.argwhere(mask)
    nearest = voxels[(((voxels - place) * spacing_mm) ** 2).sum(1).argmin()]
    piece: NDArray[np.bool_] = mask & (pieces == pieces[tuple(nearest)])
    return piece & piece[max(place[0] - 1, 0) : place[0] + 2].any()


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
        tiles(stack, model.stride),
        slice(0, stack.stack.grid[1]),
        slice(0, stack.stack.grid[2]),
    )
    if point is not None:
        slice_number, row, column = _to_stack(volume, stack, point)
        frames = [Frame.centred((row, column), stack.preprocessing.size, stack.step)]
        rows, columns = (pixels_of(frames[0], axis, stack.stack.grid[1 + axis]) for axis in (0, 1))
    sampler = SliceSampler(model, stack, sampling or Sampling(), frames)
    with torch.inference_mode():
        return sampler.levels_of_first_sample(slice_number, (slice(slice_number, slice_number + 1), rows, columns))


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
