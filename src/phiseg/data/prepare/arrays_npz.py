"""Read untrusted .npz files row by row, without unpickling.

An .npz file is a zip archive of .npy files. A header is accepted only if it agrees with the size of its member.
"""

import math
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from phiseg.core.errors import DataError
from phiseg.data.npy import NPZ_ERRORS

MAX_ROW_BYTES = 2**30
"""Maximum size of an image or volume, or of all its masks."""
MAX_TABLE_BYTES = 2**28
"""Maximum size of an array that is read as a whole."""

_SAVE_AGAIN = "save it again with numpy.savez"


class Header(NamedTuple):
    """Header of a .npy file."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    offset: int
    """Number of bytes before the array."""


class Npz:
    """An open .npz file. The headers are validated on opening, the arrays when they are read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.headers: dict[str, Header] = {}
        self.unreadable: dict[str, str] = {}
        """Members that are not plain arrays, with the reason."""
        with _border(path):
            self._zip = zipfile.ZipFile(path)
        try:
            for name in self._zip.namelist():
                if name.endswith(".npy"):
                    self._read_header(name.removesuffix(".npy"))
        except BaseException:
            self._zip.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    def header(self, key: str) -> Header:
        """Return the header of an array.

        Raises:
            DataError: the array does not exist or does not contain plain values.
        """
        if key in self.unreadable:
            raise DataError(f"{self.path}: '{key}' {self.unreadable[key]}; {_SAVE_AGAIN}")
        if key not in self.headers:
            found = ", ".join(sorted({*self.headers, *self.unreadable})[:20]) or "nothing"
            raise DataError(f"{self.path} has no array '{key}' (found: {found}); {_SAVE_AGAIN} and this name")
        return self.headers[key]

    def rows(self, key: str) -> Iterator[NDArray[Any]]:
        """Yield the rows of an array one at a time, read-only."""
        header = self.header(key)
        shape = header.shape[1:]
        length = math.prod(shape) * header.dtype.itemsize
        if header.fortran and len(header.shape) > 1:
            raise DataError(
                f"{self.path}: '{key}' is in Fortran order; save it in C order with numpy.ascontiguousarray"
            )
        if length > MAX_ROW_BYTES:
            raise DataError(f"{self.path}: one row of '{key}' {shape} is larger than 1 GiB; use smaller images")
        with _border(self.path, key), self._zip.open(f"{key}.npy") as file:
            _exactly(file, header.offset)
            for _ in range(header.shape[0]):
                yield np.frombuffer(_exactly(file, length), dtype=header.dtype).reshape(shape)
            file.read(1)  # verifies the checksum of the zip archive

    def read(self, key: str, *, max_bytes: int = MAX_TABLE_BYTES) -> NDArray[Any]:
        """Return an array of at most `max_bytes` as a whole."""
        header = self.header(key)
        length = math.prod(header.shape) * header.dtype.itemsize
        if length > max_bytes:
            fix = "smaller volumes" if max_bytes == MAX_ROW_BYTES else "shorter text"
            raise DataError(f"{self.path}: '{key}' {header.shape} of {header.dtype} is too large; use {fix}")
        with _border(self.path, key), self._zip.open(f"{key}.npy") as file:
            _exactly(file, header.offset)
            values = np.frombuffer(_exactly(file, length), dtype=header.dtype)
            file.read(1)
            if not is_unicode(values):
                raise ValueError("its text is not Unicode")
            return values.reshape(header.shape, order="F" if header.fortran else "C")

    def _read_header(self, key: str) -> None:
        with _border(self.path, key), self._zip.open(f"{key}.npy") as file:
            version = npy_format.read_magic(file)
            if version not in ((1, 0), (2, 0)):
                raise ValueError(f"unknown .npy format version {version}")
            read = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
            shape, fortran, dtype = read(file)
            offset = file.tell()
            size = self._zip.getinfo(f"{key}.npy").file_size
        if dtype.hasobject or dtype.kind not in "biufcSUmM" or dtype.itemsize == 0:
            self.unreadable[key] = "contains Python objects or records, not plain values"
        elif any(length < 0 for length in shape) or offset + math.prod(shape) * dtype.itemsize != size:
            raise DataError(
                f"{self.path}: the header of '{key}' states {dtype} {shape}, but there are {size - offset} bytes; "
                f"{_SAVE_AGAIN}"
            )
        else:
            self.headers[key] = Header(shape, dtype, fortran, offset)


def is_unicode(values: NDArray[Any]) -> bool:
    """Return whether untrusted text, (N,), consists of valid characters. True for numbers."""
    if values.dtype.kind != "U":
        return True
    codes = values.view(np.dtype(np.uint32).newbyteorder(values.dtype.byteorder))
    return bool((codes <= sys.maxunicode).all())


def _exactly(file: IO[bytes], length: int) -> bytes:
    parts = []
    while length:
        part = file.read(length)
        if not part:
            raise EOFError("unexpected end of file")
        parts.append(part)
        length -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


@contextmanager
def _border(path: Path, key: str | None = None) -> Iterator[None]:
    """Raise exceptions of zipfile, zlib and NumPy for a damaged file as DataError."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; give an .npz file written by numpy.savez") from None
    except NPZ_ERRORS as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:200] or type(error).__name__
        what = f"cannot read '{key}' of {path}" if key else f"{path} is not a readable .npz file"
        raise DataError(f"{what} ({reason}); give a file written by numpy.savez, or {_SAVE_AGAIN}") from None
