"""Scores of samples, whichever program drew them: one case, the table of all cases, and the cases of the figures.

S samples, A annotators, K classes, *size is (H, W) for images and (D, H, W) for volumes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from phiseg.core.errors import ConfigError
from phiseg.data.check import disagreement
from phiseg.data.store import Dataset
from phiseg.evaluation.example_cases import Examples
from phiseg.evaluation.summary import TEXT_COLUMNS, Cases, Provenance, Summary
from phiseg.metrics import consensus, expected_cross_entropy
from phiseg.metrics.sampled_case import SampledCase
from phiseg.metrics.score_registry import case_scores, pixel_scores
from phiseg.plotting.plane_views import PlaneView, plane_views

DiceAnnotator = int | Literal["all", "majority", "staple"]
"""Reference for Dice: the number of an annotator, all annotators, or their consensus."""

NUM_SHOWN = 8
"""Number of samples per example case stored for the figures."""


class DrawnCase(NamedTuple):
    """The samples of one case."""

    labels: Tensor
    """(S, *size) uint8."""
    mean_probs: Tensor | None
    """(K, *size), mean of the samples' probabilities; None if they are unknown."""
    mean_log_probs: Tensor | None
    """(K, *size), mean over samples of log(probability + eps); None if it is unknown."""


class ScoredCase(NamedTuple):
    """Scores of a case."""

    row: int
    scores: dict[str, float | None]
    tables: dict[str, Tensor | None]
    """Counts for the scores over all pixels, see `PixelScore`."""
    shown: DrawnCase | None = None
    """If the case is one of the examples: its first `NUM_SHOWN` samples, and the means over all."""


class ScoredSplit(NamedTuple):
    """Scores of all cases of a split."""

    cases: Cases
    summary: Summary
    reliability: NDArray[np.float64] | None
    """Sum of the reliability tables; None without probabilities."""


def sampled_case(dataset: Dataset, row: int, drawn: DrawnCase, dice_annotator: DiceAnnotator) -> SampledCase:
    """Return the samples of a case together with its annotations."""
    annotations = torch.from_numpy(dataset.annotations(row))
    reference = _dice_reference(dataset, row, dice_annotator)
    return SampledCase(
        *drawn,
        annotations,
        reference=reference,
        num_classes=len(dataset.info.classes),
        spacing_mm=dataset.axis_spacing_mm(row),
    )


def score_sampled_case(row: int, case: SampledCase) -> ScoredCase:
    """Compute all scores of one case. Every evaluation, of a model or of given samples, uses this function."""
    scores = {score.name: score.value(case) for score in case_scores(case.dims)}
    return ScoredCase(row, scores, {score.name: score.table(case) for score in pixel_scores()})


def summarise_scores(
    dataset: Dataset,
    scored: Sequence[ScoredCase],
    provenance: Provenance,
    *,
    more: Mapping[str, Sequence[float]] | None = None,
) -> ScoredSplit:
    """Collect the scores of a split as the table of its cases and their summary.

    Args:
        dataset: dataset of the cases.
        scored: scores of each case.
        provenance: what the scores belong to.
        more: further columns of the table, by name; one value per row of the dataset.
    """
    table = [
        {name: value for name, value in dataset.cases[case.row].items() if name in TEXT_COLUMNS}
        | case.scores
        | {name: values[case.row] for name, values in (more or {}).items()}
        for case in scored
    ]
    cases = {column: [row[column] for row in table] for column in table[0]}
    sums = {score.name: _sum([case.tables[score.name] for case in scored]) for score in pixel_scores()}
    pooled = {score.name: score.of(total) for score in pixel_scores() if (total := sums[score.name]) is not None}
    reliability = sums["ece"]
    summary = Summary.of(cases, pixel_scores=pooled, **dict(provenance))
    return ScoredSplit(cases, summary, None if reliability is None else reliability.numpy())


def _sum(tables: Sequence[Tensor | None]) -> Tensor | None:
    known = [table for table in tables if table is not None]
    return sum(known, start=torch.zeros(())) if len(known) == len(tables) else None


def check_dice_annotator(dataset: Dataset, annotator: DiceAnnotator) -> None:
    """Check that the annotator exists.

    Raises:
        ConfigError: with the valid values.
    """
    if isinstance(annotator, int) and not 0 <= annotator < dataset.info.num_annotators:
        last = dataset.info.num_annotators - 1
        raise ConfigError(f"annotator {annotator} does not exist; use 0 to {last}, all, majority or staple")


