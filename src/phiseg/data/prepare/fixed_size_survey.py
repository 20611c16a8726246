"""First pass over a source of images of a fixed size: type, size, labels, patients and a sample of the pixels.

A annotators, C image channels, H x W pixels. *size is (H, W) for images and (D, H, W) for volumes.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from phiseg.core.errors import DataError
from phiseg.core.random import derive_seed
from phiseg.data.classes import check_classes
from phiseg.data.manifest import MISSING
from phiseg.data.prepare.fixed_size_source import FixedSizeOptions, Source
from phiseg.data.prepare.rescale import rescaled, rescaled_type
from phiseg.data.splits import SPLIT_NAMES

SAMPLED_IMAGES = 200
"""Number of images, drawn at random, whose pixels are sampled."""
SAMPLED_PIXELS = 20_000
"""Number of pixels sampled from each of them."""


@dataclass
class Survey:
    """Properties of the source, determined in the first pass."""

    image_shape: tuple[int, ...] = ()
    image_dtype: np.dtype[Any] = field(default_factory=lambda: np.dtype(np.float32))
    is_binary: bool = False
    num_annotators: int = 0
    num_cases: int = 0
    num_unread: int = 0
    low: float = np.inf
    high: float = -np.inf
    largest_label: int = 0
    sample: list[NDArray[Any]] = field(default_factory=list)
    home: dict[str, str | None] = field(default_factory=dict)
    """Split of each patient."""

    def splits(self) -> dict[str, list[str]] | None:
        """Return the patients of each split of the source, or None if it has no splits."""
        names = sorted(
            {name for name in self.home.values() if name is not None},
            key=lambda name: (SPLIT_NAMES.index(name) if name in SPLIT_NAMES else len(SPLIT_NAMES), name),
        )
        return {
            name: sorted(patient for patient, split in self.home.items() if split == name) for name in names
        } or None


def survey_source(source: Source, options: FixedSizeOptions, progress: bool) -> Survey:
    """Read the whole source once.

    Raises:
        DataError: a case is invalid, or differs in size or type from the first one.
    """
    survey = Survey()
    random = np.random.default_rng(derive_seed(options.seed, "percentiles"))
    seen = 0
    for case, split in tqdm(source, desc="reading", unit="case", disable=not progress):
        where = f"{source.path}: case '{case.case}'"
        if not np.any(case.valid):
            survey.num_unread += 1
            continue
        image = stored_image(case.image, where)
        labels = label_indices(case.labels[case.valid], where)
        shape, annotators = (image.shape[0], *image.shape[-2:]), len(case.labels)  # volumes may differ in depth
        if not survey.num_cases:
            survey.image_shape, survey.image_dtype, survey.num_annotators = shape, image.dtype, annotators
            survey.is_binary = case.image.dtype.kind == "b" and not options.rescale
        same = shape == survey.image_shape and annotators == survey.num_annotators
        if not same or labels.shape[1:] != image.shape[1:]:
            raise DataError(
                f"{where} has an image {image.shape} with masks {case.labels.shape}, but the first case has an "
                f"image {survey.image_shape} with {survey.num_annotators} masks; use the same size for all cases"
                + _order_hint(image)
            )
        if image.dtype != survey.image_dtype:
            raise DataError(
                f"{where}: the pixels are {image.dtype}, but those of the first case are {survey.image_dtype}; "
                "save all images with the same type"
            )
        if options.rescale:
            image = rescaled(image, options.rescale)
        _note_split(survey, case.patient, None if options.resplit else split, source.path)
        survey.num_cases += 1
        survey.low, survey.high = min(survey.low, float(image.min())), max(survey.high, float(image.max()))
        if options.classes:
            check_classes(labels, options.classes, where=where)
        survey.largest_label = max(survey.largest_label, int(labels.max()))
        if options.resplit or split in (None, "train"):
            seen += 1
            slot = len(survey.sample) if seen <= SAMPLED_IMAGES else int(random.integers(seen))
            if slot < SAMPLED_IMAGES:  # reservoir sampling: all images have the same probability
                pixels = random.choice(image.ravel(), min(image.size, SAMPLED_PIXELS), replace=False)
                survey.sample[slot : slot + 1] = [pixels]
    if options.rescale:
        survey.image_dtype = rescaled_type(survey.image_dtype, options.rescale[0], survey.low, survey.high)
    return survey


def _order_hint(image: NDArray[Any]) -> str:
    if image.ndim < 4:
        return ""
    return ", and volumes in the order slices, height, width (numpy.moveaxis(volume, -1, 0) puts slices first)"


def _note_split(survey: Survey, patient: str, split: str | None, path: Path) -> None:
    other = survey.home.setdefault(patient, split)
    if other != split:
        raise DataError(
            f"{path}: patient '{patient}' is in split '{other}' and in '{split}', so the model would be "
            "tested on training patients; remove one of them, or use --resplit to make new splits"
        )


def stored_image(image: NDArray[Any], where: str) -> NDArray[Any]:
    """Return the image in its storage type: unchanged, except float32 for wider floats and uint8 for booleans."""
    if image.dtype.kind not in "biuf":
        raise DataError(f"{where}: the pixels are {image.dtype}, not numbers; save them as integers or floats")
    stored: np.dtype[Any] = image.dtype.newbyteorder("=")
    if image.dtype.kind == "b":
        stored = np.dtype(np.uint8)
    elif image.dtype.kind == "f" and image.dtype.itemsize > 4:
        stored = np.dtype(np.float32)
    with np.errstate(over="ignore"):
        pixels: NDArray[Any] = image.astype(stored)
    if not np.isfinite(pixels).all():
        raise DataError(f"{where}: the image has NaN or infinite pixels as {stored}; fix or remove the image")
    return pixels


def label_indices(masks: NDArray[Any], where: str) -> NDArray[Any]:
    """Return masks of any numeric type as integer class indices."""
    if masks.dtype.kind not in "biuf":
        raise DataError(f"{where}: the masks are {masks.dtype}, not numbers; save class indices 0, 1, ...")
    if masks.dtype.kind == "f" and not (np.isfinite(masks).all() and (masks == np.rint(masks)).all()):
        raise DataError(f"{where}: the masks contain NaN or fractions; save class indices 0, 1, ...")
    low, high = masks.min(), masks.max()
    if low < 0 or high >= MISSING:
        raise DataError(
            f"{where}: label {low if low < 0 else high} is not a class; use 0 for the background and 1, 2, ... for "
            "classes (divide masks of 0 and 255 by 255), and mark missing annotations in 'valid'"
        )
    return masks.astype(np.uint8)
