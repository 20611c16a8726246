"""What a model folder says about its model: where it comes from, and the model card."""

import hashlib
import re
import unicodedata
from collections.abc import Mapping
from functools import cache
from typing import Any

from phiseg.data.store import Dataset
from phiseg.metrics.registry import SCORES
from phiseg.models import Segmenter
from phiseg.training.recipe import Recipe


def provenance(recipe: Recipe, dataset: Dataset, step: int, *, initial: Segmenter | None = None) -> dict[str, Any]:
    """Return where the weights come from: the recipe, the step, whose annotations were learned, and of whom.

    The fingerprint of the dataset is the salt of the patients' tokens, so that trainings on one dataset share it.
    A model that starts from another one keeps its salt and its patients: it has learned from them, too.
    """
    before = initial.provenance if initial is not None else {}
    salt = before.get("patient_salt") or dataset.fingerprint
    trained_before = before.get("train_patients", []) if before.get("patient_salt") else []
    return {
        "recipe": recipe.name,
        "step": step,
        "annotator": recipe.train.annotator,
        "patient_salt": salt,
        "train_patients": sorted({*patient_tokens(dataset, "train", salt=salt), *trained_before}),
        "val_patients": patient_tokens(dataset, "val", salt=salt),
    }


def patient_tokens(dataset: Dataset, split: str, *, salt: str | None) -> list[str]:
    """Return one token for every patient who has a case in the split.

    With tokens a model folder records its patients without their ids. A token depends on the id and the model's
    salt alone, so a patient is recognised in any dataset, however it was prepared. The hash is slow on purpose; it
    does not protect ids from someone who can list all possible ones.

    Args:
        dataset: the dataset.
        split: one of its splits.
        salt: `patient_salt` in the model's provenance. None for older models, which have none: they hashed the id
            with the fingerprint of the dataset and recognise patients of that very dataset only.
    """
    patients = {dataset.cases[row]["patient"] for row in dataset.rows(split)}
    if salt is None:
        fingerprint = dataset.fingerprint
        return sorted(hashlib.sha256(f"{fingerprint}/{patient}".encode()).hexdigest()[:16] for patient in patients)
    return sorted({_token(normalised_patient(patient), salt) for patient in patients})


def normalised_patient(patient: str) -> str:
    """Return a patient's id without differences of case, width and separators.

    >>> normalised_patient(" LIDC_IDRI 0003")
    'lidc-idri-0003'
    """
    plain = unicodedata.normalize("NFKC", patient).casefold()
    return re.sub(r"[\W_]+", "-", plain).strip("-")


@cache  # about 5 ms, and asked for at every validation
def _token(patient: str, salt: str) -> str:
    return hashlib.scrypt(patient.encode(), salt=salt.encode(), n=2**11, r=8, p=1, dklen=8).hex()


def model_card(recipe: Recipe, dataset: Dataset, step: int, scores: Mapping[str, float | None]) -> str:
    """Return the model card: what it is, what it was trained on, how it scored, what it is not for."""
    train = recipe.train
    height, width = dataset.info.size
    who = (
        "one random annotator per image and step"
        if train.annotator == "random"
        else f"annotator {train.annotator} only"
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

This model samples plausible segmentations of an image:
`phiseg.load(FOLDER).sample(image, num_samples, generator=...)`.

| | |
|---|---|
| classes | {", ".join(dataset.info.classes)} |
| images | {dataset.info.image_channels} channel(s), {height} x {width} pixels in training |
| modality | {dataset.info.modality or "not specified"} |
| dataset | {dataset.info.name}, fingerprint `{dataset.fingerprint[:16]}` |
| annotations | {who} |
| selected step | {step} of {train.steps}, the best by validation {train.select_by} |
| batch size, learning rate, seed | {train.batch_size}, {train.learning_rate}, {train.seed} |

## Scores on the validation split

These scores use {train.validation_samples} samples per case. GED decreases with the number of samples: compare it
with its floor, or with scores from the same number of samples.

| score | value |
|---|---|
{rows}

## Limitations

Research software, not a medical device. The model is valid only for images like its training images. Its samples
show how the training annotators differ, not every way in which a segmentation can be wrong.
"""
