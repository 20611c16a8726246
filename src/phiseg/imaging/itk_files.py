"""MetaImage (.mha, .mhd) and NRRD (.nrrd, .nhdr) files: reading with strict checks, and atomic writing.

SimpleITK reads the files. It cannot write volumes one after another, so the headers of new files are made here.
Both formats use LPS coordinates and store the geometry in double precision.
"""

import gzip
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phiseg.core.errors import DataError
from phiseg.core.files import atomic_file
from phiseg.imaging.volume import LPS_TO_RAS, Volume

SUFFIXES = (".mha", ".mhd", ".nrrd", ".nhdr")
WRITABLE = (".mha", ".nrrd")
"""Formats with header and voxels in one file."""

_META_TYPES = {
    "uint8": "MET_UCHAR",
    "int8": "MET_CHAR",
    "uint16": "MET_USHORT",
    "int16": "MET_SHORT",
    "uint32": "MET_UINT",
    "int32": "MET_INT",
    "uint64": "MET_ULONG_LONG",
    "int64": "MET_LONG_LONG",
    "float32": "MET_FLOAT",
    "float64": "MET_DOUBLE",
}
_NRRD_TYPES = {"float32": "float", "float64": "double"}
"""NRRD names of types; integers have the names of NumPy."""
_UNITS_MM = {
    **dict.fromkeys(("um", "micron", "microns", "micrometer", "micrometers"), 1e-3),
    **dict.fromkeys(("mm", "millimeter", "millimeters"), 1.0),
    **dict.fromkeys(("cm", "centimeter", "centimeters"), 10.0),
    **dict.fromkeys(("m", "meter", "meters"), 1e3),
}
"""Sizes of units of length in mm."""
_MAX_HEADER = 1 << 20
_MAX_COMPRESSION = 1032
"""Maximum compression ratio of deflate."""
_MAX_CONDITION = 1e6
"""Maximum condition number of the affine; above it, the axes are nearly degenerate."""
_CHUNK = 1 << 22


@dataclass(frozen=True)
class _Header:
    """Text at the beginning of a file."""

    fields: dict[str, str]
    """Values by key in lower case."""
    size: int
    """Number of bytes."""
    data: Path
    """File with the voxels: the file itself, or one beside it."""


def read_itk(path: Path, *, channels: bool = False) -> Volume:
    """Read a volume.

    Args:
        path: file with two or three dimensions; further dimensions of length 1 are dropped. A file with two
            dimensions becomes one slice.
        channels: read a fourth dimension or the components of a voxel as channels; the values are (I, J, K, C),
            with C = 1 if there are none.

    Raises:
        DataError: the file is missing, damaged or in another format, or has NaN or infinite voxels.
    """
    import SimpleITK  # here, because importing it takes time

    header = _read_header(path)
    with _wrap_errors(path):
        reader, size = _reader(path)
        _check_voxels(path, header, size)
        image = reader.Execute()
        values = SimpleITK.GetArrayFromImage(image)  # (..., K, J, I), then the components of a voxel
    dims = image.GetDimension()
    values = values.transpose(*reversed(range(dims)), *range(dims, values.ndim))  # (I, J, K, ...)
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise DataError(f"{path} has NaN or infinite voxels; repair or exclude the image")
    affine = _affine(path, image, header.fields)
    return Volume(_with_dimensions(values, dims, path, channels=channels), affine)


def stated_bytes(path: Path) -> int:
    """Return the size of the voxels in bytes according to the header.

    Raises:
        DataError: the header cannot be read.
    """
    _read_header(path)
    with _wrap_errors(path):
        return _reader(path)[1]


def _reader(path: Path) -> tuple[Any, int]:
    """Return a SimpleITK reader that has read the header, and the size of the voxels in bytes."""
    import SimpleITK  # here, because importing it takes time

    reader = SimpleITK.ImageFileReader()
    reader.SetImageIO("MetaImageIO" if _is_meta(path) else "NrrdImageIO")
    reader.SetFileName(str(path))
    reader.ReadImageInformation()
    number = reader.GetNumberOfComponents()
    voxel = SimpleITK.Image([1] * reader.GetDimension(), reader.GetPixelID(), number)
    dtype = SimpleITK.GetArrayFromImage(voxel).dtype
    if dtype.kind not in "iuf":
        raise DataError(f"{path} has voxels of type {dtype}, not numbers; convert it to integers or floats")
    return reader, math.prod(reader.GetSize()) * number * dtype.itemsize


