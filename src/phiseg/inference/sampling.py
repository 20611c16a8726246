"""Draw samples for the cases of a prepared dataset in bounded memory.

S samples, K classes, *size is (H, W) for images and (D, H, W) for volumes.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from phiseg.compute.devices import usable_device
from phiseg.core.errors import ConfigError, ModelError
from phiseg.core.precision import SamplingPrecision
from phiseg.data.patches import window
from phiseg.data.store import Dataset
from phiseg.inference.class_map import check_classes_match, class_numbers, match_classes
from phiseg.inference.preprocessing import Preprocessing
from phiseg.inference.sample_summary import SampleSummary, summarise_samples
from phiseg.models import Segmenter, load_model
from phiseg.models.noise import seeded_generator


class CaseSamples(NamedTuple):
    """The samples of one case of a dataset."""

    row: int
    summary: SampleSummary
    probs: Tensor | None
    """(S, K, *size) if requested, otherwise None."""

    def renumbered(self, numbers: Sequence[int]) -> "CaseSamples":
        """Return the samples with class k in place of class `numbers[k]`, for a permutation of all classes."""
        order = torch.tensor(numbers)
        labels, mean_probs, mean_log_probs = self.summary
        labels = order.argsort().to(labels.dtype)[labels.long()]
        summary = SampleSummary(labels, mean_probs[order], mean_log_probs[order])
        return self._replace(summary=summary, probs=None if self.probs is None else self.probs[:, order])


class SplitSamples(NamedTuple):
    """The samples of a split, drawn as they are read."""

    dataset: Dataset
    """The dataset, with the classes of the samples."""
    rows: list[int]
    samples: Iterator[CaseSamples]
    """The samples of `rows`, in their order."""


def sample_split(
    model: Path,
    data: Path,
    *,
    split: str,
    num_samples: int,
    seed: int,
    batch_size: int = 4,
    chunk_size: int | None = None,
    keep_probs: bool = False,
    device: str = "auto",
    precision: SamplingPrecision = "float32",
    calibrated: bool = True,
    class_map: Mapping[str, str] | None = None,
) -> SplitSamples:
    """Load a model and draw samples for the cases of a split.

    The samples have the classes of the dataset. If `class_map` is not one-to-one, they have those of the model, and
    a warning is printed to stderr.

    Args:
        model: model folder, run folder that contains one, or name of a bundled model.
        data: prepared dataset.
        split: split to sample.
        num_samples: number of samples per case.
        seed: seed of the samples.
        batch_size: number of images encoded at once; volumes are encoded one by one.
        chunk_size: number of samples per image decoded at once; for volumes, see `samples_at_once`. Default: 8 on
            a CPU, where tensors then fit into the cache, and 16 on a GPU.
        keep_probs: also return the probabilities of every sample.
        device: device such as `cpu` or `cuda:1`; `auto` uses a GPU if available.
        precision: number format of the network.
        calibrated: use the factors fitted by `phiseg calibrate`, if any.
        class_map: see `match_classes`.

    Raises:
        ConfigError, DataError, ModelError: an argument, the data or the model is unsuitable.
    """
    place = usable_device(device, precision)
    network = load_model(model, device=place, calibrated=calibrated, precision=precision)
    stored = Dataset.open(data)
    dataset = match_classes(network, stored, class_map)
    rows = dataset.rows(split).tolist()
    samples = sample_cases(
        network,
        dataset,
        rows,
        num_samples=num_samples,
        seed=seed,
        batch_size=batch_size,
        chunk_size=chunk_size,
        keep_probs=keep_probs,
    )
    if not class_map:
        return SplitSamples(dataset, rows, samples)
    numbers = class_numbers(network, stored, class_map)
    if sorted(numbers) == list(range(network.config.num_classes)):
        return SplitSamples(stored, rows, (case.renumbered(numbers) for case in samples))
    print(
        f"phiseg: warning: the samples have the classes of the model ({', '.join(dataset.info.classes)}), because "
        f"the class map is not one-to-one; to score them on {data}, use phiseg evaluate",
        file=sys.stderr,
    )
    return SplitSamples(dataset, rows, samples)


def sample_cases(
    model: Segmenter,
    dataset: Dataset,
    rows: Sequence[int],
    *,
    num_samples: int,
    seed: int,
    batch_size: int = 4,
    chunk_size: int | None = None,
    keep_probs: bool = False,
    hide_neighbours: bool = False,
    patch_depth: int | None = None,
) -> Iterator[CaseSamples]:
    """Draw samples for the given rows in their order.

    The samples of a case depend on the model, the seed and the name of the case. They do not depend on the other
    rows, the batch size or the chunk size (except for rounding), and the first n do not depend on `num_samples`.

    Args:
        model: model in evaluation mode, on any device.
        dataset: dataset with the images.
        rows: rows of the dataset.
        num_samples: S.
        seed: seed of the samples.
        batch_size: number of images encoded at once; volumes are encoded one by one.
        chunk_size: number of samples per image decoded at once; for volumes, see `samples_at_once`. Default: 8 on
            a CPU, where tensors then fit into the cache, and 16 on a GPU.
        keep_probs: also return the probabilities of every sample.
        hide_neighbours: hide the neighbouring slices from a model with context.
        patch_depth: see `case_image`.

    Raises:
        ConfigError: a number is less than 1.
        ModelError: the model does not match the dataset. Both are raised before the first case.
    """
    check_fits(model, dataset)
    if chunk_size is None:
        chunk_size = 8 if next(model.parameters()).device.type == "cpu" else 16
    for name, number in (("num_samples", num_samples), ("batch_size", batch_size), ("chunk_size", chunk_size)):
        if number < 1:
            raise ConfigError(f"{name} is {number}; it must be at least 1")
    image = partial(case_image, model, dataset, hide_neighbours=hide_neighbours, patch_depth=patch_depth)
    return _draw(model, dataset, rows, image, num_samples, seed, batch_size, chunk_size, keep_probs)


class CaseImage(NamedTuple):
    """What the network sees of a case."""

    image: Tensor
    """(C, *size); a volume may be extended beyond its ends."""
    slices: slice
    """Which slices are those of the volume; unused for images."""

    def crop(self, samples: Tensor) -> Tensor:
        """Return samples (..., D', H, W) of an extended volume without the slices beyond its ends."""
        return samples[..., self.slices, :, :] if self.image.ndim == 4 else samples


def case_image(
    model: Segmenter,
    dataset: Dataset,
    row: int,
    *,
    hide_neighbours: bool = False,
    patch_depth: int | None = None,
) -> CaseImage:
    """Return the input of the network for one case.

    A volume with fewer slices than a training patch is extended by repeating its ends, as in training.

    Args:
        model: the model.
        dataset: dataset with the images.
        row: row of the dataset.
        hide_neighbours: hide the neighbouring slices from a model with context.
        patch_depth: number of slices of a training patch; by default, that of the model's preprocessing.
    """
    read = partial(dataset.image, row, context=model.config.context, hide_neighbours=hide_neighbours)
    if dataset.dims == 2:
        return CaseImage(torch.from_numpy(read()), slice(None))
    seen, own = extended_slices(model, dataset.depth(row), patch_depth=patch_depth)
    return CaseImage(torch.from_numpy(read(slices=seen)), own)


def extended_slices(
    model: Segmenter, depth: int, *, patch_depth: int | None = None
) -> tuple[NDArray[np.int64], slice]:
    """Return the slices that the network sees of a volume, with its ends repeated, and which of them are its own.

    Args:
        model: 3-D model.
        depth: number of slices of the volume.
        patch_depth: see `case_image`.
    """
    learned = Preprocessing.find(model)
    if patch_depth is None and learned is not None and learned.patch_size is not None:
        patch_depth = learned.patch_size[0]
    missing = max(0, (patch_depth or 0) - depth)
    before = missing // 2
    return window(-before, depth + missing, depth), slice(before, before + depth)


def samples_at_once(image: Tensor, batch_size: int, chunk_size: int) -> int:
    """Return the number of samples of an image (C, *size) to decode at once.

    A slice of a volume counts as an image: at most `batch_size * chunk_size` are decoded at once, unless a single
    sample of a volume has more.
    """
    return chunk_size if image.ndim == 3 else max(1, batch_size * chunk_size // image.shape[1])


@torch.inference_mode()
def _draw(
    model: Segmenter,
    dataset: Dataset,
    rows: Sequence[int],
    image_of: Callable[[int], CaseImage],
    num_samples: int,
    seed: int,
    batch_size: int,
    chunk_size: int,
    keep_probs: bool,
) -> Iterator[CaseSamples]:
    device = next(model.parameters()).device
    step = batch_size if dataset.dims == 2 else 1  # volumes have different depths
    for start in range(0, len(rows), step):
        batch = rows[start : start + step]
        seen = [image_of(row) for row in batch]
        image = torch.stack([case.image for case in seen]).to(device)
        generators = [seeded_generator(seed, "sample", dataset.cases[row]["case"]) for row in batch]
        at_once = samples_at_once(image[0], batch_size, chunk_size)
        drawn = model.sample_chunks(image, num_samples, generator=generators, chunk_size=at_once)
        chunks = map(seen[0].crop, drawn)  # volumes are drawn one by one
        kept = list(chunks) if keep_probs else None
        summaries = summarise_samples(kept or chunks)
        probs = torch.cat(kept, dim=1).float().softmax(2).cpu() if kept else [None] * len(batch)
        for row, summary, case_probs in zip(batch, summaries, probs, strict=True):
            yield CaseSamples(int(row), SampleSummary(*(tensor.cpu() for tensor in summary)), case_probs)


def check_fits(model: Segmenter, dataset: Dataset) -> None:
    """Check that a dataset has the dimensions, channels, number of classes and intensity rule of the model.

    Class names may differ, see `match_classes`.

    Raises:
        ModelError: they differ.
    """
    check_classes_match(model, dataset)
    info, learned = dataset.info, Preprocessing.find(model) or dataset.info
    cases = {2: "images", 3: "volumes"}
    for what, ours, theirs in (
        ("{} as input", cases[model.config.dims], cases[dataset.dims]),
        ("{} image channels", model.config.image_channels, info.image_channels),
        ("the intensity rule {}", learned.intensity, info.intensity),
    ):
        if ours != theirs:
            raise ModelError(
                f"the model has {what.format(ours)}, but {dataset.path} has {theirs}; "
                "use a dataset like the training data, or train a model on this dataset"
            )
