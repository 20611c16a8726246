"""The prepared dataset: a folder of memory-mapped arrays, one table of cases, splits and a manifest.

    DATA/  dataset.json  images.npy  labels.npy  valid.npy  cases.csv  splits.json

`writer.write_dataset` makes the folder, `Dataset.open` reads it.

N cases, A annotators, C image channels, H x W pixels.
"""

import csv
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, JsonValue, model_validator
from tqdm import tqdm

from phiseg.core.config import StrictConfig
from phiseg.core.errors import ConfigError, DataError, nearest
from phiseg.data.intensity import Intensity, normalise
from phiseg.data.neighbours import MISSING_ROW, find_neighbours
from phiseg.data.npy import NPY_ERRORS, hash_array
from phiseg.data.splits import check_splits, split_patients, write_splits

MISSING = 255
"""Fills the labels of an annotator who did not look at the image."""

_SPACING_COLUMNS = (
    ("spacing_mm", "spacing_mm"),
    ("row_spacing_mm", "column_spacing_mm"),
    ("spacing_mm_0", "spacing_mm_1"),
)
"""Columns of cases.csv where the sources of data put a case's own spacing, vertical and horizontal."""
_CURE = "prepare the dataset again with 'phiseg prepare'"


class ArrayInfo(StrictConfig):
    """One .npy file: the SHA-256 of the array's bytes in C order (without the header), shape and type."""

    sha256: str
    shape: tuple[int, ...]
    dtype: str


SlicePlane = Literal["axial", "coronal", "sagittal", "auto"]


class DatasetInfo(StrictConfig):
    """The manifest, `dataset.json`."""

    format: Literal["phiseg-dataset"] = "phiseg-dataset"
    version: Literal[1] = 1
    name: str
    classes: tuple[str, ...] = Field(min_length=2, max_length=MISSING)
    """Class names; the first is the background."""
    num_annotators: int = Field(ge=1)
    image_channels: int = Field(ge=1)
    size: tuple[int, int]
    """Height and width in pixels."""
    spacing_mm: tuple[float, float] | None = None
    """Millimetres per pixel along rows' and columns' axes (vertical, horizontal), when all cases share it."""
    intensity: Intensity
    plane: SlicePlane | None = None
    """How volumes were sliced (`auto`: along the axis of the widest spacing), when it is known."""
    centred_on: str | None = None
    """What every image is centred on, such as `nodule`; None for whole slices."""
    modality: str | None = None
    """What made the images, as DICOM names it (CT, MR, PT), when it is known."""
    seed: int | None = None
    source: dict[str, JsonValue] = Field(default_factory=dict)
    """What the dataset was made from: hashes of files, kind of phantom."""
    command: str = ""
    arrays: dict[Literal["images", "labels", "valid"], ArrayInfo]

    @model_validator(mode="after")
    def _arrays_fit(self) -> Self:
        num_cases = next(iter(self.arrays["images"].shape), 0) if "images" in self.arrays else 0
        expected: dict[str, tuple[int, ...]] = {
            "images": (num_cases, self.image_channels, *self.size),
            "labels": (num_cases, self.num_annotators, *self.size),
            "valid": (num_cases, self.num_annotators),
        }
        if num_cases < 1 or {key: info.shape for key, info in self.arrays.items()} != expected:
            raise ValueError("the arrays' shapes do not fit the number of annotators, channels and pixels")
        if len(set(self.classes)) != len(self.classes):
            raise ValueError("two classes have the same name")
        return self


