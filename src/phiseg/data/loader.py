"""The stream of training batches. Batch t depends only on the seed and t.

The stream has no state. A resumed run therefore continues with the same batches, batches can be made in advance in
another thread, and several processes divide the batch that a single process would use.

B batch (over all processes), C image channels, A annotators. *size is (H, W) for images, and the (D, H, W) of the
patches for volumes.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from phiseg.core.errors import ConfigError, DataError
from phiseg.core.random import derive_seed
from phiseg.data.augment import (
    AugmentConfig,
    apply_augmentation,
    apply_intensities,
    draw_augmentation,
    draw_intensities,
    draw_neighbours,
    flip_volumes,
    reverse_slices,
)
from phiseg.data.patches import draw_patches, patch_size_for, window
from phiseg.data.store import Dataset


class Batch(NamedTuple):
    """The batch of one process in one training step."""

    image: Tensor
    """(B, C, *size) float32, the network's input."""
    labels: Tensor
    """(B, *size) int64, one annotation per image; (B, A, *size) if the stream has several per image."""
    rows: NDArray[np.int64]
    """(B,) rows of the dataset."""


class TrainingStream:
    """Draw the cases, annotators and augmentations of every training step.

    Epoch e is a permutation of the cases drawn from (seed, "epoch", e). Batch t consists of the positions t*B to
    (t+1)*B of the concatenated epochs. Annotators are drawn from (seed, "annotator", t), augmentations from
    (seed, "augment", t), (seed, "intensity", t) and (seed, "neighbours", t), places of patches from (seed, "patch",
    t). All are drawn for the whole batch, and process `rank` takes its share.

    Args:
        dataset: dataset to draw cases from.
        split: name of the split.
        batch_size: B, the sum over all processes.
        seed: seed of the run.
        annotator: "random" draws one of the valid annotators of each case. A number always uses this annotator and
            skips cases that the annotator did not annotate.
        annotations_per_image: A, number of annotations of each image. With more than one, they are from different
            annotators in random order, repeated if a case has fewer. A single annotator gives one.
        augment: augmentation settings.
        context: number of neighbouring slices on each side, which are added as channels.
        patch_size: size of the patches of volumes, see `patch_size_for`.
        rank: number of this process.
        world_size: number of processes.

    Raises:
        ConfigError: the batch size is not a multiple of the number of processes, the annotator does not exist, or
            the patch size does not suit the dataset.
        DataError: there are no cases.
    """

    def __init__(
        self,
        dataset: Dataset,
        split: str = "train",
        *,
        batch_size: int,
        seed: int,
        annotator: int | Literal["random"] = "random",
        annotations_per_image: int = 1,
        augment: AugmentConfig,
        context: int = 0,
        patch_size: Sequence[int] | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if batch_size < 1 or batch_size % world_size:
            raise ConfigError(
                f"batch_size {batch_size} cannot be divided among {world_size} processes; "
                f"use a multiple of {world_size}, such as {max(1, round(batch_size / world_size)) * world_size}"
            )
        if annotator != "random" and not 0 <= annotator < dataset.info.num_annotators:
            raise ConfigError(
                f"annotator {annotator} does not exist in {dataset.path}; "
                f"use 0 to {dataset.info.num_annotators - 1}, or random"
            )
        self.dataset = dataset
        self.batch_size = batch_size
        self.seed = seed
        self.annotator = annotator
        self.annotations_per_image = annotations_per_image
        self.augment = augment
        self.context = context
        self.patch_size = patch_size_for(dataset, patch_size)
        share = batch_size // world_size
        self._share = slice(rank * share, (rank + 1) * share)
        self.rows = dataset.rows(split)
        """Rows used for training, in ascending order."""
        if annotator != "random":
            self.rows = self.rows[dataset.valid[self.rows, annotator]]
            if not self.rows.size:
                raise DataError(
                    f"annotator {annotator} has no case in split '{split}' of {dataset.path}; use another annotator"
                )
        self._permutation = lru_cache(maxsize=2)(self._draw_permutation)

    def batch(self, step: int, device: torch.device | str = "cpu") -> Batch:
        """Return the share of this process in batch `step`, augmented on `device`."""
        rows = self._draw_rows(step)
        annotators = self._draw_annotators(step, rows)[self._share]
        matrices = draw_augmentation(
            self.augment,
            self.batch_size,
            size=self.patch_size[1:] if self.patch_size else self.dataset.info.size,
            generator=torch.Generator().manual_seed(derive_seed(self.seed, "augment", step)),
        )[self._share]
        starts = self._draw_patches(step, rows)
        rows = rows[self._share]
        if starts is None:
            image = self._images(step, rows)
            labels = torch.from_numpy(np.stack([*map(self.dataset.annotation, rows.tolist(), annotators)]))
        else:
            image, labels = self._patches(step, rows, annotators, starts[self._share])
        image, labels = image.to(device), labels.to(device).long()
        if self.augment.enabled:
            image, labels = apply_augmentation(
                image, labels, matrices.to(device), num_classes=len(self.dataset.info.classes)
            )
            intensities = draw_intensities(
                self.augment,
                self.batch_size,
                generator=torch.Generator().manual_seed(derive_seed(self.seed, "intensity", step)),
            )[self._share]
            image = apply_intensities(image, intensities)
        return Batch(image, labels, rows)

    def _images(self, step: int, rows: NDArray[np.int64]) -> Tensor:
        """Return the images of the given rows with their neighbours, (B, C * (1 + 2 * context), H, W)."""
        if not self.context:
            return torch.from_numpy(np.stack([self.dataset.image(row) for row in rows]))
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "neighbours", step))
        hidden, flipped = draw_neighbours(self.augment, self.batch_size, generator=generator)[self._share].T
        images = [
            self.dataset.image(row, context=self.context, hide_neighbours=bool(hide))
            for row, hide in zip(rows, hidden, strict=True)
        ]
        return reverse_slices(torch.from_numpy(np.stack(images)), flipped, context=self.context)

    def _draw_patches(self, step: int, rows: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Draw where the patches of a whole batch start, (B, 3); None for images."""
        if self.patch_size is None:
            return None
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "patch", step))
        return draw_patches(self.patch_size, [self.dataset.size(row) for row in rows], generator=generator)

    def _patches(
        self, step: int, rows: NDArray[np.int64], annotators: NDArray[np.int64], starts: NDArray[np.int64]
    ) -> tuple[Tensor, Tensor]:
        """Return patches of volumes and their labels, some with their slices in reverse order."""
        assert self.patch_size is not None
        depth, height, width = self.patch_size
        images, labels = [], []
        for row, annotator, (start, top, left) in zip(rows.tolist(), annotators, starts.tolist(), strict=True):
            slices = window(start, depth, self.dataset.depth(row))
            plane = (..., slice(top, top + height), slice(left, left + width))
            images.append(self.dataset.image(row, slices=slices)[plane])
            labels.append(self.dataset.annotation(row, annotator, slices=slices)[plane])
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "neighbours", step))
        flipped = draw_neighbours(self.augment, self.batch_size, generator=generator)[self._share, 1]
        return flip_volumes(torch.from_numpy(np.stack(images)), torch.from_numpy(np.stack(labels)), flipped)

    def _draw_rows(self, step: int) -> NDArray[np.int64]:
        places = np.arange(step * self.batch_size, (step + 1) * self.batch_size)
        epochs, offsets = np.divmod(places, len(self.rows))
        return np.array([self._permutation(int(e))[i] for e, i in zip(epochs, offsets, strict=True)])

    def _draw_permutation(self, epoch: int) -> NDArray[np.int64]:
        return np.random.default_rng(derive_seed(self.seed, "epoch", epoch)).permutation(self.rows)

    def _draw_annotators(self, step: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Draw the annotators of a whole batch, (B,) or (B, A)."""
        if self.annotator != "random":
            return np.full(len(rows), self.annotator)
        generator = np.random.default_rng(derive_seed(self.seed, "annotator", step))
        choices = [np.flatnonzero(self.dataset.valid[row]) for row in rows]
        if self.annotations_per_image > 1:
            return np.stack([np.resize(generator.permutation(c), self.annotations_per_image) for c in choices])
        uniform = generator.random(len(rows))
        return np.array([valid[int(u * len(valid))] for u, valid in zip(uniform, choices, strict=True)])


def prefetch(
    stream: TrainingStream, start: int, stop: int, *, device: torch.device | str = "cpu", depth: int = 2
) -> Iterator[Batch]:
    """Yield the batches of steps `start` to `stop` - 1 in order, prepared in advance by a background thread.

    An error in the thread is raised when its batch is due. The thread ends with the consumer.

    Args:
        stream: stream of batches.
        start: first step.
        stop: one after the last step.
        device: device for the augmentation.
        depth: maximum number of batches prepared in advance.
    """
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="prefetch") as executor:
        ahead: deque[Future[Batch]] = deque()
        try:
            for step in range(start, stop):
                ahead.append(executor.submit(stream.batch, step, device))
                if len(ahead) > depth:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            executor.shutdown(wait=True, cancel_futures=True)
