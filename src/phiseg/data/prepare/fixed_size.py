"""Convert images of a fixed size, with masks, to a prepared dataset. Shared by .npz, HDF5, pickle and PNG sources.

The source is read twice: first to determine labels, intensities and patients, then to write the dataset. Only one
image and a sample of pixels are in memory.

A annotators, C image channels, H x W pixels.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue
from tqdm import tqdm

from phiseg.core.errors import ConfigError, DataError
from phiseg.core.random import derive_seed
from phiseg.data.intensity import Intensity, zscored
from phiseg.data.manifest import MISSING, SlicePlane
from phiseg.data.prepare.option_checks import check_size, check_window
from phiseg.data.prepare.rescale import check_rescale, rescaled, rescaled_type
from phiseg.data.splits import SPLIT_NAMES, split_patients
from phiseg.data.store import Dataset, check_classes
from phiseg.data.writer import Case, write_dataset
from phiseg.imaging.frame import Frame, cut

PERCENTILES = (0.5, 99.5)
_SAMPLED_IMAGES = 200
_SAMPLED_PIXELS = 20_000


class Item(NamedTuple):
    """One case of the source, and its split in the source."""

    case: Case
    split: str | None


class Source(Protocol):
    """A source that can be iterated repeatedly."""

    @property
    def path(self) -> Path:
        """File or folder of the source."""

    @property
    def spacing_mm(self) -> tuple[float, float] | None:
        """Pixel spacing (vertical, horizontal), if all cases have the same."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Item]: ...


@dataclass(frozen=True, kw_only=True)
class FixedSizeOptions:
    """What the user decides about a stack."""

    rescale: tuple[float, float] | None = None
    """Slope and intercept that are applied to the stored values first."""
    window: tuple[float, float] | None = None
    """Stored values that are mapped to the darkest and brightest value; None estimates them from the images."""
    zscore: bool = False
    """Normalise each image to mean 0 and standard deviation 1 instead of using a window."""
    classes: tuple[str, ...] | None = None
    """Class names, background first; None numbers the classes in the masks."""
    size: int | None = None
    """Height and width to crop or pad the images to around their centre; None keeps the size."""
    centred_on: str | None = None
    """Object at the centre of every image, such as a nodule; None for whole slices."""
    modality: str | None = None
    """DICOM modality of the images (CT, MR, PT), if known."""
    plane: SlicePlane | None = None
    """Plane of the images, if known."""
    resplit: bool = False
    """Ignore the splits of the source and make new ones by patient."""
    seed: int = 0
    fractions: tuple[float, ...] = (60, 20, 20)
    name: str | None = None
    """Name of the dataset; None uses the name of the file."""

    def __post_init__(self) -> None:
        if self.window and self.zscore:
            raise ConfigError("--window and --zscore cannot be used together; omit one of them")
        if self.rescale and self.zscore:
            raise ConfigError("--rescale has no effect with --zscore; omit one of them")
        check_rescale(self.rescale)
        check_window(self.window)
        if self.size is not None:
            check_size(self.size)
        split_patients([], seed=self.seed, fractions=self.fractions)  # validate before reading
        if self.classes is not None and not 2 <= len(set(self.classes)) == len(self.classes) <= MISSING:
            raise ConfigError(
                "--classes requires at least two different names separated by spaces, such as: background nodule"
            )


@dataclass
class _Survey:
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


