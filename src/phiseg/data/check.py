"""Check a prepared dataset for problems and compute statistics of its annotators.

Cases are read one by one, so the dataset may be larger than memory. Problems are collected, not raised.

A annotators, K classes, *size pixels: (H, W) for images, (D, H, W) for volumes.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from phiseg.core.config import StrictConfig
from phiseg.core.errors import DataError
from phiseg.data.neighbours import repeated_places
from phiseg.data.spacing import SLICES, case_spacing, positive_number
from phiseg.data.store import Dataset
from phiseg.metrics.ged import ged_floor
from phiseg.metrics.overlap import pairwise_iou

MIN_CASES_FOR_SHARES = 50
"""Minimum number of cases of an annotator for a note on the share of empty annotations."""
UNEVEN_SHARES = 0.2
"""Difference between the shares of empty annotations of two annotators above which there is a note."""
FLOOR_SAMPLES = (16, 100)
"""Numbers of samples for which the GED floor is reported, as in the figures of the paper."""

NO_SPLIT = "no split"

REPEATED_SLICES = (
    "stacks with a repeated slice number, whose slices have no neighbours, because they come from several scans; "
    "add a column scan"
)
UNKNOWN_SPACING = "volumes of unknown spacing, so that they cannot be measured in ml"


class Count(StrictConfig):
    """Size of one split."""

    patients: int
    cases: int


class Annotator(StrictConfig):
    """Numbers of cases of one annotator."""

    name: str
    """Name in the source, or `annotator` and the number."""
    looked: int
    """Cases with an annotation, empty or not."""
    missing: int
    """Cases without an annotation."""
    empty: int
    """Cases with an empty annotation."""


class ClassShare(StrictConfig):
    """Frequency of a class."""

    pixels: float
    """Share of all annotated pixels."""
    annotations: float
    """Share of the annotations that contain the class."""


class Agreement(StrictConfig):
    """Agreement of two annotators of a case: IoU over the foreground classes, where two empty masks count as 1."""

    pairs: int
    iou: float | None
    """Mean over all pairs; None if no case has two annotators."""
    pairs_who_both_drew: int
    iou_who_both_drew: float | None
    """Mean over the pairs of non-empty annotations."""
    ged_floor: dict[int, float | None]
    """Mean GED floor by number of samples."""


class Report(StrictConfig):
    """Result of a check."""

    dataset: str
    cases: int
    patients: int
    problems: tuple[str, ...]
    """Errors to fix before training."""
    notes: tuple[str, ...]
    """Observations that are not errors."""
    splits: dict[str, Count]
    """Sizes of the splits. Patients without a split are counted as "no split"."""
    drew: dict[int, int]
    """Number of cases by number of non-empty annotations, from 0 to A."""
    annotators: tuple[Annotator, ...]
    classes: dict[str, ClassShare]
    agreement: Agreement
    spacing_mm: tuple[float, float] | None
    """Smallest and largest pixel spacing of the cases, if known."""
    depth: tuple[int, int] | None = None
    """Smallest and largest number of slices of volumes."""
    slice_spacing_mm: tuple[float, float] | None = None
    """Smallest and largest distance between slices of volumes, if known."""


def check_dataset(dataset: Dataset, *, progress: bool = True) -> Report:
    """Read a whole dataset and report on it.

    Args:
        dataset: an open dataset. Opening it has already checked files, shapes and patients in two splits.
        progress: show progress bars.
    """
    problems = []
    try:
        dataset.verify(progress=progress)
    except DataError as error:
        problems.append(str(error))
    tally = _Tally(dataset)
    for row in tqdm(range(dataset.num_cases), "checking", unit="case", disable=not progress, leave=False):
        problems += tally.add(row)
    homes = {patient: name for name, members in dataset.splits.items() for patient in members}
    leaks, copies = _duplicates(dataset, tally.rows_of_image, homes)
    return tally.report(
        problems=[*problems, *leaks],
        notes=[
            *_few("constant images", tally.constant),
            *_few(REPEATED_SLICES, [", ".join(filter(None, stack)) for stack in _repeated_stacks(dataset)]),
            *copies,
            *_few(UNKNOWN_SPACING, _without_spacing(dataset)),
            *_uneven_annotators(dataset, tally.empty),
        ],
        splits=_count_splits(dataset, homes),
    )


def _repeated_stacks(dataset: Dataset) -> list[tuple[str, ...]]:
    return sorted({stack for stack, _ in repeated_places(dataset.cases)})


def _uneven_annotators(dataset: Dataset, empty: NDArray[np.int64]) -> Iterator[str]:
    """Yield a note if the share of empty annotations (A,) differs so much that their order may depend on them."""
    annotated = dataset.valid.sum(axis=0)
    known = np.flatnonzero(annotated >= MIN_CASES_FOR_SHARES)
    shares = empty[known] / annotated[known]
    if len(known) < 2 or shares.max() - shares.min() <= UNEVEN_SHARES:
        return
    low, high = (
        f"{shares[at]:.0%} ({dataset.annotator_names[known[at]]})" for at in (shares.argmin(), shares.argmax())
    )
    yield (
        f"empty annotations: {low} to {high}. If a number does not stand for one person, annotations may "
        "be sorted by who drew, and a model trained on one annotator is biased"
    )


@dataclass
class _Mean:
    total: float = 0.0
    count: int = 0

    def add(self, *values: float) -> None:
        self.total += float(sum(values))
        self.count += len(values)

    @property
    def value(self) -> float | None:
        return self.total / self.count if self.count else None


class _Tally:
    """Sums over the cases read so far."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self.rows_of_image: dict[bytes, list[int]] = defaultdict(list)
        self.constant: list[str] = []
        self.drew: Counter[int] = Counter()
        self.empty = np.zeros(dataset.info.num_annotators, dtype=np.int64)
        self.pixels = np.zeros(len(dataset.info.classes), dtype=np.int64)
        self.holding = np.zeros(len(dataset.info.classes), dtype=np.int64)
        self.num_annotations = 0
        self.overlap, self.overlap_who_both_drew = _Mean(), _Mean()
        self.floors = {number: _Mean() for number in FLOOR_SAMPLES}

    def add(self, row: int) -> Iterator[str]:
        """Read one case and yield its problems."""
        try:
            self._add_image(row)
        except DataError as error:
            yield str(error)
        try:
            self.dataset.check_labels([row])
        except DataError as error:
            yield str(error)
        else:
            self._add_labels(row)

    def _add_image(self, row: int) -> None:
        self.dataset.image(row)  # raises DataError for NaN
        stored = np.ascontiguousarray(self.dataset.stored_image(row))
        if (stored == stored.flat[0]).all():
            self.constant.append(self.dataset.cases[row]["case"])
        else:
            self.rows_of_image[hashlib.sha256(stored.tobytes()).digest()].append(row)

    def _add_labels(self, row: int) -> None:
        annotations = _as_images(self.dataset.annotations(row))  # (A_valid, H, W)
        counts = np.stack([np.bincount(drawn.ravel(), minlength=len(self.pixels)) for drawn in annotations])
        has_drawn = counts[:, 1:].sum(axis=1) > 0  # (A,)
        self.pixels += counts.sum(axis=0)
        self.holding += (counts > 0).sum(axis=0)
        self.num_annotations += len(annotations)
        self.drew[int(has_drawn.sum())] += 1
        self.empty[np.flatnonzero(self.dataset.valid[row])[~has_drawn]] += 1

        masks, num_classes = torch.from_numpy(annotations), len(self.dataset.info.classes)
        one, other = np.triu_indices(len(masks), k=1)
        overlaps = pairwise_iou(masks, masks, num_classes=num_classes).numpy()[one, other]  # (pairs,)
        self.overlap.add(*overlaps)
        self.overlap_who_both_drew.add(*overlaps[has_drawn[one] & has_drawn[other]])
        for number, mean in self.floors.items():
            floor = ged_floor(masks, number, num_classes=num_classes)
            if floor is not None:
                mean.add(floor)

    def report(self, *, problems: Sequence[str], notes: Sequence[str], splits: dict[str, Count]) -> Report:
        info, valid = self.dataset.info, self.dataset.valid
        return Report(
            dataset=info.name,
            cases=self.dataset.num_cases,
            patients=sum(count.patients for count in splits.values()),
            problems=tuple(problems),
            notes=tuple(notes),
            splits=splits,
            drew={number: self.drew[number] for number in range(info.num_annotators + 1)},
            annotators=tuple(
                Annotator(name=name, looked=int(looked), missing=len(valid) - int(looked), empty=int(empty))
                for name, looked, empty in zip(
                    self.dataset.annotator_names, valid.sum(axis=0), self.empty, strict=True
                )
            ),
            classes={
                name: ClassShare(
                    pixels=int(pixels) / max(1, int(self.pixels.sum())),
                    annotations=int(holding) / max(1, self.num_annotations),
                )
                for name, pixels, holding in zip(info.classes, self.pixels, self.holding, strict=True)
            },
            agreement=Agreement(
                pairs=self.overlap.count,
                iou=self.overlap.value,
                pairs_who_both_drew=self.overlap_who_both_drew.count,
                iou_who_both_drew=self.overlap_who_both_drew.value,
                ged_floor={number: mean.value for number, mean in self.floors.items()},
            ),
            spacing_mm=_spacing_range(self.dataset),
            **_slices(self.dataset),
        )


