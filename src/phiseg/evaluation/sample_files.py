"""Samples that another program wrote: arrays, or one folder per case. Every form is read case by case.

    labels.npy (cases, S, *size)   probs.npy (cases, S, K, *size)   an .npz file with these arrays, or one per case
    FOLDER/  labels.npy or probs.npy, mean_probs.npy, mean_log_probs.npy, cases.csv   (as `phiseg sample` writes it)
    FOLDER/CASE/  sample-1.nii.gz, sample-2.nii.gz, ... (or .png, .npy), or samples.nii.gz with all of them

The arrays of volumes may also have the slices of all cases one after the other, (slices, S, H, W), if `cases.csv`
has their numbers in a column `depth`.

S samples, K classes, *size is (H, W) for images and (D, H, W) for volumes.
"""

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from phiseg.core.errors import DataError
from phiseg.data.npy import NPY_ERRORS, NPZ_ERRORS
from phiseg.imaging.nifti_files import SUFFIXES, read_nifti, read_nifti_labels
from phiseg.imaging.png import read_png
from phiseg.imaging.volume import Plane, Volume, coarsest_plane, to_slices

Arrays = dict[str, NDArray[Any]]
"""Arrays of one case by key, see `KEYS`; the class axis of `probs` is the second."""

Source = Path | NDArray[Any] | Mapping[str, NDArray[Any]]
"""A file, a folder, an array of labels or probabilities, or several arrays by key."""

KEYS = ("labels", "probs", "mean_probs", "mean_log_probs")
"""Names of the arrays in a folder or an .npz file. `labels` or `probs` is required."""
ALL_SAMPLES = tuple(f"samples{suffix}" for suffix in SUFFIXES)
"""Files with all samples of a case, as `phiseg predict` writes them."""
FORMS = "labels.npy, probs.npy, an .npz file, a folder with one of these, or a folder with one subfolder per case"


_NUM_AXES = {"labels": 2, "probs": 3, "mean_probs": 2, "mean_log_probs": 2}
"""Number of axes of an array before those of a slice."""


class CaseList(NamedTuple):
    """Cases in the order of the samples."""

    names: list[str]
    depths: list[int] | None
    """Number of slices of each volume, if known."""


@dataclass(frozen=True)
class GivenSamples:
    """Samples of many cases, read one case at a time."""

    name: str
    """What errors and tables call them."""
    names: list[str] | None
    """Names of the cases in their order; None if they are unknown."""
    entries: Sequence[Callable[[], Arrays]]
    """Reads the arrays of each case."""

    def in_order(self, cases: Sequence[str], *, where: str) -> list[Callable[[], Arrays]]:
        """Return the entries of `cases` in their order. Samples without names must already be in this order.

        Args:
            cases: names of the cases to score.
            where: description of these cases for errors.

        Raises:
            DataError: cases are missing, or there are no names and the number of cases differs.
        """
        if self.names is None:
            if len(self.entries) != len(cases):
                raise DataError(
                    f"{self.name} has {len(self.entries)} cases, but {where} has {len(cases)}; pass the names of "
                    "the cases with --cases, in the order of the samples"
                )
            return list(self.entries)
        found = dict(zip(self.names, self.entries, strict=True))
        if missing := [case for case in cases if case not in found]:
            hint = "draw them"
            if len(missing) == len(cases):
                hint = f"its cases have names such as '{self.names[0]}', so check the split and the names"
            raise DataError(
                f"{self.name} has no samples for {len(missing)} of the {len(cases)} cases of {where}, such as "
                f"'{missing[0]}'; {hint}"
            )
        return [found[case] for case in cases]


