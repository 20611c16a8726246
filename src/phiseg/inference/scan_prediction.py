"""Draw samples of a volume on its own grid.

A whole-slice model processes all slices, in overlapping tiles if a slice is larger than the training images. A
lesion-crop model gets a point, and the lesion is followed through the slices. A 3-D model does the same with
patches of several slices.

Shapes: N slices of H x W pixels, n of them in a box of h x w pixels, S samples, K classes, L latent levels.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from phiseg.core.errors import ConfigError, DataError
from phiseg.imaging.frame import Frame
from phiseg.imaging.volume import Volume
from phiseg.inference.frame_sampler import FrameSampler
from phiseg.inference.input_checks import check_point
from phiseg.inference.lesion import predict_lesion
from phiseg.inference.prediction import Prediction
from phiseg.inference.prepared_stack import PreparedStack
from phiseg.inference.preprocessing import Preprocessing
from phiseg.inference.sample_summary import summarise_probs
from phiseg.inference.sampling_options import Sampling
from phiseg.inference.slice_sampler import SliceSampler
from phiseg.inference.tiling import pixels_of, tiles
from phiseg.inference.volume_sampler import VolumeSampler
from phiseg.models import Segmenter


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
    """Prepare a volume and draw samples of it; see `predict_prepared`.

    Args:
        model: the network, in evaluation mode, on any device.
        volume: (I, J, K) or (I, J, K, C), in the unit of the model's training images (HU for CT).
        point: (i, j, k), a voxel of the volume inside the lesion; required for a lesion-crop model.
        slices: consecutive slices in the model's plane, for a whole-slice model; by default all.
        sampling: the sampling settings; by default those of `Sampling`.
        name: the name of the volume in error messages.
        progress: whether to show a progress bar over the slices.

    Raises:
        DataError: the volume does not match the model, or the point lies outside the volume.
        ConfigError: a point is missing, or given to a whole-slice model; or there are no such slices.
    """
    preprocessing = Preprocessing.of(model)
    check_point(preprocessing.centred_on, has_point=point is not None, name=name)
    stack = PreparedStack.of(volume, preprocessing, name=name)
    return predict_prepared(model, stack, point=point, slices=slices, sampling=sampling, progress=progress)


def predict_prepared(
    model: Segmenter,
    stack: PreparedStack,
    *,
    point: Sequence[float] | None = None,
    slices: range | None = None,
    sampling: Sampling | None = None,
    name: str | None = None,
    progress: bool = False,
    strict_intensity: bool = False,
) -> Prediction:
    """Draw samples of a volume that is already prepared for the model.

    Args:
        model: the network, in evaluation mode, on any device.
        stack: the prepared volume.
        point: (i, j, k), a voxel of the volume inside the lesion; required for a lesion-crop model.
        slices: consecutive slices of the stack, for a whole-slice model; by default all.
        sampling: the sampling settings; by default those of `Sampling`.
        name: the name of the case in error messages; by default that of the volume.
        progress: whether to show a progress bar over the slices.
        strict_intensity: whether to reject a point if the image around it does not look like a training image.

    Raises:
        DataError: the point lies outside the volume, or `strict_intensity` rejects it.
        ConfigError: a point is missing, or given to a whole-slice model; or there are no such slices.
    """
    sampling, name, preprocessing = sampling or Sampling(), name or stack.name, stack.preprocessing
    check_point(preprocessing.centred_on, has_point=point is not None, name=name)
    every = range(stack.stack.grid[0])
    numbers = every if slices is None else slices
    if point is not None and slices is not None:
        raise ConfigError(f"{name}: the slices of a lesion follow from its point; omit the slices")
    if not numbers or numbers.step != 1 or numbers[0] not in every or numbers[-1] not in every:
        raise ConfigError(f"{name}: slices {numbers} are not consecutive slices of the {len(every)} of the scan")
    place = None if point is None else _to_stack(stack, point, name=name)
    bar: tqdm[Any] = tqdm(desc=name, unit="slice", leave=False, disable=not progress, dynamic_ncols=True)
    with bar, torch.inference_mode():
        sampler = _sampler(model, stack, sampling, place)
        if place is None:
            return _predict_slices(sampler, numbers, bar)
        unusual = _why_unusual(sampler, place[0])
        if unusual and strict_intensity:
            raise DataError(f"{name} is rejected by --strict-intensity: {unusual}")
        return replace(predict_lesion(sampler, place, bar), unusual=unusual)


def _why_unusual(sampler: FrameSampler, number: int) -> str | None:
    """Return why the image around a point in a slice does not look like a training image, or None if it does."""
    stack, usual = sampler.stack, sampler.stack.preprocessing.usual_values
    if usual is None:
        return None
    seen = np.clip(sampler.slices_seen(number), 0, stack.stack.grid[0] - 1)
    return usual.why_unusual(stack.images(seen, sampler.frames[0]), stack.preprocessing.intensity)


def _sampler(
    model: Segmenter, stack: PreparedStack, sampling: Sampling, place: tuple[int, int, int] | None
) -> FrameSampler:
    """Return the sampler of a whole scan, or of a crop around a (slice, row, column)."""
    key = case_key(stack.volume, place)
    if place is None:
        frames = tiles(stack, max(model.strides[-2:]))
    else:
        frames = [Frame.centred(place[1:], stack.preprocessing.size, stack.step)]
    if model.config.dims == 3:
        return VolumeSampler(model, stack, sampling, frames, key=key, centre=None if place is None else place[0])
    return SliceSampler(model, stack, sampling, frames, key=key)


def case_key(volume: Volume, place: tuple[int, int, int] | None) -> str:
    """Return the key of the noise of a case: a hash of the scan and of the point.

    With the same noise for all cases, their samples would be large or small together. A coarse grid of voxels is
    sufficient to distinguish scans.

    Args:
        volume: scan.
        place: (slice, row, column) of the point in the stack of slices, if there is one.
    """
    coarse = volume.values[tuple(slice(None, None, max(1, length // 64)) for length in volume.grid)]
    digest = hashlib.blake2b(np.ascontiguousarray(coarse, dtype=np.float32).tobytes(), digest_size=16)
    digest.update(repr((volume.grid, place)).encode())
    return digest.hexdigest()


def _predict_slices(sampler: FrameSampler, numbers: range, bar: "tqdm[Any]") -> Prediction:
    """Predict slices one after another, keeping only the results in memory."""
    stack, num_samples = sampler.stack, sampler.sampling.num_samples
    depth, (height, width) = len(numbers), stack.stack.grid[1:]
    box = (slice(numbers.start, numbers.stop), slice(0, height), slice(0, width))
    bar.total = depth * len(sampler.passes)
    labels = np.zeros((num_samples, depth, height, width), np.uint8)
    mean_probs = np.zeros((len(stack.preprocessing.classes), depth, height, width), np.float32)
    mean_log_probs = np.zeros_like(mean_probs)
    variance = np.zeros((len(sampler.level_names), depth, height, width), np.float32)
    for samples in sampler.passes:
        share = len(samples) / num_samples
        for number, (probs, levels) in enumerate(sampler.sample_slices(numbers, box, samples)):
            (summary,) = summarise_probs([torch.from_numpy(probs)[None]])
            labels[samples.start : samples.stop, number] = summary.labels.numpy()
            mean_probs[:, number] += share * summary.mean_probs.numpy()
            mean_log_probs[:, number] += share * summary.mean_log_probs.numpy()
            variance[:, number] += levels
            bar.update()
    levels_or_none = variance if sampler.level_names else None
    return Prediction(stack, box, labels, mean_probs, mean_log_probs, levels_or_none, {}, None, sampler.level_names)


def level_outputs(
    model: Segmenter,
    stack: PreparedStack,
    *,
    point: Sequence[float] | None = None,
    slice_number: int = 0,
    sampling: Sampling | None = None,
) -> NDArray[np.float32]:
    """Return the probability of the foreground after each level of the first sample in one slice, (L, h, w).

    A model without a hierarchy has one level: its sample.

    Args:
        model: model, as for `predict_prepared`.
        stack: prepared volume, as for `predict_prepared`.
        point: point, as for `predict_prepared`.
        sampling: sampling options, as for `predict_prepared`.
        slice_number: slice for a whole-slice model; otherwise the slice of the point is used.

    Returns:
        Probabilities from fine to coarse.
    """
    place = None if point is None else _to_stack(stack, point, name=stack.name)
    sampler = _sampler(model, stack, sampling or Sampling(), place)
    rows, columns = (slice(0, length) for length in stack.stack.grid[1:])
    if place is not None:
        slice_number = place[0]
        rows, columns = (pixels_of(sampler.frames[0], axis, stack.stack.grid[1 + axis]) for axis in (0, 1))
    with torch.inference_mode():
        return sampler.levels_of_first_sample(slice_number, (slice(slice_number, slice_number + 1), rows, columns))


def _to_stack(stack: PreparedStack, point: Sequence[float], *, name: str) -> tuple[int, int, int]:
    """Return the (slice, row, column) of a voxel of the scan."""
    if len(point) != 3 or not np.isfinite(point).all():
        raise DataError(f"{name}: the point {tuple(point)} is invalid; give three finite numbers")
    if any(not -0.5 <= place < number - 0.5 for place, number in zip(point, stack.volume.grid, strict=True)):
        shape = " x ".join(map(str, stack.volume.grid))
        given = ", ".join(f"{place:g}" for place in point)
        raise DataError(f"{name}: the point ({given}) is outside the {shape} voxels of the scan; check the point")
    world = stack.volume.world(np.asarray(point, dtype=np.float64))
    place = np.linalg.inv(stack.stack.affine) @ [*world, 1]
    nearest = np.clip(np.rint(place[:3]), 0, np.array(stack.stack.grid) - 1)  # rounding may move it outside
    number, row, column = (int(value) for value in nearest)
    return number, row, column
