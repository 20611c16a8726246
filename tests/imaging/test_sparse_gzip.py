"""Gzip files with runs of zeros, read back by the standard library, which verifies length and checksum."""

import gzip
import io
import zlib

import numpy as np
import pytest

from phiseg.imaging.sparse_gzip import GzipStream, PlainStream


def written(kind, parts):
    file = io.BytesIO()
    stream = kind(file)
    for part in parts:
        stream.write_zeros(part) if isinstance(part, int) else stream.write(part)
    stream.close()
    return file.getvalue()


NOISE = np.random.default_rng(0).integers(0, 256, 5000, dtype=np.uint8).tobytes()


@pytest.mark.parametrize(
    "parts",
    [
        (),
        (b"header",),
        (70_000,),
        (70_000, 70_000, b"end"),
        (b"header", 1000, NOISE, NOISE, 1000, 31, b"", 0, 1000, NOISE, 0),
    ],
    ids=["empty", "text", "zeros", "zeros first", "mixed"],
)
def test_gzip_stream_round_trip(parts):
    expected = b"".join(bytes(part) for part in parts)
    assert written(PlainStream, parts) == expected
    found = written(GzipStream, parts)
    assert gzip.decompress(found) == expected
    decoder = zlib.decompressobj(wbits=31)  # a single member, for readers that stop after the first
    assert decoder.decompress(found) == expected
    assert decoder.eof
    assert not decoder.unused_data


def test_gzip_stream_is_reproducible_and_small():
    parts = [b"header", *[512 * 512] * 50]
    assert written(GzipStream, parts) == written(GzipStream, parts)
    assert len(written(GzipStream, parts)) < 2 * len(gzip.compress(bytes(50 * 512 * 512), 1))
