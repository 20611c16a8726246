"""Validation: loss and bound on all annotations of the split, and scores of samples."""

from collections import defaultdict
from math import isfinite
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from tqdm import tqdm

from phiseg.data.store import Dataset
from phiseg.inference.sampling import sample_cases
from phiseg.metrics.sampled_case import SampledCase
from phiseg.metrics.score_registry import case_scores
from phiseg.models import Segmenter
from phiseg.models.noise import seeded_generator
from phiseg.training.recipe import TrainConfig


@torch.inference_mode()
def validate(
    model: Segmenter,
    dataset: Dataset,
    config: TrainConfig,
    fabric: Fabric,
    *,
    split: str = "val",
    progress: bool = False,
) -> dict[str, float | None]:
    """Return the mean loss, its terms and the scores over the whole split; non-finite values are None.

    The loss uses the posterior path (eq. 2) for all valid annotations, or for those of the annotator used in
    training. With several annotations per image, it uses the set of all of them. Its noise depends only on the case
    and the annotator, so that validations of different steps are comparable. The main scores, and the score that
    selects the model, compare `config.validation_samples` samples with all annotators. Several processes share the
    cases; the result is the same up to rounding.
    """
    model.eval()
    rows = dataset.rows(split)[fabric.global_rank :: fabric.world_size]
    scores = case_scores(dataset.dims)
    scores = [score for score in scores if score.group == "main" or score.name == config.select_by]
    sums: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)

    def add(name: str, value: float | None, weight: int = 1) -> None:
        if value is not None:
            sums[name] += weight * value
            counts[name] += weight

    bar = tqdm(total=2 * len(rows), desc="validating", unit="case", leave=False, disable=not progress)
    with bar, fabric.autocast():
        for row in rows:
            bar.update()
            chosen = [a for a in np.flatnonzero(dataset.valid[row]).tolist() if config.annotator in ("random", a)]
            if not chosen:
                continue
            image = torch.from_numpy(dataset.image(row, context=model.config.context)).to(fabric.device)
            as_set = config.annotations_per_image > 1
            together = as_set or dataset.dims == 2
            for group in [chosen] if together else [[a] for a in chosen]:  # one volume at a time
                labels = torch.from_numpy(dataset.case_labels(row)[group]).long().to(fabric.device)  # (A, *size)
                case = dataset.cases[row]["case"]
                labels = labels[None] if as_set else labels
                generators = [seeded_generator(config.seed, "validation", case, a) for a in group[: len(labels)]]
                loss = model(image.expand(len(labels), *image.shape), labels, generator=generators)
                for name, value in {"loss": loss.total, **loss.terms}.items():
                    add(name, value.item(), weight=len(group))
        for samples in sample_cases(
            model,
            dataset,
            rows.tolist(),
            num_samples=config.validation_samples,
            seed=config.seed,
            patch_depth=config.patch_size[0] if config.patch_size else None,
        ):
            bar.update()
            if not samples.summary.mean_probs.isfinite().all():  # diverged, as the loss above shows
                continue
            annotations = torch.from_numpy(dataset.annotations(samples.row))
            case_samples = SampledCase(
                *samples.summary, annotations, spacing_mm=dataset.axis_spacing_mm(samples.row)
            )
            for score in scores:
                add(score.name, score.value(case_samples))
    return _means(fabric, sums, counts)


def _means(fabric: Fabric, sums: dict[str, float], counts: dict[str, int]) -> dict[str, float | None]:
    parts: list[Any] = [(sums, counts)]
    if fabric.world_size > 1:
        parts = [None] * fabric.world_size
        torch.distributed.all_gather_object(parts, (dict(sums), dict(counts)))
    names = dict.fromkeys(name for part_sums, _ in parts for name in part_sums)
    means = {
        name: sum(part[0].get(name, 0.0) for part in parts) / sum(part[1].get(name, 0) for part in parts)
        for name in names
    }
    return {name: mean if isfinite(mean) else None for name, mean in means.items()}  # JSON has no NaN
