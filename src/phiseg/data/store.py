"""The prepared dataset: a folder with memory-mapped arrays, a table of cases, splits and a manifest.

    DATA/  dataset.json  images.npy  labels.npy  valid.npy  cases.csv  splits.json

`writer.write_dataset` writes the folder, `Dataset.open` opens it.

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
from phiseg.core.files import AnyPath
from phiseg.core.formats import DATASET
from phiseg.data.intensity import Intensity, normalise
from phiseg.data.neighbours import MISSING_ROW, find_neighbours
from phiseg.data.npy import NPY_ERRORS, hash_array
from phiseg.data.spacing import case_spacing
from phiseg.data.splits import check_splits, split_patients, write_splits

MISSING = 255
"""Label value of missing annotations."""

_PREPARE_AGAIN = "prepare the dataset again with 'phiseg prepare'"


class ArrayInfo(StrictConfig):
    """A .npy file: SHA-256 of the array in C order (without the header), shape and type."""

    sha256: str
    shape: tuple[int, ...]
    dtype: str


SlicePlane = Literal["axial", "coronal", "sagittal", "auto"]


class DatasetInfo(StrictConfig):
    """The manifest, `dataset.json`."""

    format: str = DATASET.name
    version: int = DATASET.version
    name: str
    classes: tuple[str, ...] = Field(min_length=2, max_length=MISSING)
    """Class names, background first."""
    num_annotators: int = Field(ge=1)
    image_channels: int = Field(ge=1)
    size: tuple[int, int]
    """Height and width in pixels."""
    spacing_mm: tuple[float, float] | None = None
    """Pixel spacing (vertical, horizontal) in mm, if all cases have the same."""
    intensity: Intensity
    plane: SlicePlane | None = None
    """Plane of the slices, if known (`auto`: perpendicular to the axis of the widest spacing)."""
    centred_on: str | None = None
    """Object at the centre of every image, such as `nodule`; None for whole slices."""
    modality: str | None = None
    """DICOM modality of the images (CT, MR, PT), if known."""
    seed: int | None = None
    source: dict[str, JsonValue] = Field(default_factory=dict)
    """Description of the source: hashes of files, or the kind of phantom."""
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
            raise ValueError("the shapes of the arrays do not match the number of annotators, channels and pixels")
        if len(set(self.classes)) != len(self.classes):
            raise ValueError("two classes have the same name")
        return self


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """A prepared dataset, memory-mapped and read-only."""

    path: Path
    info: DatasetInfo
    images: NDArray[Any]
    """(N, C, H, W) stored values; `image` returns the network's input."""
    labels: NDArray[np.uint8]
    """(N, A, H, W) class indices, `MISSING` where the annotation is missing."""
    valid: NDArray[np.bool_]
    """(N, A) false where the annotation is missing."""
    cases: list[dict[str, str]]
    """Rows of cases.csv; all values are strings."""
    splits: dict[str, list[str]]
    """Patients of each split."""
    _found_neighbours: dict[int, NDArray[np.int64]] = field(default_factory=dict, init=False)
    """Neighbours by context, computed on first use."""

    def __fspath__(self) -> str:
        """Return the folder, so that a dataset can be passed wherever a path is expected."""
        return str(self.path)

    def __repr__(self) -> str:
        info = self.info
        return (
            f"Dataset('{self.path}': {self.num_cases} cases of {info.size[0]} x {info.size[1]} pixels, "
            f"{info.num_annotators} annotators, classes {', '.join(info.classes)})"
        )

    @classmethod
    def open(cls, path: AnyPath) -> Self:
        """Open a dataset and check everything except the pixels.

        Raises:
            DataError: a file is missing, damaged or of another format version.
        """
        path = Path(path)
        if not path.is_dir():
            raise DataError(f"{path} is not a folder; give a folder written by 'phiseg prepare'")
        info = _read_info(path / "dataset.json")
        images, labels, valid = (_read_array(path, key, info) for key in ("images", "labels", "valid"))
        cases = _read_table(path / "cases.csv", num_cases=len(images))
        splits = _read_splits(path / "splits.json", [case["patient"] for case in cases])
        for row in np.flatnonzero(~valid.any(axis=1)):
            name = cases[row]["case"]
            raise DataError(f"{path / 'valid.npy'}: case '{name}' has no annotator; {_PREPARE_AGAIN}")
        return cls(path, info, images, labels, valid, cases, splits)

    def resplit(self, *, seed: int, fractions: Sequence[float], hold_out: str | None = None) -> Self:
        """Assign the patients to new splits, replace splits.json, and return the dataset with the new splits.

        Args:
            seed: seed of the splits.
            fractions: shares of train, val and test, or percentages.
            hold_out: existing split whose patients become test; the fractions then apply to the other patients.

        Raises:
            ConfigError: the fractions are invalid, or there would be no training patient.
            DataError: the split `hold_out` does not exist.
            OutputError: splits.json cannot be written.
        """
        patients = {case["patient"] for case in self.cases}
        held_out = {self.cases[row]["patient"] for row in self.rows(hold_out)} if hold_out else set[str]()
        if held_out and fractions[-1] != 0:
            raise ConfigError(
                f"split '{hold_out}' becomes test, so the share of test must be 0; use fractions such as 80,20,0"
            )
        splits = split_patients(patients - held_out, seed=seed, fractions=fractions)
        splits["test"] += sorted(held_out)
        if not splits["train"]:
            raise ConfigError(
                f"train would contain no patient of {self.path}, which has {len(patients)}; use a larger share"
            )
        write_splits(self.path / "splits.json", splits, seed=seed)
        return type(self).open(self.path)

    @property
    def num_cases(self) -> int:
        """Number of cases, N."""
        return len(self.images)

    @property
    def annotator_names(self) -> list[str]:
        """Names of the annotators in the source, or numbers."""
        names = self.info.source.get("raters")
        if isinstance(names, list) and len(names) == self.info.num_annotators:
            return [str(name) for name in names]
        return [f"annotator {number}" for number in range(self.info.num_annotators)]

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the hashes of the arrays, the intensity rule and the classes.

        Datasets with the same fingerprint are identical for a model, even if their manifests differ otherwise.
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
                f"{self.path} has no split '{split}' ({valid}); choose another split or run phiseg data split"
            )
        members = set(self.splits[split])
        rows = np.flatnonzero([case["patient"] in members for case in self.cases])
        if not rows.size:
            raise DataError(f"{self.path / 'splits.json'}: split '{split}' has no cases; run phiseg data split")
        return rows

    def image(self, row: int, *, context: int = 0, hide_neighbours: bool = False) -> NDArray[np.float32]:
        """Return the network's input of one row: the slice, with its neighbours as additional channels.

        If a neighbour is missing or hidden, all neighbours are replaced by the slice itself. A network that sees
        some neighbours but not others would learn where a stack ends, which is not known for a new scan.

        Args:
            row: row of the dataset.
            context: c, the number of neighbours on each side.
            hide_neighbours: replace the neighbours even if the dataset has them.

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
            raise DataError(
                f"{self.path / 'images.npy'}: case '{names}' has NaN or infinite pixels; {_PREPARE_AGAIN}"
            )
        return image

    def has_neighbours(self, context: int) -> NDArray[np.bool_]:
        """Return for each row whether the dataset has all neighbours up to this distance, (N,)."""
        complete: NDArray[np.bool_] = (self._neighbours(context) != MISSING_ROW).all(1)
        return complete

    def _neighbours(self, context: int) -> NDArray[np.int64]:
        if context not in self._found_neighbours:
            self._found_neighbours[context] = find_neighbours(self.cases, context)
        return self._found_neighbours[context]

    def spacing_mm(self, row: int) -> tuple[float, float] | None:
        """Return the pixel spacing (vertical, horizontal) of a case in mm, or None if it is unknown."""
        if self.info.spacing_mm is not None:
            return self.info.spacing_mm
        return case_spacing(self.cases[row])

    def thickness_mm(self, row: int) -> float | None:
        """Return the slice thickness of a case in mm, or None if it is unknown."""
        try:
            thickness = float(self.cases[row]["slice_thickness_mm"])
        except (KeyError, ValueError):
            return None
        return thickness if 0 < thickness < inf else None

    def annotations(self, row: int) -> NDArray[np.uint8]:
        """Return the labels of the valid annotators of one row, (A_valid, H, W)."""
        annotations: NDArray[np.uint8] = self.labels[row][self.valid[row]]
        return annotations

    def check_labels(self, rows: Iterable[int]) -> None:
        """Check that all valid annotations contain only classes of the dataset.

        Raises:
            DataError: an annotation contains another label.
        """
        for row in rows:
            for annotator in np.flatnonzero(self.valid[row]):
                where = f"{self.path / 'labels.npy'}: case '{self.cases[row]['case']}', annotator {annotator}"
                check_classes(self.labels[row, annotator], self.info.classes, where=where)

    def verify(self, *, progress: bool = False) -> None:
        """Read all arrays and compare them with the hashes in the manifest.

        Args:
            progress: show a progress bar.

        Raises:
            DataError: one or more arrays were modified.
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
            raise DataError(f"{' and '.join(changed)} changed after preparation; {_PREPARE_AGAIN}")