def _duplicates(
    dataset: Dataset, rows_of_image: dict[bytes, list[int]], homes: dict[str, str]
) -> tuple[list[str], list[str]]:
    """Return the leaks (images that are in two splits) and notes on all other duplicates."""
    leaks, between_patients, within_patient = [], [], []
    for rows in rows_of_image.values():
        if len(rows) == 1:
            continue
        names = " = ".join(dataset.cases[row]["case"] for row in rows)
        patients = {dataset.cases[row]["patient"] for row in rows}
        splits = {homes[patient] for patient in patients if patient in homes}
        if len(splits) > 1:
            leaks.append(
                f"{dataset.path / 'images.npy'}: {names} are the same image, in splits "
                f"{' and '.join(sorted(splits))}; keep one of them, or assign them to the same patient"
            )
        elif len(patients) > 1:
            between_patients.append(names)
        else:
            within_patient.append(names)
    return leaks, [
        *_few("images under more than one patient", between_patients),
        *_few("images more than once under one patient", within_patient),
    ]


def _few(what: str, names: Sequence[str]) -> list[str]:
    """Return a note with the number of names and the first few, or no note if there are none."""
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return [f"{what}: {len(names)} ({shown})"] if names else []


def _count_splits(dataset: Dataset, homes: dict[str, str]) -> dict[str, Count]:
    cases = Counter(homes.get(case["patient"], NO_SPLIT) for case in dataset.cases)
    patients = Counter(homes.get(patient, NO_SPLIT) for patient in {case["patient"] for case in dataset.cases})
    names = [*dataset.splits, *([NO_SPLIT] if cases[NO_SPLIT] else [])]
    return {name: Count(patients=patients[name], cases=cases[name]) for name in names}


