"""Read and check the files of a prepared dataset."""

import csv
import json
import re
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from phiseg.core.errors import ConfigError, DataError
from phiseg.core.formats import DATASET
from phiseg.data.manifest import DatasetInfo
from phiseg.data.npy import NPY_ERRORS
from phiseg.data.splits import FILE_NAME, FILE_SOURCE, ORIGIN, check_splits

PREPARE_AGAIN = "prepare the dataset again with 'phiseg prepare'"


def read_info(path: Path) -> DatasetInfo:
    """Return the manifest.

    Raises:
        DataError: the file is missing, damaged or of another format or version.
    """
    values = _read_json(path)
    if not DATASET.marks(values):
        raise DataError(
            f"{path} is not the manifest of a phiseg dataset; give a folder written by 'phiseg prepare'"
        )
    if not DATASET.is_readable(values):
        supported = " and ".join(map(str, DATASET.readable_versions))
        raise DataError(
            f"{path} has format version {values.get('version')}, but only versions {supported} are supported; "
            f"{PREPARE_AGAIN}"
        )
    try:
        return DatasetInfo.parse(values, where=str(path))
    except ConfigError as error:
        raise DataError(f"{error}; {PREPARE_AGAIN}") from None


def read_array(folder: Path, key: Literal["images", "labels", "valid"], info: DatasetInfo) -> NDArray[Any]:
    """Return an array, memory-mapped.

    Raises:
        DataError: the file is missing, damaged or does not match the manifest.
    """
    path = folder / f"{key}.npy"
    expected = info.arrays[key]
    try:
        array = np.lib.format.open_memmap(path, mode="r")
        complete = path.stat().st_size == array.offset + array.nbytes
    except FileNotFoundError:
        raise DataError(f"{path} is missing; {PREPARE_AGAIN}") from None
    except NPY_ERRORS as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{path} is truncated or not a .npy file ({reason}); {PREPARE_AGAIN}") from None
    if array.shape != expected.shape or str(array.dtype) != expected.dtype or not complete:
        found = f"{array.dtype} {array.shape}" if complete else "more bytes than stated in its header"
        raise DataError(
            f"{path} has {found}, but dataset.json states {expected.dtype} {expected.shape}; {PREPARE_AGAIN}"
        )
    return np.asarray(array)


def read_table(path: Path, info: DatasetInfo) -> list[dict[str, str]]:
    """Return the rows of cases.csv.

    Raises:
        DataError: the file is missing or damaged, or the rows do not match the arrays.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file, strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"cannot read {path} ({reason}); {PREPARE_AGAIN}") from None
    num_cases = info.arrays["valid"].shape[0]
    if len(rows) != num_cases:
        raise DataError(f"{path} has {len(rows)} cases, but valid.npy has {num_cases}; {PREPARE_AGAIN}")
    names = set()
    for line, row in enumerate(rows, start=1):
        if not row.get("case") or not row.get("patient") or None in row or None in row.values():
            raise DataError(
                f"{path}: row {line} has no case name, no patient or too few or many columns; {PREPARE_AGAIN}"
            )
        if row["case"] in names:
            raise DataError(f"{path}: case '{row['case']}' occurs twice; {PREPARE_AGAIN}")
        names.add(row["case"])
    if info.dims == 3:
        _check_depths(path, rows, num_slices=info.arrays["images"].shape[0])
    return rows


def _check_depths(path: Path, rows: list[dict[str, str]], *, num_slices: int) -> None:
    for row in rows:
        if not (row.get("depth", "").isascii() and row.get("depth", "").isdecimal() and int(row["depth"]) > 0):
            raise DataError(
                f"{path}: case '{row['case']}' has depth '{row.get('depth', '')}', not a number of slices; "
                f"{PREPARE_AGAIN}"
            )
    total = sum(int(row["depth"]) for row in rows)
    if total != num_slices:
        raise DataError(f"{path}: the depths sum to {total}, but images.npy has {num_slices}; {PREPARE_AGAIN}")


class StoredSplits(NamedTuple):
    """The content of splits.json."""

    splits: dict[str, list[str]]
    """Patients of each split."""
    name: str | None
    """Name of the split file that they were read from, if any."""
    source: str
    """Source of the split file."""


def read_splits(path: Path, patients: list[str]) -> StoredSplits:
    """Return the patients of each split, and the split file that they were read from.

    Raises:
        DataError: the file is missing or damaged, or does not match the patients.
    """
    values = _read_json(path)
    fix = f'write {{"seed": 0, "train": [patients], "val": [...], "test": [...]}}, or {PREPARE_AGAIN}'
    if not isinstance(values, dict):
        raise DataError(f"{path} is not a JSON object; {fix}")
    splits = {
        name: members
        for name, members in values.items()
        if name not in ORIGIN or (name != "seed" and isinstance(members, list))  # a split may be called `source`
    }
    for name, members in splits.items():
        if not isinstance(members, list) or not all(isinstance(patient, str) for patient in members):
            raise DataError(f"{path}: split '{name}' is not a list of patients; {fix}")
    check_splits(splits, patients, where=str(path))
    origin: dict[str, str] = {}
    for key, pattern in (("name", FILE_NAME), ("source", FILE_SOURCE)):
        if key in values and key not in splits:
            if not (isinstance(values[key], str) and re.fullmatch(pattern, values[key])):
                raise DataError(
                    f"{path}: the {key} of the split file is invalid; run phiseg data split --read again"
                )
            origin[key] = values[key]
    return StoredSplits(splits, origin.get("name"), origin.get("source", ""))


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path} is missing, so the dataset is incomplete; {PREPARE_AGAIN}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} is not readable JSON ({error}); {PREPARE_AGAIN}") from None