def check_classes(
    labels: NDArray[Any], classes: Sequence[str], *, where: str, fix: str = "map it to one of them"
) -> None:
    """Check that `labels` contains only indices of `classes`.

    Raises:
        DataError: there is another value.
    """
    low, high = labels.min(), labels.max()
    if low < 0 or high >= len(classes):
        listed = ", ".join(f"{index} {name}" for index, name in enumerate(classes))
        unknown = low if low < 0 else high
        raise DataError(f"{where}: label {unknown} is not one of the classes ({listed}); {fix}")


def _read_info(path: Path) -> DatasetInfo:
    values = _read_json(path)
    if not DATASET.marks(values):
        raise DataError(
            f"{path} is not the manifest of a phiseg dataset; give a folder written by 'phiseg prepare'"
        )
    if not DATASET.is_current(values):
        version, supported = values.get("version"), DATASET.version
        raise DataError(
            f"{path} has format version {version}, but only version {supported} is supported; {_PREPARE_AGAIN}"
        )
    try:
        return DatasetInfo.parse(values, where=str(path))
    except ConfigError as error:
        raise DataError(f"{error}; {_PREPARE_AGAIN}") from None


def _read_array(folder: Path, key: Literal["images", "labels", "valid"], info: DatasetInfo) -> NDArray[Any]:
    path = folder / f"{key}.npy"
    expected = info.arrays[key]
    try:
        array = np.lib.format.open_memmap(path, mode="r")
        complete = path.stat().st_size == array.offset + array.nbytes
    except FileNotFoundError:
        raise DataError(f"{path} is missing; {_PREPARE_AGAIN}") from None
    except NPY_ERRORS as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{path} is truncated or not a .npy file ({reason}); {_PREPARE_AGAIN}") from None
    if array.shape != expected.shape or str(array.dtype) != expected.dtype or not complete:
        found = f"{array.dtype} {array.shape}" if complete else "more bytes than stated in its header"
        raise DataError(
            f"{path} has {found}, but dataset.json states {expected.dtype} {expected.shape}; {_PREPARE_AGAIN}"
        )
    return np.asarray(array)


