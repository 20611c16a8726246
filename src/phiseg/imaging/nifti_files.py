"""NIfTI files: reading with strict checks, and atomic writing."""

import gzip
import math
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import IO, Any

import nibabel
import numpy as np
from nibabel.filebasedimages import ImageFileError
from nibabel.imageglobals import LoggingOutputSuppressor
from nibabel.spatialimages import HeaderDataError
from numpy.typing import NDArray

from phiseg.core.errors import DataError
from phiseg.core.files import atomic_file
from phiseg.imaging.sparse_gzip import GzipStream, PlainStream
from phiseg.imaging.volume import Volume

SUFFIXES = (".nii", ".nii.gz")

_DAMAGE = (ImageFileError, HeaderDataError, OSError, EOFError, zlib.error, ValueError, TypeError, OverflowError)
"""Exceptions of nibabel and gzip for truncated or invalid files."""
_MAX_COMPRESSION = 1032
"""Maximum compression ratio of deflate."""
_UNITS_MM = {1: 1e3, 3: 1e-3}
"""Sizes of the units meter and micron in mm by their code in xyzt_units; any other code counts as mm."""
_LARGEST_NIFTI1 = 32767
"""Longest axis of NIfTI-1."""
_LABEL_TOLERANCE = 1e-3
"""Scaled files may store class 1 as 0.99999."""
_MAX_LABEL = 1 << 30
_MAX_CONDITION = 1e6
"""Maximum condition number of the affine; above it, the axes are nearly degenerate."""


def read_nifti(path: Path, *, channels: bool = False) -> Volume:
    """Read a volume with its scaling applied.

    Args:
        path: a .nii or .nii.gz file with three dimensions; further dimensions of length 1 are dropped.
        channels: read a fourth dimension as channels; the values are (I, J, K, C), with C = 1 if there is none.

    Raises:
        DataError: the file is missing, damaged or not NIfTI, or has NaN or infinite voxels.
    """
    expected = read_nifti_header(path, channels=channels)
    with _wrap_errors(path), _opened(path) as stream:
        kind: Any = type(nibabel.load(path))  # NIfTI-1 or NIfTI-2
        image = kind.from_stream(stream)
        values = np.asanyarray(image.dataobj)
        while isinstance(stream, gzip.GzipFile) and stream.read(1 << 20):
            pass  # read to the end, so that gzip verifies its checksum
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise DataError(f"{path} has NaN or infinite voxels; repair or exclude the image")
    native = values.dtype.newbyteorder("=")
    return Volume(np.asarray(values, dtype=native).reshape(expected.values.shape), expected.affine)


def read_nifti_labels(path: Path) -> Volume:
    """Read class indices of any stored type as int32.

    Raises:
        DataError: see `read_nifti`, or a value is not an integer.
    """
    volume = read_nifti(path)
    labels = np.rint(volume.values) if volume.values.dtype.kind == "f" else volume.values
    wrong = (np.abs(volume.values - labels) > _LABEL_TOLERANCE) | (labels < -_MAX_LABEL) | (labels > _MAX_LABEL)
    if wrong.any():
        raise DataError(
            f"{path} contains {volume.values[wrong][0]:g}, which is not a class index; labels must be integers, "
            "so pass the original label file, not a resampled one or probabilities"
        )
    return Volume(labels.astype(np.int32), volume.affine)


def read_nifti_header(path: Path, *, channels: bool = False) -> Volume:
    """Read the header: a volume with the shape, dtype and affine of the file and zeros as values.

    The zeros are broadcast and need no memory.

    Raises:
        DataError: see `read_nifti`; or the file is too short for its header.
    """
    with _wrap_errors(path):
        image = nibabel.load(path)
        if not isinstance(image, nibabel.Nifti1Image):
            raise DataError(f"{path} is not a single-file NIfTI image; convert it to .nii.gz")
        data: Any = image.dataobj
        shape, stored, offset = image.shape, np.dtype(data.dtype), int(data.offset)
        scaled = (data.slope, data.inter) != (1, 0)
        affine = np.array(image.affine, dtype=np.float64)
        header: Any = image.header
        affine[:3] *= _UNITS_MM.get(int(header["xyzt_units"]) % 8, 1)
        size = path.stat().st_size
    if stored.kind not in "iuf":
        raise DataError(f"{path} has voxels of type {stored}, not numbers; convert it to integers or floats")
    promised = max(offset, 0) + math.prod(shape) * stored.itemsize
    if min(shape, default=0) < 1 or promised > size * (_MAX_COMPRESSION if _is_compressed(path) else 1):
        raise DataError(
            f"{path} is damaged: {size} bytes are too few for the {shape} voxels of its header; copy it again"
        )
    if not np.isfinite(affine).all() or np.linalg.cond(affine[:3, :3]) > _MAX_CONDITION:
        raise DataError(f"{path} has no valid position and spacing (sform, qform, pixdim); repair its header")
    dtype = np.dtype(np.float64) if scaled else stored.newbyteorder("=")
    return Volume(np.broadcast_to(np.zeros((), dtype), _with_dimensions(shape, path, channels=channels)), affine)