@dataclass(frozen=True, eq=False)
class Dataset:
    """A prepared dataset, memory-mapped and read-only."""

    path: Path
    info: DatasetInfo
    images: NDArray[Any]
    """(N, C, H, W) stored values; `image` gives the network's input."""
    labels: NDArray[np.uint8]
    """(N, A, H, W) class indices, `MISSING` where the annotator is not valid."""
    valid: NDArray[np.bool_]
    """(N, A)."""
    cases: list[dict[str, str]] = field(repr=False)
    """The rows of cases.csv; every value is text."""
    splits: dict[str, list[str]] = field(repr=False)
    """Patients of each split."""
    _found_neighbours: dict[int, NDArray[np.int64]] = field(default_factory=dict, init=False, repr=False)
    """By context, computed when first needed."""

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a dataset, with every check that does not read the pixels.

        Raises:
            DataError: something is missing, damaged or of another format, with the file and the cure.
        """
        path = Path(path)
        if not path.is_dir():
            raise DataError(f"{path} is not a folder; give the folder that 'phiseg prepare' made")
        info = _read_info(path / "dataset.json")
        images, labels, valid = (_read_array(path, key, info) for key in ("images", "labels", "valid"))
        cases = _read_table(path / "cases.csv", num_cases=len(images))
        splits = _read_splits(path / "splits.json", [case["patient"] for case in cases])
        for row in np.flatnonzero(~valid.any(axis=1)):
            raise DataError(f"{path / 'valid.npy'}: case '{cases[row]['case']}' has no annotator; {_CURE}")
        return cls(path, info, images, labels, valid, cases, splits)

    def resplit(self, *, seed: int, fractions: Sequence[float], hold_out: str | None = None) -> Self:
        """Split the patients anew, replace splits.json, and return the dataset with its new splits.

        Args:
            seed: the split's seed.
            fractions: shares of train, val and test, or percentages.
            hold_out: a split whose patients become test as they are; the fractions are then of the others.

        Raises:
            ConfigError: the fractions are not three shares, or there are too few patients to train on one.
            DataError: there is no such split.
            OutputError: splits.json cannot be written.
        """
        patients = {case["patient"] for case in self.cases}
        held_out = {self.cases[row]["patient"] for row in self.rows(hold_out)} if hold_out else set[str]()
        if held_out and fractions[-1] != 0:
            raise ConfigError(f"split '{hold_out}' becomes test, so test has no share of the others: use 80,20,0")
        splits = split_patients(patients - held_out, seed=seed, fractions=fractions)
        splits["test"] += sorted(held_out)
        if not splits["train"]:
            raise ConfigError(
                f"of the {len(patients)} patients of {self.path} none would be in train; give train a larger share"
            )
        write_splits(self.path / "splits.json", splits, seed=seed)
        return type(self).open(self.path)

    @property
    def num_cases(self) -> int:
        """N."""
        return len(self.images)

    @property
    def annotator_names(self) -> list[str]:
        """What the source calls its annotators, or numbers."""
        names = self.info.source.get("raters")
        if isinstance(names, list) and len(names) == self.info.num_annotators:
            return [str(name) for name in names]
        return [f"annotator {number}" for number in range(self.info.num_annotators)]

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the arrays' hashes and what gives them their meaning: the intensity rule and the classes.

        Two datasets with the same one are the same to a model, whatever else their manifests say.
        """
        hashes = {key: self.info.arrays[key].sha256 for key in ("images", "labels", "valid")}
        meaning = self.info.model_dump(mode="json", include={"intensity", "classes"})
        return hashlib.sha256(json.dumps({**hashes, **meaning}, sort_keys=True).encode()).hexdigest()

    def rows(self, split: str) -> NDArray[np.int64]:
        """Return the rows of a split in ascending order.

        Raises:
            DataError: the split does not exist or has no case.
        """
        if split not in self.splits:
            valid = nearest(split, self.splits)
            raise DataError(
                f"{self.path} has no split '{split}' ({valid}); choose another, or use phiseg data split"
            )
        members = set(self.splits[split])
        rows = np.flatnonzero([case["patient"] in members for case in self.cases])
        if not rows.size:
            raise DataError(f"{self.path / 'splits.json'}: split '{split}' has no case; use phiseg data split")
        return rows

    def image(self, row: int, *, context: int = 0, hide_neighbours: bool = False) -> NDArray[np.float32]:
        """Return the network's input of one row: the slice, and its neighbours as further channels.

        Where any neighbour is missing or hidden, the slice itself stands in for all of them. A network that sees
        some neighbours but not others would learn that a stack ends there, which no scan tells.

        Args:
            row: of the dataset.
            context: c, the number of neighbours on each side.
            hide_neighbours: leave them out although the dataset has them.

        Returns:
            (C * (1 + 2c), H, W), in the order of `neighbour_offsets`.

        Raises:
            DataError: a pixel is NaN or infinite.
        """
        rows = np.full(1 + 2 * context, row)
        if context and not hide_neighbours and self.has_neighbours(context)[row]:
            rows = self._neighbours(context)[row]
        image = normalise(np.concatenate([self.images[number] for number in rows]), self.info.intensity)
        if not np.isfinite(image).all():
            names = ", ".join(dict.fromkeys(self.cases[number]["case"] for number in rows))
            raise DataError(f"{self.path / 'images.npy'}: case '{names}' has NaN or infinite pixels; {_CURE}")
        return image

    def has_neighbours(self, context: int) -> NDArray[np.bool_]:
        """Return for each row whether the dataset holds all its neighbours up to this distance, (N,)."""
        complete: NDArray[np.bool_] = (self._neighbours(context) != MISSING_ROW).all(1)
        return complete

    def _neighbours(self, context: int) -> NDArray[np.int64]:
        if context not in self._found_neighbours:
            self._found_neighbours[context] = find_neighbours(self.cases, context)
        return self._found_neighbours[context]

    def spacing_mm(self, row: int) -> tuple[float, float] | None:
        """Return a case's millimetres per pixel (vertical, horizontal), or None where nothing tells."""
        if self.info.spacing_mm is not None:
            return self.info.spacing_mm
        case = self.cases[row]
        for vertical, horizontal in _SPACING_COLUMNS:
            try:
                spacing = float(case[vertical]), float(case[horizontal])
            except (KeyError, ValueError):
                continue
            if all(0 < mm < inf for mm in spacing):
                return spacing
        return None

    def thickness_mm(self, row: int) -> float | None:
        """Return a case's slice thickness in millimetres, or None where cases.csv does not tell."""
        try:
            thickness = float(self.cases[row]["slice_thickness_mm"])
        except (KeyError, ValueError):
            return None
        return thickness if 0 < thickness < inf else None

    def annotations(self, row: int) -> NDArray[np.uint8]:
        """Return what the valid annotators of one row drew, (A_valid, H, W)."""
        annotations: NDArray[np.uint8] = self.labels[row][self.valid[row]]
        return annotations

    def check_labels(self, rows: Iterable[int]) -> None:
        """Check that every valid annotation holds only the dataset's classes.

        Raises:
            DataError: with the case, the annotator and the classes.
        """
        for row in rows:
            for annotator in np.flatnonzero(self.valid[row]):
                where = f"{self.path / 'labels.npy'}: case '{self.cases[row]['case']}', annotator {annotator}"
                check_classes(self.labels[row, annotator], self.info.classes, where=where)

    def verify(self, *, progress: bool = False) -> None:
        """Read everything, and compare it with the hashes in the manifest.

        Args:
            progress: show a progress bar.

        Raises:
            DataError: arrays are not what was written, all of them by name.
        """
        arrays: dict[Literal["images", "labels", "valid"], NDArray[Any]] = {
            "images": self.images,
            "labels": self.labels,
            "valid": self.valid,
        }
        changed = []
        for key, array in arrays.items():
            rows = tqdm(array, f"hashing {key}", unit="case", disable=not progress, leave=False)
            if hash_array(rows) != self.info.arrays[key].sha256:
                changed.append(str(self.path / f"{key}.npy"))
        if changed:
            raise DataError(f"{' and '.join(changed)} changed after it was written; {_CURE}")