def stated_orientation(path: Path) -> bool:
    """Return whether a file states the directions of its axes.

    Raises:
        DataError: the header cannot be read.
    """
    keys = {"transformmatrix", "rotation", "orientation"} if _is_meta(path) else {"space"}
    return bool(keys & _read_header(path).fields.keys())


def stated_spacing(path: Path) -> bool:
    """Return whether a file states the distances between its voxels.

    Raises:
        DataError: the header cannot be read.
    """
    keys = {"elementspacing", "elementsize"} if _is_meta(path) else {"spacings", "space directions"}
    fields = _read_header(path).fields
    return any(re.search(r"\d", fields.get(key, "")) for key in keys)


def files_of(path: Path) -> list[Path]:
    """Return the file and, for a separate header, the file with the voxels.

    Raises:
        DataError: the header cannot be read, or the voxels are in several files or another folder.
    """
    data = _read_header(path).data
    return [path] if data == path else [path, data]


def write_itk(path: Path, volume: Volume, *, compress: bool = True) -> None:
    """Write a volume with its dtype (bool as uint8) to a .mha or .nrrd file, atomically; channels become 4-D."""
    if volume.values.ndim == 3:
        _write(path, [volume], number=None, compress=compress)
    else:
        parts = (Volume(part, volume.affine) for part in np.moveaxis(volume.values, 3, 0))
        _write(path, parts, number=volume.values.shape[3], compress=compress)


def write_itk_sequence(path: Path, volumes: Iterable[Volume], *, number: int) -> None:
    """Write volumes of equal grid and dtype as one 4-D file, atomically, with one volume in memory at a time.

    Args:
        path: a .mha or .nrrd file.
        volumes: (I, J, K) each.
        number: number of volumes.
    """
    _write(path, volumes, number=number)


def _write(path: Path, volumes: Iterable[Volume], *, number: int | None, compress: bool = True) -> None:
    assert path.suffix in WRITABLE, path
    rest = iter(volumes)
    first = next(rest)
    dtype = np.dtype(np.uint8) if first.values.dtype == np.bool_ else first.values.dtype.newbyteorder("=")
    sizes = (*first.grid, *(() if number is None else (number,)))
    with atomic_file(path) as file:
        is_meta = _is_meta(path)
        # 31: with the header of gzip, which contains no name or time
        packer = zlib.compressobj(1, zlib.DEFLATED, 15 if is_meta else 31) if compress else None
        header = _meta_header if is_meta else _nrrd_header
        file.write(header(dtype.name, sizes, first.affine, 0 if compress else None))
        begin = file.tell()
        for volume in chain([first], rest):
            voxels = volume.values.astype(dtype.newbyteorder("<")).tobytes(order="F")
            file.write(packer.compress(voxels) if packer else voxels)
        if packer:
            file.write(packer.flush())
            size = file.tell() - begin
            file.seek(0)
            file.write(header(dtype.name, sizes, first.affine, size))  # of the same length


def _meta_header(dtype: str, sizes: tuple[int, ...], affine: NDArray[np.float64], compressed: int | None) -> bytes:
    """Return the header; `compressed` is the size of the compressed voxels in bytes, None without compression."""
    steps, origin = _lps(affine)
    spacing = np.linalg.norm(steps, axis=0)
    directions = np.eye(len(sizes))
    directions[:3, :3] = (steps / spacing).T  # one row per axis
    extra = len(sizes) - 3
    lines = {
        "ObjectType": "Image",
        "NDims": len(sizes),
        "BinaryData": True,
        "BinaryDataByteOrderMSB": False,
        "CompressedData": compressed is not None,
        **({} if compressed is None else {"CompressedDataSize": f"{compressed:019}"}),
        "TransformMatrix": _numbers(directions.ravel()),
        "Offset": _numbers([*origin, *[0.0] * extra]),
        "CenterOfRotation": _numbers([0.0] * len(sizes)),
        "ElementSpacing": _numbers([*spacing, *[1.0] * extra]),
        "DimSize": " ".join(map(str, sizes)),
        "ElementType": _META_TYPES[dtype],
        "ElementDataFile": "LOCAL",
    }
    return "".join(f"{key} = {value}\n" for key, value in lines.items()).encode()