def _dice_reference(dataset: Dataset, row: int, annotator: DiceAnnotator) -> Tensor:
    """Return the reference annotations for Dice (A', *size); empty if the annotation is missing."""
    annotations = torch.from_numpy(dataset.annotations(row))
    if annotator == "all":
        return annotations
    if isinstance(annotator, str):
        return consensus(annotations, annotator, num_classes=len(dataset.info.classes))[None]
    chosen = [annotator] if dataset.valid[row, annotator] else []
    return torch.from_numpy(dataset.case_labels(row)[chosen])


def choose_examples(dataset: Dataset, rows: Sequence[int], number: int) -> list[int]:
    """Return rows in order of decreasing disagreement, evenly spaced over the upper three quarters.

    Only the disagreement of annotators is used, so that all methods show the same cases.

    Raises:
        ConfigError: `number` is less than 1.
    """
    if number < 1:
        raise ConfigError(f"num_examples is {number}; it must be at least 1")
    ranked = sorted(rows, key=partial(disagreement, dataset), reverse=True)
    places = np.linspace(0, 0.75 * (len(ranked) - 1), min(number, len(ranked))).round().astype(int)
    return [ranked[place] for place in dict.fromkeys(places.tolist())]


def example_arrays(dataset: Dataset, row: int, drawn: DrawnCase, image: Tensor) -> dict[str, Tensor]:
    """Return the data of the figures of one case.

    Without probabilities, the mean prediction is the share of samples with each label, and the maps are missing.

    Args:
        dataset: dataset of the case.
        row: row of the dataset.
        drawn: samples of the case.
        image: (*size), the first channel of the network's input.
    """
    labels, probs, log_probs = drawn
    votes = consensus(labels, "mean", num_classes=len(dataset.info.classes)).float() if probs is None else probs
    arrays = {
        "image": image,
        "annotations": torch.tensor(dataset.case_labels(row)),
        "valid": torch.tensor(dataset.valid[row]),
        "samples": labels[:NUM_SHOWN],
        "mean_probs": votes,
    }
    if dataset.has_colours:
        arrays["colours"] = torch.from_numpy(dataset.image(row))
    if probs is not None and log_probs is not None:
        annotations = torch.from_numpy(dataset.annotations(row)).long()
        arrays["error"] = -log_probs.gather(0, annotations).mean(0)
        arrays["gamma"] = expected_cross_entropy(probs, log_probs)
    return arrays


def stack_examples(dataset: Dataset, rows: Sequence[int], examples: Sequence[Mapping[str, Tensor]]) -> Examples:
    """Return the examples of the given rows as one object, with views of volumes in three planes."""
    planes = zip(*(plane_views(dataset, row) for row in rows), strict=True)
    first, *others = (_stack_views(dataset, views, examples) for views in planes)
    return replace(first, other_planes=tuple(others))


def _stack_views(
    dataset: Dataset, views: Sequence[PlaneView], examples: Sequence[Mapping[str, Tensor]]
) -> Examples:
    """Return the examples in one plane; pictures of different height are padded."""
    pictures = {
        name: [view.of(arrays[name].cpu().numpy()) for view, arrays in zip(views, examples, strict=True)]
        for name in examples[0]
        if name != "valid"
    }
    heights = [len(image) for image in pictures["image"]]
    spacings = [view.spacing_mm(dataset) for view in views]
    stacked: dict[str, Any] = {name: _stack(arrays, max(heights)) for name, arrays in pictures.items()}
    return Examples(
        cases=np.array([dataset.cases[view.row]["case"] for view in views]),
        valid=np.stack([arrays["valid"].numpy() for arrays in examples]),
        spacing_mm=None if None in spacings else np.array(spacings, dtype=np.float64),
        plane=np.array(views[0].plane(dataset)) if dataset.dims == 3 else None,
        heights=np.array(heights) if len(set(heights)) > 1 else None,
        annotators=np.array(dataset.annotator_names),
        classes=np.array(dataset.info.classes),
        **stacked,
    )


def _stack(pictures: Sequence[NDArray[Any]], height: int) -> NDArray[Any]:
    """Stack pictures (..., H, W), padded below to the same height."""
    below = [[(0, 0)] * (array.ndim - 2) + [(0, height - array.shape[-2]), (0, 0)] for array in pictures]
    return np.stack([np.pad(array, margins) for array, margins in zip(pictures, below, strict=True)])