def open_samples(
    source: Source,
    *,
    cases: Path | Sequence[str] | None = None,
    plane: Plane | None = None,
    dims: int = 2,
) -> GivenSamples:
    """Open samples in one of the forms of this module.

    Args:
        source: file, folder or arrays.
        cases: names of the cases in the order of the samples, or a file with them: a CSV file with a column `case`,
            or a text file with one name per line; by default `cases.csv` in the same folder, if it exists.
        plane: plane of the slices of NIfTI files; by default the one with the largest slice distance.
        dims: number of axes of a case.

    Raises:
        DataError: the form of `source` is unknown, or a file is damaged.
    """
    if not isinstance(source, Path):
        arrays = source if isinstance(source, Mapping) else {_key(source, dims + 3): source}
        return from_arrays(arrays, _case_list(cases), name="samples", dims=dims)
    path = source
    if path.is_dir():
        arrays = {key: _load(path / f"{key}.npy") for key in KEYS if (path / f"{key}.npy").is_file()}
        if not arrays:
            return _case_folders(path, plane, dims)
        return from_arrays(arrays, _case_list(cases, beside=path), name=str(path), dims=dims)
    if not path.is_file():
        raise DataError(f"{path} does not exist; give {FORMS}")
    if path.suffix == ".npz":
        return _from_npz(path, cases, dims)
    if path.suffix != ".npy":
        raise DataError(f"{path} is not a known form of samples; give {FORMS}")
    array = _load(path)
    listed = _case_list(cases, beside=path.parent)
    key = path.stem if path.stem in ("labels", "probs") else _key(array, dims + 3)
    return from_arrays({key: array}, listed, name=str(path), dims=dims)


def from_arrays(
    arrays: Mapping[str, NDArray[Any]], listed: CaseList | None, *, name: str, dims: int = 2
) -> GivenSamples:
    """Return samples in arrays whose first axis is the case, or the slice of volumes one after the other.

    Args:
        arrays: arrays by key, see `KEYS`.
        listed: the cases in their order, or None if they are in the order of the split.
        name: what errors and tables call them.
        dims: number of axes of a case.

    Raises:
        DataError: labels and probabilities are missing, or the numbers of cases differ.
    """
    if not {"labels", "probs"} & arrays.keys():
        raise DataError(f"{name} has neither labels nor probs; give {FORMS}")
    slices = dims == 3 and all(array.ndim == _NUM_AXES[key] + 2 for key, array in arrays.items())
    if slices and (listed is None or listed.depths is None):
        raise DataError(
            f"{name} has the slices of volumes one after the other; give their numbers in cases.csv, depth"
        )
    counts = {key: len(array) if array.ndim else 0 for key, array in arrays.items()}
    if listed is not None:
        counts["the list of cases"] = sum(listed.depths or ()) if slices else len(listed.names)
    if len(set(counts.values())) > 1:
        each = ", ".join(f"{key} {count}" for key, count in counts.items())
        raise DataError(f"{name} has different numbers of cases ({each}); give one entry per case in each of them")

    def read(index: int) -> Arrays:
        return {key: np.array(array[index]) for key, array in arrays.items()}

    def read_volume(start: int, stop: int) -> Arrays:
        return {key: np.moveaxis(np.array(array[start:stop]), 0, -3) for key, array in arrays.items()}

    if slices and listed is not None:
        bounds = np.cumsum([0, *(listed.depths or ())]).tolist()
        return GivenSamples(name, listed.names, [partial(read_volume, *ends) for ends in pairwise(bounds)])
    entries = [partial(read, index) for index in range(min(counts.values()))]
    return GivenSamples(name, None if listed is None else listed.names, entries)


def read_cases(path: Path) -> CaseList:
    """Read the names of the cases: column `case` of a CSV file, or the lines of a text file.

    Blank lines and spaces around names are ignored. Columns are separated by commas, semicolons or tabs.

    Raises:
        DataError: the file cannot be read, or a name is empty or occurs twice.
    """
    try:
        lines = [line for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
        separator = _separator(lines[0]) if lines else None
        rows = [[cell.strip() for cell in row] for row in csv.reader(lines, delimiter=separator or ",")]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"cannot read {path} ({getattr(error, 'strerror', None) or error})") from None
    depths = None
    if separator:
        header, *rows = rows
        cases = [dict(zip(header, row, strict=False)) for row in rows]
        names = [case.get("case", "") for case in cases]
        if "depth" in header:
            depths = [int(text) if (text := case.get("depth", "")).isdecimal() else 0 for case in cases]
    else:
        names = [row[0] if len(row) == 1 else "" for row in rows]
    if not names or not all(names):
        raise DataError(f"{path} has no column 'case' and is not a list of names, one per line")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"{path}: case '{twice}' occurs twice; name every case once")
    return CaseList(names, depths)