def _nrrd_header(dtype: str, sizes: tuple[int, ...], affine: NDArray[np.float64], compressed: int | None) -> bytes:
    steps, origin = _lps(affine)
    is_list = len(sizes) == 4
    lines = {
        "type": _NRRD_TYPES.get(dtype, dtype),
        "dimension": len(sizes),
        "space": "left-posterior-superior",
        "sizes": " ".join(map(str, sizes)),
        "space directions": " ".join(f"({_numbers(step, ',')})" for step in steps.T) + " none" * is_list,
        "kinds": "domain domain domain" + " list" * is_list,
        "endian": "little",
        "encoding": "raw" if compressed is None else "gzip",
        "space origin": f"({_numbers(origin, ',')})",
    }
    return "".join(["NRRD0004\n", *(f"{key}: {value}\n" for key, value in lines.items()), "\n"]).encode()


def _numbers(values: Iterable[float], separator: str = " ") -> str:
    return separator.join(repr(float(value)) for value in values)


def _lps(affine: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the steps between voxels (one column per axis) and the first voxel in LPS coordinates."""
    lps = LPS_TO_RAS @ affine
    return lps[:3, :3], lps[:3, 3]


def _affine(path: Path, image: Any, fields: Mapping[str, str]) -> NDArray[np.float64]:
    dims = image.GetDimension()
    shown = min(dims, 3)
    lps = np.eye(4)
    directions = np.reshape(image.GetDirection(), (dims, dims)) * image.GetSpacing()
    lps[:shown, :shown] = directions[:shown, :shown]
    lps[:shown, 3] = image.GetOrigin()[:shown]
    lps[:3] *= _unit_mm(path, fields)
    if not np.isfinite(lps).all() or np.linalg.cond(lps[:3, :3]) > _MAX_CONDITION:
        raise DataError(f"{path} has no valid spacing and directions; repair its header")
    affine: NDArray[np.float64] = LPS_TO_RAS @ lps
    return affine


def _unit_mm(path: Path, fields: Mapping[str, str]) -> float:
    """Return the unit of length in mm, which SimpleITK ignores.

    Raises:
        DataError: the unit is unknown, or differs between axes.
    """
    if _is_meta(path):
        names = {fields.get("distanceunits", "")}
    else:  # names in quotation marks, one for each axis
        names = {*re.findall(r'"([^"]*)"', fields.get("space units", ""))}
        names = names or {*re.findall(r'"([^"]*)"', fields.get("units", ""))} & _UNITS_MM.keys()
    stated = sorted(name for name in names if name not in ("", "?"))
    sizes = {_UNITS_MM.get(name.lower()) for name in stated} or {1.0}
    size = sizes.pop()
    if sizes or size is None:
        raise DataError(f"{path} has the units {', '.join(stated)}; convert its geometry to mm")
    return size


def _with_dimensions(values: NDArray[Any], dims: int, path: Path, *, channels: bool) -> NDArray[Any]:
    """Return the values with exactly three dimensions, or four with channels.

    Args:
        values: `dims` dimensions, and one more for the components of a voxel, if there are several.
        dims: number of dimensions of the image.
        path: file of the image.
        channels: whether there may be a fourth dimension.
    """
    spatial, more = (*values.shape[:dims], 1)[:3], values.shape[3:] if dims >= 3 else values.shape[2:]
    if math.prod(more) > 1 and (not channels or sum(length > 1 for length in more) > 1):
        hint = "store channels as components of a voxel" if channels else "split it into 3-D files"
        raise DataError(f"{path} has the shape {values.shape}, with too many dimensions; {hint}")
    return values.reshape((*spatial, math.prod(more)) if channels else spatial)


def _check_voxels(path: Path, header: _Header, promised: int) -> None:
    """Raise a DataError if the voxels are incomplete or damaged.

    SimpleITK reads a MetaImage with damaged compressed voxels without an error.
    """
    fields, size = header.fields, header.data.stat().st_size - header.size * (header.data == path)
    encoding = fields.get("encoding", "").lower()
    is_text = fields.get("binarydata", "true").lower() == "false" or encoding in ("txt", "text", "ascii", "hex")
    is_gzip, is_zlib = encoding in ("gz", "gzip"), fields.get("compresseddata", "false").lower() == "true"
    least = 1 if is_text or encoding in ("bz2", "bzip2") else promised
    too_few = f"{path} is damaged: {size} bytes are too few for the voxels of its header; copy it again"
    if promised < 1 or size * (_MAX_COMPRESSION if is_gzip or is_zlib else 1) < least:
        raise DataError(too_few)
    if is_zlib and not fields.get("compresseddatasize", "").strip().isdigit():
        raise DataError(f"{path} does not state CompressedDataSize; save it again")
    if (is_gzip and "byte skip" not in fields and "line skip" not in fields) or is_zlib:
        with header.data.open("rb") as file:
            file.seek(header.size if header.data == path else 0)
            if _unpacked_size(file, gzipped=is_gzip) < promised:
                raise DataError(too_few)


def _unpacked_size(file: Any, *, gzipped: bool) -> int:
    """Return the size of compressed data, which must be complete and have the right checksum."""
    if gzipped:
        with gzip.GzipFile(fileobj=file) as stream:
            return sum(len(part) for part in iter(lambda: stream.read(_CHUNK), b""))
    total, unpacker = 0, zlib.decompressobj()
    while not unpacker.eof and (part := unpacker.unconsumed_tail or file.read(_CHUNK)):
        total += len(unpacker.decompress(part, _CHUNK))
    if not unpacker.eof:
        raise EOFError("the compressed voxels end too early")
    return total


def _read_header(path: Path) -> _Header:
    """Read the text of a file up to its voxels.

    Raises:
        DataError: the file is missing or has another format, or its voxels are in several files or another folder.
    """
    fields: dict[str, str] = {}
    with _wrap_errors(path), path.open("rb") as file:
        is_meta = _is_meta(path)
        if not is_meta and not file.readline(_MAX_HEADER).startswith(b"NRRD"):
            raise ValueError("it does not begin with NRRD")
        while line := file.readline(_MAX_HEADER):
            text = line.decode("latin-1").strip()
            if not is_meta and not text:
                break
            key, separator, value = text.partition("=" if is_meta else ":")
            if is_meta and not separator:
                raise ValueError("its header is not text")
            fields[key.strip().lower()] = value.strip()
            if (is_meta and key.strip().lower() == "elementdatafile") or file.tell() > _MAX_HEADER:
                break
        if is_meta and "elementdatafile" not in fields:
            raise ValueError("its header has no ElementDataFile")
        name = fields["elementdatafile"] if is_meta else fields.get("data file", fields.get("datafile", ""))
        size = file.tell()
    if not name or name.lower() == "local":
        return _Header(fields, size, path)
    data = path.parent / name
    if Path(name).name != name or not data.is_file():
        raise DataError(
            f"{path} is a header for voxels in '{name}', which is not a file in the same folder; put both files "
            "into one folder, or convert the image to .mha or .nrrd"
        )
    return _Header(fields, size, data)


def _is_meta(path: Path) -> bool:
    return path.suffix.lower() in (".mha", ".mhd")


@contextmanager
def _wrap_errors(path: Path) -> Iterator[None]:
    """Convert any exception while reading into a DataError with the name of the file."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; check the name") from None
    except (RuntimeError, OSError, EOFError, zlib.error, ValueError, OverflowError) as error:
        reason = " ".join(str(error).split()).rpartition("ITK ERROR: ")[2] or type(error).__name__
        kind = "MetaImage" if _is_meta(path) else "NRRD"
        raise DataError(f"{path} cannot be read as {kind} ({reason}); copy or convert it again") from None