def write_nifti(path: Path, volume: Volume) -> None:
    """Write a volume with its dtype (bool as uint8) to a .nii or .nii.gz file, atomically."""
    values = volume.values.astype(np.uint8) if volume.values.dtype == np.bool_ else volume.values
    channels = np.moveaxis(values.reshape(*volume.grid, -1), -1, 0)  # (C, I, J, K)
    _write_volumes(path, _image(values, volume.affine), (replace(volume, values=part) for part in channels))


def write_nifti_sequence(path: Path, volumes: Iterable[Volume], *, number: int) -> None:
    """Write volumes of equal grid and dtype as one 4D file, atomically, with one volume in memory at a time.

    Args:
        path: a .nii or .nii.gz file.
        volumes: (I, J, K) each.
        number: number of volumes.
    """
    rest = iter(volumes)
    first = next(rest)
    values = np.broadcast_to(np.zeros((), first.values.dtype), (*first.grid, number))
    _write_volumes(path, _image(values, first.affine), chain([first], rest))


def _write_volumes(path: Path, image: Any, volumes: Iterable[Volume]) -> None:
    """Write the header of an image and volumes (I, J, K), slice by slice; most voxels of a prediction are zero."""
    header = image.header
    header.set_data_offset(header.single_vox_offset)
    header.set_slope_inter(1, 0)
    with _written(path) as stream:
        header.write_to(stream)
        for volume in volumes:
            _, rows, planes = (range(n)[part] for n, part in zip(volume.grid, volume.box, strict=True))
            for number, plane in enumerate(np.moveaxis(volume.values, 2, 0)):  # (I, J)
                if number in planes and (part := plane[:, rows.start : rows.stop]).any():
                    stream.write_zeros(plane[:, : rows.start].nbytes)
                    stream.write(part.tobytes(order="F"))
                    stream.write_zeros(plane[:, rows.stop :].nbytes)
                else:
                    stream.write_zeros(plane.nbytes)


def _image(values: NDArray[Any], affine: NDArray[np.float64]) -> Any:
    kind: Any = nibabel.Nifti1Image if max(values.shape) <= _LARGEST_NIFTI1 else nibabel.Nifti2Image
    image: Any = kind(values, affine, dtype=values.dtype)
    image.set_sform(affine, code="scanner")
    image.set_qform(affine, code="scanner")
    image.header.set_xyzt_units("mm")
    return image


@contextmanager
def _written(path: Path) -> Iterator[PlainStream]:
    """Open a new file for writing."""
    assert path.name.endswith(SUFFIXES), path
    with atomic_file(path) as file:
        stream = GzipStream(file) if _is_compressed(path) else PlainStream(file)
        yield stream
        stream.close()


def _with_dimensions(shape: tuple[int, ...], path: Path, *, channels: bool) -> tuple[int, ...]:
    """Return the shape with exactly three dimensions, or four with channels."""
    target = 4 if channels else 3
    if math.prod(shape[target:]) > 1:
        hint = "split it into 3D files" if not channels else "store channels in the fourth dimension"
        raise DataError(f"{path} has {len(shape)} dimensions {shape}, more than {target}; {hint}")
    return (*shape, 1, 1, 1)[:target]


def _opened(path: Path) -> IO[bytes] | gzip.GzipFile:
    return gzip.open(path, "rb") if _is_compressed(path) else path.open("rb")


def _is_compressed(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


@contextmanager
def _wrap_errors(path: Path) -> Iterator[None]:
    """Convert any exception while reading into a DataError with the name of the file."""
    try:
        with LoggingOutputSuppressor():
            yield
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; check the name") from None
    except _DAMAGE as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{path} cannot be read as NIfTI ({reason}); copy or convert it again") from None