def _separator(header: str) -> str | None:
    """Return the separator of a CSV header with the column `case`; None for any other line."""
    return next((mark for mark in ",;\t" if "case" in (word.strip('" ') for word in header.split(mark))), None)


def _case_list(given: Path | Sequence[str] | None, *, beside: Path | None = None) -> CaseList | None:
    if given is None and beside is not None and (beside / "cases.csv").is_file():
        given = beside / "cases.csv"
    return read_cases(given) if isinstance(given, Path) else None if given is None else CaseList(list(given), None)


def _from_npz(path: Path, cases: Path | Sequence[str] | None, dims: int) -> GivenSamples:
    try:
        file = np.load(path, allow_pickle=False)
        keys = list(file.files)
        named = {key: file[key] for key in keys if key in (*KEYS, "cases")}
    except NPZ_ERRORS as error:
        raise DataError(f"cannot read {path}: {_short(error)}") from None
    if {"labels", "probs"} & named.keys():
        inside = named.pop("cases", None)
        given = [str(name) for name in inside] if cases is None and inside is not None else cases
        return from_arrays(named, _case_list(given, beside=path.parent), name=str(path), dims=dims)

    def read(key: str) -> Arrays:
        try:
            array = file[key]
        except NPZ_ERRORS as error:
            raise DataError(f"cannot read '{key}' of {path}: {_short(error)}") from None
        return {_key(array, dims + 2): array}

    return GivenSamples(str(path), keys, [partial(read, key) for key in keys])


def _key(array: NDArray[Any], dims_of_probs: int) -> str:
    return "probs" if array.dtype.kind == "f" and array.ndim == dims_of_probs else "labels"


def _case_folders(path: Path, plane: Plane | None, dims: int) -> GivenSamples:
    folders = {folder.name: _sample_files(folder) for folder in sorted(path.iterdir()) if folder.is_dir()}
    found = {name: files for name, files in folders.items() if files}
    if not found:
        raise DataError(f"{path} has no samples; give {FORMS}, with files such as CASE/sample-1.nii.gz")
    return GivenSamples(
        str(path), list(found), [partial(_read_case, files, plane, dims) for files in found.values()]
    )


def _sample_files(folder: Path) -> list[Path]:
    """Return the samples of a case in the order of the numbers in their names."""
    if together := [folder / name for name in ALL_SAMPLES if (folder / name).is_file()]:
        return together[:1]
    masks = [file for file in folder.iterdir() if re.match(r"sample\D*\d.*\.(nii|nii\.gz|png|npy)$", file.name)]
    return sorted(masks, key=lambda file: ([int(number) for number in re.findall(r"\d+", file.name)], file.name))


def _read_case(files: Sequence[Path], plane: Plane | None, dims: int) -> Arrays:
    if files[0].name in ALL_SAMPLES:
        volume = read_nifti(files[0], channels=True)
        return {"labels": _flat(np.moveaxis(_slices(volume, plane), -1, 0), dims)}
    masks = [_read_mask(file, plane, dims) for file in files]
    shapes = {mask.shape for mask in masks}
    if len(shapes) > 1:
        raise DataError(f"{files[0].parent}: samples differ in size ({', '.join(map(str, sorted(shapes)))})")
    return {"labels": np.stack(masks)}


def _read_mask(file: Path, plane: Plane | None, dims: int) -> NDArray[Any]:
    if file.suffix == ".npy":
        return _load(file)
    if file.suffix == ".png":
        return read_png(file)
    return _flat(_slices(read_nifti_labels(file), plane), dims)


def _slices(volume: Volume, plane: Plane | None) -> NDArray[Any]:
    return to_slices(volume, plane or coarsest_plane(volume)).values


def _flat(values: NDArray[Any], dims: int) -> NDArray[Any]:
    """Drop the axis of a single slice (..., 1, H, W) if cases are images."""
    return values.squeeze(-3) if dims == 2 and values.shape[-3] == 1 else values


def _load(path: Path) -> NDArray[Any]:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except NPY_ERRORS as error:
        raise DataError(f"cannot read {path}: {_short(error)}") from None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
        raise DataError(f"{path} is not an array of numbers; give {FORMS}")
    return array


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