def check_classes(
    labels: NDArray[Any], classes: Sequence[str], *, where: str, cure: str = "map it to one of them"
) -> None:
    """Check that `labels` holds only indices of `classes`.

    Raises:
        DataError: with the stray value and the classes.
    """
    low, high = labels.min(), labels.max()
    if low < 0 or high >= len(classes):
        listed = ", ".join(f"{index} {name}" for index, name in enumerate(classes))
        stray = low if low < 0 else high
        raise DataError(f"{where}: label {stray} is none of the classes ({listed}); {cure}")


def _read_info(path: Path) -> DatasetInfo:
    values = _read_json(path)
    if not isinstance(values, dict) or values.get("format") != "phiseg-dataset":
        raise DataError(f"{path} is no phiseg dataset's manifest; give a folder that 'phiseg prepare' made")
    if values.get("version") != 1:
        version = values.get("version")
        raise DataError(f"{path} has format version {version}, this phiseg reads version 1; {_CURE}")
    try:
        return DatasetInfo.parse(values, where=str(path))
    except ConfigError as error:
        raise DataError(f"{error}; {_CURE}") from None


def _read_array(folder: Path, key: Literal["images", "labels", "valid"], info: DatasetInfo) -> NDArray[Any]:
    path = folder / f"{key}.npy"
    expected = info.arrays[key]
    try:
        array = np.lib.format.open_memmap(path, mode="r")
        complete = path.stat().st_size == array.offset + array.nbytes
    except FileNotFoundError:
        raise DataError(f"{path} is missing; {_CURE}") from None
    except NPY_ERRORS as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{path} is truncated or no .npy file ({reason}); {_CURE}") from None
    if array.shape != expected.shape or str(array.dtype) != expected.dtype or not complete:
        found = f"{array.dtype} {array.shape}" if complete else "more bytes than its header says"
        raise DataError(f"{path}: {found}, dataset.json says {expected.dtype} {expected.shape}; {_CURE}")
    return np.asarray(array)


def _read_table(path: Path, *, num_cases: int) -> list[dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file, strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"cannot read {path} ({reason}); {_CURE}") from None
    if len(rows) != num_cases:
        raise DataError(f"{path} has {len(rows)} cases, images.npy has {num_cases}; {_CURE}")
    names = set()
    for line, row in enumerate(rows, start=1):
        if not row.get("case") or not row.get("patient") or None in row or None in row.values():
            raise DataError(f"{path}: case {line} lacks its case, its patient or another column; {_CURE}")
        if row["case"] in names:
            raise DataError(f"{path}: case '{row['case']}' stands there twice; {_CURE}")
        names.add(row["case"])
    return rows


def _read_splits(path: Path, patients: list[str]) -> dict[str, list[str]]:
    values = _read_json(path)
    cure = f'write {{"seed": 0, "train": [patients], "val": [...], "test": [...]}}, or {_CURE}'
    if not isinstance(values, dict):
        raise DataError(f"{path} is not a JSON object; {cure}")
    splits = {name: members for name, members in values.items() if name != "seed"}
    for name, members in splits.items():
        if not isinstance(members, list) or not all(isinstance(patient, str) for patient in members):
            raise DataError(f"{path}: split '{name}' is not a list of patients; {cure}")
    check_splits(splits, patients, where=str(path))
    return splits


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path} is missing, so its folder is no complete dataset; {_CURE}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} is not readable JSON ({error}); {_CURE}") from None
