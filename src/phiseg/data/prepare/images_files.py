"""Pictures with masks: their layouts, a first pass over the files, and the cases.

Without patterns, a folder has one of these layouts. Files are PNG, JPEG, TIFF or BMP:

    SRC/<case>/image.png               SRC/images/<case>.jpg
    SRC/<case>/rater-<name>.png        SRC/<rater>/<case>.png      one folder per annotator

A annotators, C image channels, H x W pixels.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from phiseg.core.errors import ConfigError, DataError
from phiseg.data.manifest import MISSING
from phiseg.data.prepare.fixed_size_source import Item, print_note
from phiseg.data.prepare.found_files import AnnotatedImage, FoundFiles
from phiseg.data.prepare.option_checks import check_size
from phiseg.data.prepare.patterns import FilePatterns
from phiseg.data.prepare.patterns_search import find_by_patterns, layout_error
from phiseg.data.prepare.skipped import SkippedCases
from phiseg.data.prepare.table import find_in_table
from phiseg.data.writer import Case
from phiseg.imaging.pictures import (
    SUFFIXES,
    PictureHeader,
    fitted,
    fitted_place,
    read_mask,
    read_picture,
    read_picture_header,
)

CASE_FOLDERS = FilePatterns(images=("{case}/image.*",), rater="{case}/rater-{rater}.*")
ANNOTATOR_FOLDERS = FilePatterns(images=("images/{case}.*",), rater="{rater}/{case}.*")
LAYOUTS = "<case>/image.* with <case>/rater-<name>.*, or images/<case>.* with <rater>/<case>.*"


@dataclass(frozen=True, kw_only=True)
class PicturePlan:
    """Usable cases and their common properties."""

    cases: list[AnnotatedImage]
    headers: list[PictureHeader]
    annotators: tuple[str, ...]
    values: Mapping[int, int]
    """Class of each value of the masks."""
    size: tuple[int, int]
    channels: int
    grey: bool


def find_pictures(source: Path, patterns: FilePatterns | None, skipped: SkippedCases) -> FoundFiles:
    """List the cases of a folder or of a table.

    Raises:
        ConfigError: no file matches a pattern, or the folder does not have a known layout.
        DataError: the folder does not exist, or two files are the same image or label.
    """
    if source.suffix.lower() == ".csv":
        return find_in_table(source)
    if patterns is not None:
        return find_by_patterns(source, patterns, SUFFIXES, skipped)
    try:
        usual = ANNOTATOR_FOLDERS if (source / "images").is_dir() else CASE_FOLDERS
        return find_by_patterns(source, usual, SUFFIXES, skipped)
    except ConfigError:
        raise layout_error(source, LAYOUTS, SUFFIXES) from None


def plan_pictures(
    source: Path,
    found: FoundFiles,
    values: Mapping[int, int] | None,
    size: tuple[int, int] | None,
    grey: bool,
    skipped: SkippedCases,
    progress: bool,
) -> PicturePlan:
    """Read the headers of all files, and all masks.

    Raises:
        ConfigError: the values of the masks or the sizes of the pictures need an option.
        DataError: there is no usable case.
    """
    if size is not None:
        check_size(*size)
    if values is not None:
        _check_values(values)
    surveyed: list[_Surveyed] = []
    for case in tqdm(found.cases, desc="checking", unit="case", disable=not progress):
        with skipped.unless_good(case.case):
            surveyed.append(_Surveyed(case, _checked_header(case), _values_in(case, automatic=values is None)))
    if not surveyed:
        raise DataError(f"{source} has no usable case; see the messages above")
    if values is None:
        values = _automatic_values(set().union(*(case.values for case in surveyed)), source)
    usable = _with_known_values(surveyed, values, skipped)
    channels = Counter(1 if grey else case.header.channels for case in usable)
    if len(channels) > 1:
        raise ConfigError(
            f"{channels[1]} pictures are grey and {channels[3]} have colours; use --grey, or convert the pictures"
        )
    headers = [case.header for case in usable]
    return PicturePlan(
        cases=[case.files for case in usable],
        headers=headers,
        annotators=tuple(found.annotators),
        values=values,
        size=size or _common_size(headers),
        channels=next(iter(channels)),
        grey=grey,
    )


class _Surveyed(NamedTuple):
    """A case after the first pass."""

    files: AnnotatedImage
    header: PictureHeader
    values: dict[int, Path]
    """Values of the masks, except of JPEG files, each with a mask that has it."""


def _checked_header(case: AnnotatedImage) -> PictureHeader:
    header = read_picture_header(case.images[0])
    for path in case.labels.values():
        mask = read_picture_header(path)
        if mask[:2] != header[:2]:
            raise DataError(
                f"{path} has {mask.height} x {mask.width} pixels, but {case.images[0]} has {header.height} x "
                f"{header.width}; resize the mask (nearest neighbour)"
            )
    return header


def _values_in(case: AnnotatedImage, *, automatic: bool) -> dict[int, Path]:
    lossy = [path for path in case.labels.values() if _is_lossy(path)]
    if lossy and automatic:
        raise ConfigError(f"{lossy[0]} is a JPEG file, whose values vary; give them, such as --values 0:0 255:1")
    exact = [path for path in case.labels.values() if path not in lossy]
    return {int(value): path for path in exact for value in np.flatnonzero(np.bincount(read_mask(path).ravel()))}


def _with_known_values(
    surveyed: list[_Surveyed], values: Mapping[int, int], skipped: SkippedCases
) -> list[_Surveyed]:
    """Return the cases whose values have classes; the others are skipped.

    Raises:
        ConfigError: most cases have a value without a class.
    """
    usable = [case for case in surveyed if case.values.keys() <= values.keys()]
    if 2 * len(usable) < len(surveyed):
        unknown = sorted(set().union(*(case.values for case in surveyed)) - values.keys())
        more = {value: label for label, value in enumerate(unknown, start=max(values.values()) + 1)}
        raise ConfigError(
            f"the masks have values without a class: {_listed(unknown)}; give the class of each, such as --values "
            f"{_pairs({**values, **more})}"
        )
    for case in surveyed:
        with skipped.unless_good(case.files.case):
            for value in sorted(case.values.keys() - values.keys()):
                raise DataError(
                    f"{case.values[value]} has the value {value}, which has no class; add it to --values"
                )
    return usable


def _listed(values: Sequence[int]) -> str:
    return ", ".join(map(str, values[:10])) + (", ..." if len(values) > 10 else "")


def _pairs(values: Mapping[int, int]) -> str:
    return " ".join(f"{value}:{label}" for value, label in sorted(values.items())[:10])


def _is_lossy(path: Path) -> bool:
    return path.suffix.lower() in (".jpg", ".jpeg")


def _check_values(values: Mapping[int, int]) -> None:
    labels = sorted(set(values.values()))
    if labels != list(range(len(labels))) or not 2 <= len(labels) <= MISSING:
        shown = ", ".join(map(str, labels))
        raise ConfigError(f"--values has the classes {shown}; they must be 0 to K-1, such as 0:0 128:1 255:2")


def _automatic_values(seen: set[int], source: Path) -> dict[int, int]:
    """Return the class of each value: two values become 0 and 1, and class indices stay."""
    found = sorted(seen)
    if len(found) < 2:
        raise DataError(f"{source}: all masks have the value {found[0]} only; check the mask files")
    values = {value: label for label, value in enumerate(found)}
    if len(found) > 2 and found != list(range(len(found))):
        raise ConfigError(
            f"the masks have the values {_listed(found)}; give the class of each, such as --values {_pairs(values)}"
        )
    if found != [0, 1] and len(found) == 2:
        print_note(f"{source}: mask value {found[0]} is background and {found[1]} is class 1")
    return values


def _common_size(headers: list[PictureHeader]) -> tuple[int, int]:
    sizes = Counter((header.height, header.width) for header in headers)
    if len(sizes) > 1:
        small, large = min(sizes), max(sizes)
        raise ConfigError(
            f"the pictures have {len(sizes)} sizes, from {small[0]} x {small[1]} to {large[0]} x {large[1]} "
            "pixels; choose one with --size, such as --size 256 or --size 256x320"
        )
    return next(iter(sizes))


class PictureSource:
    """The cases of a plan. Cases with an unreadable file are reported and skipped."""

    spacing_mm = None

    def __init__(self, path: Path, plan: PicturePlan, skipped: SkippedCases) -> None:
        self.path = path
        self._plan = plan
        self._skipped = skipped
        self._broken: set[str] = set()

    def __len__(self) -> int:
        return len(self._plan.cases)

    def __iter__(self) -> Iterator[Item]:
        for files in self._plan.cases:
            item = None
            if files.case not in self._broken:
                with self._skipped.unless_good(files.case):
                    item = Item(self._case(files), files.split)
            if item is None:
                self._broken.add(files.case)
            else:
                yield item

    def _case(self, files: AnnotatedImage) -> Case:
        plan = self._plan
        image = read_picture(files.images[0], grey=plan.grey)
        labels = np.zeros((len(plan.annotators), *image.shape[1:]), dtype=np.uint8)
        for index, annotator in enumerate(plan.annotators):
            if annotator in files.labels:
                labels[index] = self._classes(files.labels[annotator])
        valid = np.array([annotator in files.labels for annotator in plan.annotators])
        before = image.shape[1:]
        if before == plan.size:
            return Case(files.case, files.patient, image, labels, valid)
        (height, _), (row, column) = fitted_place(before, plan.size)
        columns = {"scale": round(height / before[0], 6), "pad_row": row, "pad_column": column}
        image, labels = fitted(image, plan.size), fitted(labels, plan.size, labels=True)
        return Case(files.case, files.patient, image, labels, valid, columns)

    def _classes(self, path: Path) -> NDArray[np.uint8]:
        """Return the class of each pixel (H, W) of a mask."""
        mask = read_mask(path)
        values, known = self._plan.values, sorted(self._plan.values)
        table = [values[min(known, key=partial(_distance, level))] for level in range(int(mask.max()) + 1)]
        drawn: NDArray[np.uint8] = np.array(table, dtype=np.uint8)[mask]
        return drawn


def _distance(first: int, second: int) -> int:
    return abs(first - second)
