"""What a model folder says about its model: where it comes from, and the model card."""

import hashlib
from collections.abc import Mapping
from typing import Any

from phiseg.data.store import Dataset
from phiseg.metrics.case import SCORES
from phiseg.training.recipe import Recipe


def provenance(recipe: Recipe, dataset: Dataset, step: int) -> dict[str, Any]:
    """Return where the weights come from: the recipe, the step, whose annotations were learned, and of whom."""
    return {
        "recipe": recipe.name,
        "step": step,
        "annotator": recipe.train.annotator,
        "train_patients": patient_tokens(dataset, "train"),
    }


def patient_tokens(dataset: Dataset, split: str) -> list[str]:
    """Return one token for every patient who has a case in the split.

    A token hashes the patient's name with the dataset's fingerprint: a model folder can say whom it was trained on
    without their names, and patients of two datasets who happen to be called alike are told apart.
    """
    patients = {dataset.cases[row]["patient"] for row in dataset.rows(split)}
    salt = dataset.fingerprint
    return sorted(hashlib.sha256(f"{salt}/{patient}".encode()).hexdigest()[:16] for patient in patients)


def model_card(recipe: Recipe, dataset: Dataset, step: int, scores: Mapping[str, float | None]) -> str:
    """Return the model card: what it is, what it was trained on, how it scored, what it is not for."""
    train = recipe.train
    height, width = dataset.info.size
    who = (
        "one random annotator per image and step" if train.annotator == "random" else f"annotator {train.annotator}"
    )
    rows = "\n".join(
        f"| {name} | {value:.4f} |"
        for name, value in scores.items()
        if name in {"loss", "elbo", *SCORES} and value is not None
    )
    return f"""---
library_name: phiseg
tags: [medical-image-segmentation, uncertainty]
---

# {recipe.name} trained on {dataset.info.name}

Draws plausible segmentations of an image: `phiseg.load(FOLDER).sample(image, num_samples, generator=...)`.

| | |
|---|---|
| classes | {", ".join(dataset.info.classes)} |
| image | {dataset.info.image_channels} channel(s), {height} x {width} pixels in training |
| modality | {dataset.info.modality or "not said"} |
| data | {dataset.info.name}, fingerprint `{dataset.fingerprint[:16]}` |
| learned from | {who} |
| weights of step | {step} of {train.steps}, the best by validation {train.select_by} |
| batch, learning rate, seed | {train.batch_size}, {train.learning_rate}, {train.seed} |

## Scores on the validation split

With {train.validation_samples} samples a case. GED falls with the number of samples: compare it with its floor, or
with scores of the same number.

| score | value |
|---|---|
{rows}

## Limits

Research software, not a medical device. The model knows the kind of image it was trained on and nothing else; its
samples show how the training annotators differ, not every way in which a segmentation can be wrong.
"""
