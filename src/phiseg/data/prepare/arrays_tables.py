"""Arrays of an .npz file with one value or a few values per case: patients, splits, spacing and other columns.

N cases, A annotators.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from phiseg.core.errors import DataError
from phiseg.data.prepare.arrays_npz import Npz
from phiseg.data.prepare.fixed_size_source import print_note, text_of
from phiseg.data.spacing import AXES, SQUARE

MAX_COLUMNS = 16
"""Maximum M for which an array (N, M) becomes M columns."""

_SPACING = "pixel_spacing_mm"
_KNOWN = ("valid", "case_ids", "split", _SPACING)
_TAKEN = ("case", "patient", SQUARE)
_TABLE_KINDS = "biufSU"


class Tables:
    """The small arrays of an .npz file, in memory.

    Args:
        npz: open file.
        num_rows: N.
        num_annotators: A.
        pixels: names of the arrays with images and masks.

    Raises:
        DataError: an array has the wrong shape, type or values.
    """

    def __init__(self, npz: Npz, *, num_rows: int, num_annotators: int, pixels: set[str]) -> None:
        self.path = npz.path
        self._npz, self._pixels = npz, pixels
        self._num_rows, self._num_annotators = num_rows, num_annotators
        self.valid = self._read_valid()
        """(N, A) false where the annotation is missing."""
        self.patients = self._read_names("case_ids")
        """Patient of each row; empty if unknown."""
        self.splits = self._read_names("split")
        """Split of each row; empty if unknown."""
        if self.splits and ({"", "seed"} & {*self.splits}):
            raise DataError(f"{self.path}: 'split' contains an empty name or 'seed'; use train, val and test")
        spacing = self._read_spacing()
        self.spacing_mm = self._shared(spacing)
        """Pixel spacing (vertical, horizontal), if all rows have the same."""
        self.has_spacing = spacing is not None
        self.columns = self._spacing_columns(spacing) | self._read_columns()
        """Columns of cases.csv by name."""

    def row(self, row: int) -> dict[str, str]:
        """Return the columns of one row."""
        return {name: column[row] for name, column in self.columns.items()}

    def _read_valid(self) -> NDArray[np.bool_]:
        shape = (self._num_rows, self._num_annotators)
        if not self._has("valid"):
            return np.ones(shape, dtype=np.bool_)
        header = self._npz.header("valid")
        check_shape(self._npz, "valid", header.shape == shape, f"{shape} to match the masks")
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
        check_shape(self._npz, key, header.shape == (self._num_rows,), f"({self._num_rows},), one name per row")
        if header.dtype.kind not in "iuSU":
            raise DataError(f"{self.path}: '{key}' has type {header.dtype}; save it as text or integers")
        return self._texts(key, self._npz.read(key))

    def _read_spacing(self) -> NDArray[np.float64] | None:
        """Return the vertical and horizontal spacing (N, 2), or None if the file has none."""
        if not self._has(_SPACING):
            return None
        header = self._npz.header(_SPACING)
        shapes = ((), (1,), (self._num_rows,), (self._num_rows, 2))
        check_shape(self._npz, _SPACING, header.shape in shapes, f"({self._num_rows},) or ({self._num_rows}, 2)")
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
            if key in _KNOWN or key in self._pixels:
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
            print_note(
                f"{self.path}: ignored '{key}', because cases.csv already has a column of this name; use "
                "'case_ids' for patients and 'pixel_spacing_mm' for the spacing"
            )
        others = sorted(set(ignored) - set(_TAKEN))
        if others:
            names = ", ".join(f"'{key}'" if key.isprintable() else repr(key) for key in others)
            print_note(f"{self.path}: ignored {names}, not a column with one value per row")
        return columns

    def _texts(self, key: str, values: NDArray[Any]) -> list[str]:
        return [text_of(value, where=f"{self.path}: '{key}'") for value in values]

    def _has(self, key: str) -> bool:
        return key in self._npz.headers or key in self._npz.unreadable


def check_shape(npz: Npz, key: str, fits: bool, expected: str) -> None:
    """Raise DataError if an array does not have the expected shape."""
    if not fits:
        shape = npz.header(key).shape
        raise DataError(
            f"{npz.path}: '{key}' has shape {shape}, expected {expected}; transpose it (numpy.moveaxis)"
        )
