"""Provenance and model card of a model folder."""

import hashlib
import re
import unicodedata
from collections.abc import Mapping
from functools import cache
from typing import Any

from phiseg.data.store import Dataset
from phiseg.metrics.score_registry import SCORES
from phiseg.training.recipe import Recipe


def provenance(
    recipe: Recipe, dataset: Dataset, step: int, *, initial: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the origin of the weights: recipe, step, annotator, patients and initial model.

    The fingerprint of the dataset is the salt of the patient tokens, so that runs on the same dataset share it. A
    fine-tuned model keeps the salt and the patients of its initial model, because it was also trained on them.

    Args:
        recipe: recipe of the training.
        dataset: dataset of the training.
        step: step of the weights.
        initial: provenance of the initial model, and the `sha256` of its weights. Its patients are not included if
            it has no salt, because their tokens are of another kind.
    """
    before = initial or {}
    salt = before.get("patient_salt") or dataset.fingerprint

    def patients(split: str) -> list[str]:
        earlier = before.get(f"{split}_patients") or () if before.get("patient_salt") else ()
        return sorted({*patient_tokens(dataset, split, salt=salt), *map(str, earlier)})

    origin = {key: before[key] for key in ("recipe", "step", "sha256", "initial_model") if key in before}
    return {
        "recipe": recipe.name,
        "step": step,
        "annotator": recipe.train.annotator,
        "patient_salt": salt,
        "train_patients": patients("train"),
        "val_patients": patients("val"),
        **({"initial_model": origin} if origin else {}),
    }


def patient_tokens(dataset: Dataset, split: str, *, salt: str | None) -> list[str]:
    """Return one token for each patient with a case in the split.

    With tokens, a model folder records its patients without their IDs. A token depends only on the ID and the salt
    of the model, so that a patient is recognised in any dataset. The hash is slow on purpose; it does not protect
    IDs if all possible IDs can be enumerated.

    Args:
        dataset: the dataset.
        split: name of a split.
        salt: `patient_salt` in the provenance of the model. None for older models: their tokens use the fingerprint
            of the dataset and identify patients of the same dataset only.
    """
    patients = {dataset.cases[row]["patient"] for row in dataset.rows(split)}
    if salt is None:
        fingerprint = dataset.fingerprint
        return sorted(hashlib.sha256(f"{fingerprint}/{patient}".encode()).hexdigest()[:16] for patient in patients)
    return sorted({patient_token(patient, salt) for patient in patients})


def normalised_patient(patient: str) -> str:
    """Return a patient ID in a canonical form without differences in case, width and separators.

    >>> normalised_patient(" LIDC_IDRI 0003")
    'lidc-idri-0003'
    """
    plain = unicodedata.normalize("NFKC", patient).casefold()
    return re.sub(r"[\W_]+", "-", plain).strip("-")


@cache  # takes about 5 ms and is needed in every validation
def patient_token(patient: str, salt: str) -> str:
    """Return the token of one patient, 16 hexadecimal digits."""
    name = normalised_patient(patient)
    return hashlib.scrypt(name.encode(), salt=salt.encode(), n=2**11, r=8, p=1, dklen=8).hex()


def model_card(recipe: Recipe, dataset: Dataset, step: int, scores: Mapping[str, float | None]) -> str:
    """Return the model card: description, training data, scores and limitations."""
    train = recipe.train
    who = f"annotator {train.annotator} only"
    if train.annotator == "random":
        number = min(train.annotations_per_image, dataset.info.num_annotators)
        who = f"{number if number > 1 else 'one'} random annotator{'s' if number > 1 else ''} per image and step"
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

This model samples plausible segmentations of an image:
`phiseg.load(FOLDER).sample(image, num_samples, seed=0)`.

| | |
|---|---|
| classes | {", ".join(dataset.info.classes)} |
| images | {dataset.info.image_channels} channel(s), {dataset.describe_size()} in training |
| modality | {dataset.info.modality or "not specified"} |
| dataset | {dataset.info.name}, fingerprint `{dataset.fingerprint[:16]}` |
| annotations | {who} |
| selected step | {step} of {train.steps}, the best by validation {train.select_by} |
| batch size, learning rate, seed | {train.batch_size}, {train.learning_rate}, {train.seed} |

## Scores on the validation split

These scores use {train.validation_samples} samples per case. GED decreases with the number of samples: compare it
with its floor, or with scores from the same number of samples. The floor, and an unbiased GED of 0, can be reached
only if annotators are independent given the image.

| score | value |
|---|---|
{rows}

## Limitations

Research software, not a medical device. The model is valid only for images like its training images. Its samples
show how the training annotators differ, not every way in which a segmentation can be wrong.
"""
