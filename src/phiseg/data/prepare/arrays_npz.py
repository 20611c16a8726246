"""Reading .npz files of strangers: row by row, without unpickling, and without believing what a header says.

An .npz is a zip of .npy files. A header is believed only where it agrees with the size of its member.
"""

import lzma
import math
import sys
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from phiseg.core.errors import DataError
from phiseg.data.npy import NPY_ERRORS

MAX_ROW_BYTES = 2**30
"""A single image, or all masks of one, may not be larger."""
MAX_TABLE_BYTES = 2**28
"""An array that is read as a whole may not be larger."""

_CURE = "save it again with numpy.savez"


class Header(NamedTuple):
    """What a member says about itself."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    offset: int
    """Bytes before the array."""


class Npz:
    """An open .npz file; its headers are read and checked, its arrays are not."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.headers: dict[str, Header] = {}
        self.unreadable: dict[str, str] = {}
        """Members that hold no plain array, with the reason."""
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
        """Return what an array says about itself.

        Raises:
            DataError: there is no such array, or it holds something else than plain values.
        """
        if key in self.unreadable:
            raise DataError(f"{self.path}: '{key}' {self.unreadable[key]}; {_CURE}")
        if key not in self.headers:
            found = ", ".join(sorted({*self.headers, *self.unreadable})[:20]) or "nothing"
            raise DataError(f"{self.path} holds no array '{key}' (it holds {found}); {_CURE} and that name")
        return self.headers[key]

    def rows(self, key: str) -> Iterator[NDArray[Any]]:
        """Yield an array's rows one at a time, as read-only views of what was read."""
        header = self.header(key)
        shape = header.shape[1:]
        length = math.prod(shape) * header.dtype.itemsize
        if header.fortran and len(header.shape) > 1:
            raise DataError(
                f"{self.path}: '{key}' is in Fortran order, column by column; save numpy.ascontiguousarray of it"
            )
        if length > MAX_ROW_BYTES:
            raise DataError(f"{self.path}: one row of '{key}' {shape} is larger than 1 GiB; cut the images smaller")
        with _border(self.path, key), self._zip.open(f"{key}.npy") as file:
            _exactly(file, header.offset)
            for _ in range(header.shape[0]):
                yield np.frombuffer(_exactly(file, length), dtype=header.dtype).reshape(shape)
            file.read(1)  # at the end the zip's checksum is compared

    def read(self, key: str) -> NDArray[Any]:
        """Return a small array as a whole."""
        header = self.header(key)
        length = math.prod(header.shape) * header.dtype.itemsize
        if length > MAX_TABLE_BYTES:
            raise DataError(f"{self.path}: '{key}' {header.shape} of {header.dtype} is too large; shorten its text")
        with _border(self.path, key), self._zip.open(f"{key}.npy") as file:
            _exactly(file, header.offset)
            values = np.frombuffer(_exactly(file, length), dtype=header.dtype)
            file.read(1)
            if not is_unicode(values):
                raise ValueError("its text is no Unicode")
            return values.reshape(header.shape, order="F" if header.fortran else "C")

    def _read_header(self, key: str) -> None:
        with _border(self.path, key), self._zip.open(f"{key}.npy") as file:
            version = npy_format.read_magic(file)
            if version not in ((1, 0), (2, 0)):
                raise ValueError(f"its .npy format {version} is not known")
            read = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
            shape, fortran, dtype = read(file)
            offset = file.tell()
            size = self._zip.getinfo(f"{key}.npy").file_size
        if dtype.hasobject or dtype.kind not in "biufcSUmM" or dtype.itemsize == 0:
            self.unreadable[key] = "holds Python objects or records, not plain values"
        elif any(length < 0 for length in shape) or offset + math.prod(shape) * dtype.itemsize != size:
            raise DataError(f"{self.path}: '{key}' says {dtype} {shape} but holds {size - offset} bytes; {_CURE}")
        else:
            self.headers[key] = Header(shape, dtype, fortran, offset)


def is_unicode(values: NDArray[Any]) -> bool:
    """Return whether text of a stranger, (N,) as it was read, is made of characters; numbers always are."""
    if values.dtype.kind != "U":
        return True
    codes = values.view(np.dtype(np.uint32).newbyteorder(values.dtype.byteorder))
    return bool((codes <= sys.maxunicode).all())


def _exactly(file: IO[bytes], length: int) -> bytes:
    parts = []
    while length:
        part = file.read(length)
        if not part:
            raise EOFError("it ends too early")
        parts.append(part)
        length -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


@contextmanager
def _border(path: Path, key: str | None = None) -> Iterator[None]:
    """Turn whatever zipfile, zlib and numpy raise on a damaged file into one line."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; give an .npz file that numpy.savez wrote") from None
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, *NPY_ERRORS) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:200] or type(error).__name__
        what = f"'{key}' of {path} cannot be read" if key else f"{path} is no readable .npz file"
        raise DataError(f"{what} ({reason}); give a file that numpy.savez wrote, or {_CURE}") from None
