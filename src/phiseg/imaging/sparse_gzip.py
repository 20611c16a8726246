"""Writing of gzip files that are mostly zeros: long runs of zeros are compressed once and then repeated.

Predictions on the grid of a scan are such files: a lesion fills a few slices of some hundred.
"""

import struct
import zlib
from functools import cache
from typing import IO, NamedTuple

_LEVEL = 1
"""Compression level: higher ones take twice as long for little gain."""
_HEADER = bytes([0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 4, 255])  # no name and no time, so that files are reproducible


class PlainStream:
    """Writes to a file without compression."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file

    def write(self, data: bytes) -> None:
        """Write bytes."""
        self.file.write(data)

    def write_zeros(self, number: int) -> None:
        """Write zero bytes."""
        self.write(bytes(number))

    def close(self) -> None:
        """Write what is left; the file stays open."""


class GzipStream(PlainStream):
    """Writes one gzip member to a file.

    Each run of zeros starts and ends at a full flush, so its compressed bytes are always the same.
    """

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self._compressor = _raw_deflate()
        self._crc, self._size, self._aligned = 0, 0, True
        file.write(_HEADER)

    def write(self, data: bytes) -> None:
        """Compress and write bytes."""
        self.file.write(self._compressor.compress(data))
        self._crc, self._size, self._aligned = zlib.crc32(data, self._crc), self._size + len(data), False

    def write_zeros(self, number: int) -> None:
        """Write zero bytes, compressed before."""
        if not number:
            return
        zeros = _zeros(number)
        if not self._aligned:
            self.file.write(self._compressor.flush(zlib.Z_FULL_FLUSH))
        self.file.write(zeros.compressed)
        self._crc, self._size, self._aligned = zeros.append_to(self._crc), self._size + number, True

    def close(self) -> None:
        """Write the end of the member; the file stays open."""
        self.file.write(self._compressor.flush() + struct.pack("<II", self._crc, self._size % 2**32))


class _Zeros(NamedTuple):
    """A run of zeros."""

    compressed: bytes
    """Deflated bytes that end at a full flush."""
    crc: int
    """Checksum of the zeros alone."""
    changes: tuple[int, ...]
    """For each bit of a checksum, how it changes that of the zeros after it. Checksums are linear in their bits."""

    def append_to(self, crc: int) -> int:
        """Return the checksum of bytes with the checksum `crc` followed by the zeros."""
        total = self.crc
        for bit, change in enumerate(self.changes):
            if crc >> bit & 1:
                total ^= change
        return total


@cache
def _zeros(number: int) -> _Zeros:
    data = bytes(number)
    compressor = _raw_deflate()
    alone = zlib.crc32(data)
    changes = tuple(zlib.crc32(data, 1 << bit) ^ alone for bit in range(32))
    return _Zeros(compressor.compress(data) + compressor.flush(zlib.Z_FULL_FLUSH), alone, changes)


def _raw_deflate() -> "zlib._Compress":
    return zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