def _spacing_range(dataset: Dataset) -> tuple[float, float] | None:
    """Return the range of spacings in cases.csv, or otherwise in dataset.json."""
    own = [spacing for spacing in map(case_spacing, dataset.cases) if spacing is not None]
    spacings = [mm for spacing in own for mm in spacing] or list(dataset.info.spacing_mm or ())
    return (min(spacings), max(spacings)) if spacings else None


def _without_spacing(dataset: Dataset) -> list[str]:
    if dataset.dims == 2:
        return []
    return [case["case"] for row, case in enumerate(dataset.cases) if dataset.voxel_spacing_mm(row) is None]


def _slices(dataset: Dataset) -> dict[str, Any]:
    """Return the ranges of depths and distances of slices, nothing for a dataset of images."""
    if dataset.dims == 2:
        return {}
    depths = np.diff(dataset.starts)
    known = [mm for case in dataset.cases if (mm := positive_number(case, SLICES)) is not None]
    return {
        "depth": (int(depths.min()), int(depths.max())),
        "slice_spacing_mm": (min(known), max(known)) if known else None,
    }


def disagreement(dataset: Dataset, row: int) -> float:
    """Return how far the annotators of one case differ: its GED floor with one sample, 0 for a single annotator."""
    annotations = torch.from_numpy(_as_images(dataset.annotations(row)))
    return ged_floor(annotations, 1, num_classes=len(dataset.info.classes)) or 0.0


def _as_images(annotations: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return annotations (A, *size) as images (A, H, W); the slices of a volume are put below each other.

    Counts and overlaps do not depend on where the pixels are.
    """
    return annotations.reshape(len(annotations), -1, annotations.shape[-1])