def _read_table(path: Path, *, num_cases: int) -> list[dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file, strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"cannot read {path} ({reason}); {_PREPARE_AGAIN}") from None
    if len(rows) != num_cases:
        raise DataError(f"{path} has {len(rows)} cases, but images.npy has {num_cases}; {_PREPARE_AGAIN}")
    names = set()
    for line, row in enumerate(rows, start=1):
        if not row.get("case") or not row.get("patient") or None in row or None in row.values():
            raise DataError(
                f"{path}: row {line} has no case name, no patient or too few or many columns; {_PREPARE_AGAIN}"
            )
        if row["case"] in names:
            raise DataError(f"{path}: case '{row['case']}' occurs twice; {_PREPARE_AGAIN}")
        names.add(row["case"])
    return rows


def _read_splits(path: Path, patients: list[str]) -> dict[str, list[str]]:
    values = _read_json(path)
    fix = f'write {{"seed": 0, "train": [patients], "val": [...], "test": [...]}}, or {_PREPARE_AGAIN}'
    if not isinstance(values, dict):
        raise DataError(f"{path} is not a JSON object; {fix}")
    splits = {name: members for name, members in values.items() if name != "seed"}
    for name, members in splits.items():
        if not isinstance(members, list) or not all(isinstance(patient, str) for patient in members):
            raise DataError(f"{path}: split '{name}' is not a list of patients; {fix}")
    check_splits(splits, patients, where=str(path))
    return splits


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path} is missing, so the dataset is incomplete; {_PREPARE_AGAIN}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} is not readable JSON ({error}); {_PREPARE_AGAIN}") from None
