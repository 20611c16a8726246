"""Convert images of a fixed size, with masks, to a prepared dataset. Shared by .npz, HDF5, pickle and PNG sources.

The source is read twice: first to determine labels, intensities and patients, then to write the dataset. Only one
image or volume and a sample of pixels are in memory.

A annotators, C image channels, H x W pixels. *size is (H, W) for images and (D, H, W) for volumes.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue
from tqdm import tqdm

from phiseg.core.errors import ConfigError, DataError
from phiseg.data.intensity import Intensity, zscored
from phiseg.data.prepare.fixed_size_source import FixedSizeOptions, Source, print_note
from phiseg.data.prepare.fixed_size_survey import Survey, label_indices, stored_image, survey_source
from phiseg.data.prepare.rescale import rescaled
from phiseg.data.splits import split_patients
from phiseg.data.store import Dataset
from phiseg.data.writer import Case, write_dataset
from phiseg.imaging.frame import Frame, crop

PERCENTILES = (0.5, 99.5)


def write_fixed_size(
    out: Path,
    source: Source,
    options: FixedSizeOptions,
    *,
    provenance: Mapping[str, JsonValue],
    dims: Literal[2, 3] = 2,
    overwrite: bool = False,
    command: str = "",
    progress: bool = True,
) -> Dataset:
    """Convert a source to a prepared dataset. Print automatic choices and skipped images to stderr.

    Args:
        out: folder of the dataset to write.
        source: images with their masks.
        options: options chosen by the user.
        provenance: description of the source to store in the dataset.
        dims: 2 if the source has images, 3 if it has volumes.
        overwrite: replace an existing dataset.
        command: command line to store in the dataset.
        progress: show progress bars.

    Raises:
        DataError: the source is damaged, or its cases differ in size or type. The depths of volumes may differ.
        ConfigError: the fractions are invalid, or crops of volumes would be z-scored.
        OutputError: `out` exists and `overwrite` is false, or it cannot be written.
    """
    if dims == 3 and options.zscore and options.centred_on:
        raise ConfigError(
            "--zscore cannot be used for volumes with --centred-on, because phiseg predict would use the mean and "
            "standard deviation of the whole scan; use --window LOW HIGH"
        )
    survey = survey_source(source, options, progress)
    if not survey.num_cases:
        raise DataError(f"{source.path} has no annotated case; check its masks, and which annotations are missing")
    if survey.num_unread:
        print_note(f"{source.path}: skipped {survey.num_unread} images without annotations")
    classes = options.classes or default_classes(survey.largest_label)
    intensity = _intensity(survey, options, source.path, dims)
    size = (options.size, options.size) if options.size else survey.image_shape[1:]
    splits = survey.splits() or split_patients(survey.home, seed=options.seed, fractions=options.fractions)

    def cases() -> Iterator[Case]:
        for case, _ in tqdm(source, desc="writing", unit="case", disable=not progress):
            if np.any(case.valid):
                yield _prepared(case, intensity, options, survey.image_dtype, source.path)

    return write_dataset(
        out,
        name=options.name or source.path.resolve().stem,
        classes=classes,
        num_annotators=survey.num_annotators,
        image_shape=(survey.image_shape[0], size[0], size[1]),
        image_dtype=np.float32 if options.zscore else survey.image_dtype,
        intensity=intensity,
        cases=cases(),
        dims=dims,
        splits=splits,
        seed=options.seed,
        spacing_mm=source.spacing_mm,
        centred_on=options.centred_on,
        modality=options.modality,
        plane=options.plane,
        source={**provenance, "rescale": [*options.rescale]} if options.rescale else provenance,
        command=command,
        overwrite=overwrite,
    )


def _prepared(
    case: Case, intensity: Intensity, options: FixedSizeOptions, dtype: np.dtype[Any], path: Path
) -> Case:
    where = f"{path}: case '{case.case}'"
    image = stored_image(case.image, where)
    if options.rescale:
        image = rescaled(image, options.rescale, dtype)
    labels = np.zeros(case.labels.shape, dtype=np.uint8)
    labels[case.valid] = label_indices(case.labels[case.valid], where)
    if intensity.kind != "window":
        image = zscored(image)
    if options.size is not None:
        height, width = image.shape[-2:]
        frame = Frame.centred(((height - 1) / 2, (width - 1) / 2), (options.size, options.size))
        image = crop(image, frame, fill=_padding(image, intensity), interpolation="linear")
        labels = crop(labels, frame, fill=0, interpolation="nearest")
        row, column = map(int, frame.origin)
        case = case._replace(columns={**case.columns, "cut_row": row, "cut_column": column})
    return case._replace(image=image, labels=labels)


def _padding(image: NDArray[Any], intensity: Intensity) -> float:
    """Return the value outside the image, as in `PreparedStack.images`."""
    if intensity.kind == "zscore":
        return 0
    return float(image.min()) if intensity.low is None else _clipped(intensity.low, image.dtype)


def _clipped(value: float, dtype: np.dtype[Any]) -> float:
    if dtype.kind == "f":
        return value
    bounds = np.iinfo(dtype)
    return min(max(round(value), bounds.min), bounds.max)


def default_classes(largest_label: int) -> tuple[str, ...]:
    """Return numbered names of classes, at least two."""
    return ("background", *(f"class {label}" for label in range(1, max(largest_label, 1) + 1)))


def _intensity(survey: Survey, options: FixedSizeOptions, path: Path, dims: Literal[2, 3]) -> Intensity:
    """Return the intensity rule chosen by the user, or the one that matches the type and range of the images."""
    if options.zscore:
        return Intensity(kind="image_zscore" if dims == 2 else "zscore")
    if options.window:
        low, high = options.window
    elif survey.image_dtype == np.uint8 and not survey.is_binary:
        low, high = 0, 255
    elif survey.low >= 0 and survey.high <= 1 and (survey.is_binary or survey.image_dtype.kind == "f"):
        low, high = 0, 1
    elif survey.low >= -0.5 and survey.high <= 0.5:  # range of the network's input, as in PHiSeg's data_lidc.hdf5
        low, high = -0.5, 0.5
    else:
        low, high = _percentile_range(survey.sample, path)
    return Intensity(kind="window", low=low, high=high)


def _percentile_range(sample: Sequence[NDArray[Any]], path: Path) -> tuple[float, float]:
    if not sample:
        raise DataError(f"{path} has no split 'train' to estimate the window from; set --window LOW HIGH")
    low, high = (float(f"{value:.6g}") for value in np.percentile(np.concatenate(sample), PERCENTILES))
    if low >= high:
        high = low + max(1.0, abs(low))
    print_note(
        f"{path}: chose --window {low:g} {high:g}, percentiles {PERCENTILES[0]} and {PERCENTILES[1]} of the images "
        "(of split 'train', if there are splits); to use other values, set --window LOW HIGH"
    )
    return low, high
