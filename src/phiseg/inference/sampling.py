"""Samples of the cases of a prepared dataset, in bounded memory."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from phiseg.core.errors import ModelError
from phiseg.data.store import Dataset
from phiseg.inference.summary import SampleSummary, summarise_samples
from phiseg.models import Segmenter
from phiseg.models.noise import seeded_generator


class CaseSamples(NamedTuple):
    """One case of a dataset and what was sampled for it."""

    row: int
    summary: SampleSummary
    probs: Tensor | None
    """(S, K, H, W) when asked for."""


@torch.inference_mode()
def sample_cases(
    model: Segmenter,
    dataset: Dataset,
    rows: Sequence[int],
    *,
    num_samples: int,
    seed: int,
    batch_size: int = 4,
    chunk_size: int = 16,
    keep_probs: bool = False,
) -> Iterator[CaseSamples]:
    """Draw samples of the given rows, in their order.

    The samples of a case depend on the model, the seed and the case's name: not on the other rows, the batch
    size or the chunk size (beyond the rounding of the last bit), and the first n of them do not depend on
    `num_samples`.

    Args:
        model: in evaluation mode, on any device.
        dataset: where the images come from.
        rows: which.
        num_samples: S.
        seed: of the samples.
        batch_size: images encoded at once.
        chunk_size: samples of each image decoded at once.
        keep_probs: also return the probabilities of every sample.
    """
    check_fits(model, dataset)
    device = next(model.parameters()).device
    for start in range(0, len(rows), batch_size):
        batch = list(rows[start : start + batch_size])
        image = torch.from_numpy(np.stack([dataset.image(row) for row in batch])).to(device)
        generators = [seeded_generator(seed, "sample", dataset.cases[row]["case"]) for row in batch]
        chunks = model.sample_chunks(image, num_samples, generator=generators, chunk_size=chunk_size)
        kept = list(chunks) if keep_probs else None
        summaries = summarise_samples(kept or chunks)
        probs = torch.cat(kept, dim=1).float().softmax(2).cpu() if kept else [None] * len(batch)
        for row, summary, case_probs in zip(batch, summaries, probs, strict=True):
            yield CaseSamples(int(row), SampleSummary(*(tensor.cpu() for tensor in summary)), case_probs)


def check_fits(model: Segmenter, dataset: Dataset) -> None:
    """Refuse a dataset whose channels or classes are not the model's.

    Raises:
        ModelError: with both numbers.
    """
    for what, ours, theirs in (
        ("image channels", model.config.image_channels, dataset.info.image_channels),
        ("classes", model.config.num_classes, len(dataset.info.classes)),
    ):
        if ours != theirs:
            raise ModelError(
                f"the model has {ours} {what}, {dataset.path} has {theirs}; "
                "use the dataset it was trained for, or train a model on this one"
            )
