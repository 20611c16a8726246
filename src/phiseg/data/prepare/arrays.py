"""Prepare arrays from an .npz file with images and masks.

    phiseg prepare arrays FILE.npz DATA

| key | shape | content |
|---|---|---|
| `images` | (N, H, W) or (N, H, W, C) | numbers |
| `masks` | (N, A, H, W), or (N, H, W) for one annotator | class indices |
| `valid` | (N, A) | false where the annotation is missing; by default none is |
| `case_ids` | (N,) | patient; by default each row is a separate patient |
| `split` | (N,) | name of the split; by default patients are split at random |
| `pixel_spacing_mm` | a number, (N,) or (N, 2) | vertical and horizontal spacing |

Other arrays (N,), or (N, M) with a small M, become columns of cases.csv. The columns `nodule` and `slice` are also
used in the names of cases: PATIENT-nodule-N-slice-M.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phiseg.core.errors import DataError
from phiseg.core.files import AnyPath, check_replaceable
from phiseg.data.prepare.arrays_npz import Npz
from phiseg.data.prepare.fixed_size import FixedSizeOptions, Item, tell, text_of, write_fixed_size
from phiseg.data.spacing import AXES, SQUARE
from phiseg.data.store import Dataset
from phiseg.data.writer import Case

MAX_COLUMNS = 16
"""Maximum M for which an array (N, M) becomes M columns."""

_SPACING = "pixel_spacing_mm"
_KNOWN = ("images", "masks", "valid", "case_ids", "split", _SPACING)
_TAKEN = ("case", "patient", SQUARE)
_TABLE_KINDS = "biufSU"


def prepare_arrays(
    path: AnyPath,
    out: AnyPath,
    options: FixedSizeOptions | None = None,
    *,
    overwrite: bool = False,
    command: str = "",
    progress: bool = True,
) -> Dataset:
    """Convert an .npz file to a prepared dataset, row by row.

    Args:
        path: .npz file; nothing in it is unpickled.
        out: folder of the dataset to write.
        options: options chosen by the user.
        overwrite: replace an existing dataset.
        command: command line to store in the dataset.
        progress: show progress bars.

    Raises:
        DataError: the file is damaged, or the shapes of its arrays do not match.
        OutputError: `out` exists and `overwrite` is false, or it cannot be written.
    """
    path, out = Path(path), Path(out)
    check_replaceable(out, overwrite=overwrite, marker="dataset.json")
    with Npz(path) as npz:
        return write_fixed_size(
            out,
            ArraysSource(npz),
            options or FixedSizeOptions(),
            provenance={"kind": "arrays", "file": path.name, "sha256": sha256_of(path)},
            overwrite=overwrite,
            command=command,
            progress=progress,
        )


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class ArraysSource:
    """Rows of an .npz file. `images` and `masks` are read from disk row by row, all other arrays are in memory."""

    def __init__(self, npz: Npz) -> None:
        self.path = npz.path
        self._npz = npz
        images, masks = npz.header("images"), npz.header("masks")
        self._check("images", len(images.shape) in (3, 4) and 0 not in images.shape, "(N, H, W) or (N, H, W, C)")
        num_rows, *size = images.shape[:3]
        self._num_rows = num_rows
        self._check(
            "masks",
            len(masks.shape) in (3, 4) and masks.shape[0] == num_rows and [*masks.shape[-2:]] == size,
            f"({num_rows}, A, {size[0]}, {size[1]}) to match images {images.shape}",
        )
        self._num_annotators = masks.shape[1] if len(masks.shape) == 4 else 1
        self._check("masks", self._num_annotators > 0, "at least one annotator")
        self._valid = self._read_valid()
        self._patients = self._read_names("case_ids")
        self._splits = self._read_names("split")
        if self._splits and ({"", "seed"} & {*self._splits}):
            raise DataError(f"{self.path}: 'split' contains an empty name or 'seed'; use train, val and test")
        spacing = self._read_spacing()
        self.spacing_mm = self._shared(spacing)
        self._columns = self._spacing_columns(spacing) | self._read_columns()
        self._cases = self._case_names()

    def __len__(self) -> int:
        return self._num_rows

    def __iter__(self) -> Iterator[Item]:
        pairs = zip(self._npz.rows("images"), self._npz.rows("masks"), strict=True)
        for row, (image, masks) in enumerate(pairs):
            case = Case(
                case=self._cases[row],
                patient=self._patients[row] if self._patients else self._cases[row],
                image=np.moveaxis(image, -1, 0) if image.ndim == 3 else image[None],  # (C, H, W)
                labels=masks if masks.ndim == 3 else masks[None],  # (A, H, W)
                valid=self._valid[row],
                columns={name: column[row] for name, column in self._columns.items()},
            )
            yield Item(case, self._splits[row] if self._splits else None)

    def _case_names(self) -> list[str]:
        """Name each case by patient, nodule and slice if that is unique, otherwise by patient and row."""
        if not self._patients:
            return [f"row-{row:05d}" for row in range(self._num_rows)]
        if {"nodule", "slice"} <= self._columns.keys():
            places = zip(self._patients, self._columns["nodule"], self._columns["slice"], strict=True)
            names = [f"{patient}-nodule-{nodule}-slice-{number}" for patient, nodule, number in places]
            if len({*names}) == len(names):
                return names
        return [f"{patient}-{row:05d}" for row, patient in enumerate(self._patients)]

    def _check(self, key: str, fits: bool, expected: str) -> None:
        if not fits:
            shape = self._npz.header(key).shape
            raise DataError(
                f"{self.path}: '{key}' has shape {shape}, expected {expected}; transpose it (numpy.moveaxis)"
            )

    def _read_valid(self) -> NDArray[np.bool_]:
        shape = (self._num_rows, self._num_annotators)
        if not self._has("valid"):
            return np.ones(shape, dtype=np.bool_)
        header = self._npz.header("valid")
        self._check("valid", header.shape == shape, f"{shape} to match the masks")
        valid = self._npz.read("valid")
        if valid.dtype.kind not in "biuf" or not np.isin(valid, (0, 1)).all():
            raise DataError(
                f"{self.path}: 'valid' must contain only 0 and 1; use 0 where the annotation is missing"
            )
        return valid.astype(np.bool_)

    def _read_names(self, key: str) -> list[str]:
        """Return one name per row, or an empty list if the file has no such key."""
        if not self._has(key):
            return []
        header = self._npz.header(key)
        self._check(key, header.shape == (self._num_rows,), f"({self._num_rows},), one name per row")
        if header.dtype.kind not in "iuSU":
            raise DataError(f"{self.path}: '{key}' has type {header.dtype}; save it as text or integers")
        return self._texts(key, self._npz.read(key))

    def _read_spacing(self) -> NDArray[np.float64] | None:
        """Return the vertical and horizontal spacing (N, 2), or None if the file has none."""
        if not self._has(_SPACING):
            return None
        header = self._npz.header(_SPACING)
        shapes = ((), (1,), (self._num_rows,), (self._num_rows, 2))
        self._check(_SPACING, header.shape in shapes, f"({self._num_rows},) or ({self._num_rows}, 2)")
        if header.dtype.kind not in "iuf":
            raise DataError(f"{self.path}: '{_SPACING}' has type {header.dtype}; save it as numbers")
        spacing = self._npz.read(_SPACING).astype(np.str_).astype(np.float64)  # 0.7 of float32 stays 0.7
        if not (np.isfinite(spacing) & (spacing > 0)).all():
            raise DataError(f"{self.path}: '{_SPACING}' must contain finite positive numbers; fix or remove it")
        if spacing.size == 1:
            spacing = spacing.reshape(1)
        return np.broadcast_to(spacing if spacing.ndim == 2 else spacing[:, None], (self._num_rows, 2))

    def _shared(self, spacing: NDArray[np.float64] | None) -> tuple[float, float] | None:
        if spacing is None or (spacing != spacing[0]).any():
            return None
        return float(spacing[0, 0]), float(spacing[0, 1])

    def _spacing_columns(self, spacing: NDArray[np.float64] | None) -> dict[str, list[str]]:
        if spacing is None:
            return {}
        if (spacing[:, 0] == spacing[:, 1]).all():
            return {SQUARE: self._texts(_SPACING, spacing[:, 0])}
        return {name: self._texts(_SPACING, spacing[:, axis]) for axis, name in enumerate(AXES)}

    def _read_columns(self) -> dict[str, list[str]]:
        """Return the additional columns of the table, and report arrays that are ignored."""
        columns: dict[str, list[str]] = {}
        ignored = list(self._npz.unreadable)
        for key, (shape, dtype, *_) in self._npz.headers.items():
            if key in _KNOWN:
                continue
            fits = shape[:1] == (self._num_rows,) and (
                len(shape) == 1 or (len(shape) == 2 and shape[1] <= MAX_COLUMNS)
            )
            if not fits or key in _TAKEN or not key.isprintable() or dtype.kind not in _TABLE_KINDS:
                ignored.append(key)
                continue
            values = self._npz.read(key)
            if values.ndim == 1:
                columns[key] = self._texts(key, values)
            else:
                columns |= {f"{key}_{i}": self._texts(key, values[:, i]) for i in range(shape[1])}
        for key in sorted(set(ignored) & set(_TAKEN)):
            tell(
                f"{self.path}: ignored '{key}', because cases.csv already has a column of this name; use "
                "'case_ids' for patients and 'pixel_spacing_mm' for the spacing"
            )
        others = sorted(set(ignored) - set(_TAKEN))
        if others:
            names = ", ".join(f"'{key}'" if key.isprintable() else repr(key) for key in others)
            tell(f"{self.path}: ignored {names}, not a column with one value per row")
        return columns

    def _texts(self, key: str, values: NDArray[Any]) -> list[str]:
        return [text_of(value, where=f"{self.path}: '{key}'") for value in values]

    def _has(self, key: str) -> bool:
        return key in self._npz.headers or key in self._npz.unreadable