def write_fixed_size(
    out: Path,
    source: Source,
    options: FixedSizeOptions,
    *,
    provenance: Mapping[str, JsonValue],
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
        overwrite: replace an existing dataset.
        command: command line to store in the dataset.
        progress: show progress bars.

    Raises:
        DataError: the source is damaged, or its cases differ in size or type.
        ConfigError: the fractions are invalid.
        OutputError: `out` exists and `overwrite` is false, or it cannot be written.
    """
    survey = _look_through(source, options, progress)
    if not survey.num_cases:
        raise DataError(f"{source.path} has no annotated case; check its masks and 'valid'")
    if survey.num_unread:
        tell(f"{source.path}: skipped {survey.num_unread} images without annotations")
    classes = options.classes or _default_classes(survey.largest_label)
    intensity = _intensity(survey, options, source.path)
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


def tell(note: str) -> None:
    """Print a note to stderr without breaking progress bars."""
    tqdm.write(f"phiseg: {note}", file=sys.stderr)


def text_of(value: Any, *, where: str) -> str:
    """Return a name, number or identifier as text.

    Raises:
        DataError: the text has unprintable characters.
    """
    if isinstance(value, bytes):
        value = value.decode("utf-8", errors="replace")
    text = str(value)
    if not text.isprintable():
        raise DataError(f"{where}: {text[:40]!r} has unprintable characters; use plain text")
    return text


def _look_through(source: Source, options: FixedSizeOptions, progress: bool) -> _Survey:
    survey = _Survey()
    random = np.random.default_rng(derive_seed(options.seed, "percentiles"))
    seen = 0
    for case, split in tqdm(source, desc="reading", unit="case", disable=not progress):
        where = f"{source.path}: case '{case.case}'"
        if not np.any(case.valid):
            survey.num_unread += 1
            continue
        image = _stored(case.image, where)
        labels = _labels(case.labels[case.valid], where)
        shape, annotators = image.shape, len(case.labels)
        if not survey.num_cases:
            survey.image_shape, survey.image_dtype, survey.num_annotators = shape, image.dtype, annotators
            survey.is_binary = case.image.dtype.kind == "b" and not options.rescale
        if shape != survey.image_shape or labels.shape[1:] != shape[1:] or annotators != survey.num_annotators:
            raise DataError(
                f"{where} has an image {shape} with masks {case.labels.shape}, but the first case has an image "
                f"{survey.image_shape} with {survey.num_annotators} masks; use the same size for all cases"
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
            slot = len(survey.sample) if seen <= _SAMPLED_IMAGES else int(random.integers(seen))
            if slot < _SAMPLED_IMAGES:  # reservoir sampling: all images have the same probability
                pixels = random.choice(image.ravel(), min(image.size, _SAMPLED_PIXELS), replace=False)
                survey.sample[slot : slot + 1] = [pixels]
    if options.rescale:
        survey.image_dtype = rescaled_type(survey.image_dtype, options.rescale[0], survey.low, survey.high)
    return survey


def _note_split(survey: _Survey, patient: str, split: str | None, path: Path) -> None:
    other = survey.home.setdefault(patient, split)
    if other != split:
        raise DataError(
            f"{path}: patient '{patient}' is in split '{other}' and in '{split}', so the model would be "
            "tested on training patients; remove one of them, or use --resplit to make new splits"
        )


def _stored(image: NDArray[Any], where: str) -> NDArray[Any]:
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


def _labels(masks: NDArray[Any], where: str) -> NDArray[Any]:
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


def _prepared(
    case: Case, intensity: Intensity, options: FixedSizeOptions, dtype: np.dtype[Any], path: Path
) -> Case:
    where = f"{path}: case '{case.case}'"
    image = _stored(case.image, where)
    if options.rescale:
        image = rescaled(image, options.rescale, dtype)
    labels = np.zeros(case.labels.shape, dtype=np.uint8)
    labels[case.valid] = _labels(case.labels[case.valid], where)
    if intensity.kind == "image_zscore":
        image = zscored(image)
    if options.size is not None:
        height, width = image.shape[1:]
        frame = Frame.centred(((height - 1) / 2, (width - 1) / 2), (options.size, options.size))
        dark = image.min() if intensity.low is None else _clipped(intensity.low, image.dtype)
        image = cut(image, frame, fill=dark, interpolation="linear")
        labels = cut(labels, frame, fill=0, interpolation="nearest")
        row, column = map(int, frame.origin)
        case = case._replace(columns={**case.columns, "cut_row": row, "cut_column": column})
    return case._replace(image=image, labels=labels)


def _clipped(value: float, dtype: np.dtype[Any]) -> float:
    if dtype.kind == "f":
        return value
    bounds = np.iinfo(dtype)
    return min(max(round(value), bounds.min), bounds.max)


def _default_classes(largest_label: int) -> tuple[str, ...]:
    return ("background", *(f"class {label}" for label in range(1, max(largest_label, 1) + 1)))


def _intensity(survey: _Survey, options: FixedSizeOptions, path: Path) -> Intensity:
    """Return the intensity rule chosen by the user, or the one that matches the type and range of the images."""
    if options.zscore:
        return Intensity(kind="image_zscore")
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
    tell(
        f"{path}: chose --window {low:g} {high:g}, percentiles {PERCENTILES[0]} and {PERCENTILES[1]} of the images "
        "(of split 'train', if there are splits); for CT set the window, such as --window -1000 400"
    )
    return low, high
