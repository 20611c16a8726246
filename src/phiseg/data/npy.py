"""A growing .npy file: rows are appended one at a time, and their number is written at the end."""

import hashlib
import lzma
import os
import struct
import tokenize
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self
from zipfile import BadZipFile

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

NPY_ERRORS = (
    OSError,
    EOFError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    SyntaxError,
    OverflowError,
    AttributeError,
    RuntimeError,  # too deeply nested
    MemoryError,
    struct.error,
    tokenize.TokenError,
)
"""Exceptions that NumPy raises for a damaged .npy file, whose header it parses as Python."""
NPZ_ERRORS = (*NPY_ERRORS, BadZipFile, zlib.error, lzma.LZMAError)
"""Exceptions for a damaged .npz file, which is a zip file."""


class NpyStream:
    """Write an array (N, *row_shape) row by row in constant memory, and compute its hash.

    NumPy pads the header so that the first axis can grow in place. The header is written with N = 0 at the start
    and rewritten with the final N by `close`.
    """

    def __init__(self, path: Path, row_shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.row_shape = row_shape
        self.dtype = dtype
        self.num_rows = 0
        self._hash = hashlib.sha256()
        self._file = path.open("w+b")
        self._write_header()
        self._start = self._file.tell()

    def append(self, row: NDArray[Any]) -> None:
        """Append a row with the shape and type of the stream."""
        assert (row.shape, row.dtype) == (self.row_shape, self.dtype), (row.shape, row.dtype)
        data = np.ascontiguousarray(row).tobytes()
        self._hash.update(data)
        self._file.write(data)
        self.num_rows += 1

    @property
    def shape(self) -> tuple[int, ...]:
        """Current shape, (N, *row_shape)."""
        return (self.num_rows, *self.row_shape)

    @property
    def sha256(self) -> str:
        """SHA-256 of the current bytes of the array in C order, without the header."""
        return self._hash.hexdigest()

    def close(self) -> None:
        """Write the final number of rows to the header, and flush everything to disk."""
        if self._file.closed:
            return
        self._file.seek(0)
        self._write_header()
        assert self._file.tell() == self._start, "the .npy header changed its length"
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write_header(self) -> None:
        description = {
            "descr": npy_format.dtype_to_descr(self.dtype),
            "fortran_order": False,
            "shape": self.shape,
        }
        npy_format.write_array_header_1_0(self._file, description)


def hash_array(rows: Iterable[NDArray[Any]]) -> str:
    """Return the SHA-256 of the bytes of an array in C order, row by row, as computed by `NpyStream`."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(np.ascontiguousarray(row).tobytes())
    return digest.hexdigest()
