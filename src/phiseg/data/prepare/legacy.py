"""LIDC crops published by others, in their common file formats.

    phiseg prepare legacy FILE DATA

- `data_lidc.hdf5` of PHiSeg: groups train, val and test, each with `images` (N, H, W), `labels` (N, H, W, A) and
  `uids` (N,), one for each series;
- `data_lidc.pickle` of Knegt: a dict of dicts with `image` (H, W), `masks` (A, H, W) and `series_uid`, not split;
- a folder of PNG files, described in `legacy_png`.

The format of FILE is detected from its contents. Files are not trusted: pickles are read by `legacy_pickle`, and an
HDF5 file must not refer to other files. The series, or the folder of PNG files, identifies the patient.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from phiseg.core.errors import DataError
from phiseg.core.files import AnyPath, check_replaceable
from phiseg.data.prepare import legacy_pickle
from phiseg.data.prepare.arrays import sha256_of
from phiseg.data.prepare.fixed_size import write_fixed_size
from phiseg.data.prepare.fixed_size_source import FixedSizeOptions, Item, Source, print_note, text_of
from phiseg.data.prepare.legacy_pickle import PickledArray
from phiseg.data.prepare.legacy_png import LAYOUTS, PngFolder
from phiseg.data.splits import SPLIT_NAMES
from phiseg.data.store import Dataset
from phiseg.data.writer import Case

CLASSES = ("background", "nodule")

MAX_READERS = 64

_FORMS = f"PHiSeg's data_lidc.hdf5, Knegt's data_lidc.pickle or a folder of PNGs: {LAYOUTS}"
_BLOCK_BYTES = 2**24
_BEST_COMPRESSION = 1100
"""Upper limit of the compression ratio of HDF5."""


def prepare_legacy(
    path: AnyPath,
    out: AnyPath,
    options: FixedSizeOptions,
    *,
    overwrite: bool = False,
    command: str = "",
    progress: bool = True,
) -> Dataset:
    """Convert published LIDC crops to a prepared dataset.

    Args:
        path: HDF5 file, pickle (held in memory, 2 GB for all of LIDC) or folder of PNG files.
        out: folder of the dataset to write.
        options: options chosen by the user.
        overwrite: replace an existing dataset.
        command: command line to store in the dataset.
        progress: show progress bars.

    Raises:
        DataError: the source is damaged or has another format, or a patient is in two splits.
        OutputError: `out` exists and `overwrite` is false, or it cannot be written.
    """
    path, out = Path(path), Path(out)
    check_replaceable(out, overwrite=overwrite, marker="dataset.json")
    kind, source = _open(path)
    provenance: dict[str, JsonValue] = {"kind": kind, "file": path.resolve().name}
    if isinstance(source, PngFolder):
        provenance["left_out"] = source.skipped.reasons  # filled while reading, before the manifest is written
    else:
        provenance["sha256"] = sha256_of(path)
    try:
        return write_fixed_size(
            out, source, options, provenance=provenance, overwrite=overwrite, command=command, progress=progress
        )
    finally:
        if isinstance(source, PngFolder):
            source.tell_counts()


def _open(path: Path) -> tuple[str, Source]:
    """Detect the format of a source and open it."""
    if path.is_dir():
        folder = PngFolder(path)
        return folder.kind, folder
    try:
        with path.open("rb") as file:
            start = file.read(2)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; give {_FORMS}") from None
    if h5py.is_hdf5(path):
        return "PHiSeg's HDF5", Hdf5File(path)
    if start[:1] in (b"\x80", b"(", b"}") and (start[:1] != b"\x80" or start[1:] <= b"\x05"):
        return "Knegt's pickle", PickleFile(path)
    raise DataError(f"{path} is not an HDF5 file, a pickle or a folder; give {_FORMS}")


class Hdf5File:
    """The data_lidc.hdf5 of PHiSeg, read in blocks of rows."""

    spacing_mm = None

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._open() as groups:
            self._num_rows = sum(len(group["images"]) for group in groups.values())

    def __len__(self) -> int:
        return self._num_rows

    def __iter__(self) -> Iterator[Item]:
        with self._open() as groups:
            for split, arrays in groups.items():
                yield from self._items(split, arrays)

    def _items(self, split: str, arrays: dict[str, Any]) -> Iterator[Item]:
        for row, (image, labels, uid) in enumerate(zip(*map(_rows, arrays.values()), strict=True)):
            series = text_of(uid, where=f"{self.path}: {split}/uids")
            valid = np.ones(labels.shape[-1], dtype=np.bool_)
            name = f"{split}-{row:05d}"
            yield Item(Case(name, series, image[None], np.moveaxis(labels, -1, 0), valid), split)

    @contextmanager
    def _open(self) -> Iterator[dict[str, dict[str, Any]]]:
        """Open the file and yield the validated arrays of each split."""
        try:
            with h5py.File(self.path, "r") as file:
                found = [split for split in SPLIT_NAMES if file.id.links.exists(split.encode())]
                if not found:
                    raise DataError(f"{self.path} has none of the groups {', '.join(SPLIT_NAMES)}; give {_FORMS}")
                yield {split: self._group(file, split) for split in found}
        except (
            OSError,
            RuntimeError,
            ValueError,
            TypeError,
            KeyError,
            IndexError,
            OverflowError,
            MemoryError,
        ) as error:
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise DataError(f"{self.path} is damaged ({reason}); download or create it again") from None

    def _group(self, file: Any, split: str) -> dict[str, Any]:
        group = self._own(file, split, h5py.Group)
        images, labels, uids = (self._own(group, key, h5py.Dataset) for key in ("images", "labels", "uids"))
        num_rows = images.shape[0] if images.shape else 0
        if (
            len(images.shape or ()) != 3
            or len(labels.shape or ()) != 4
            or labels.shape[:3] != images.shape
            or uids.shape != (num_rows,)
            or 0 in (*images.shape[1:], *labels.shape[1:])
        ):
            raise DataError(
                f"{self.path}: '{split}' has images {images.shape}, labels {labels.shape} and uids {uids.shape}; "
                "expected (N, H, W), (N, H, W, A) and (N,); create the file again"
            )
        if images.dtype.kind not in "biuf" or labels.dtype.kind not in "biuf":
            raise DataError(
                f"{self.path}: images and labels of group '{split}' must be numbers; create the file again"
            )
        if uids.dtype.kind not in "iuSU" and h5py.check_string_dtype(uids.dtype) is None:
            raise DataError(f"{self.path}: uids of group '{split}' must be text or integers; create the file again")
        return {"images": images, "labels": labels, "uids": uids}

    def _own(self, group: Any, name: str, kind: type) -> Any:
        """Return a member that is stored in this file; links to other files are rejected."""
        place = f"{group.name.strip('/')}/{name}".strip("/")
        links = group.id.links  # inspects the link without following it
        if not links.exists(name.encode()):
            raise DataError(f"{self.path} has no '{place}'; give {_FORMS}")
        if links.get_info(name.encode()).type != h5py.h5l.TYPE_HARD:
            raise DataError(
                f"{self.path}: '{place}' is a link, possibly to another file; copy the data into the file"
            )
        member = group[name]
        if not isinstance(member, kind):
            raise DataError(f"{self.path}: '{place}' is not a {kind.__name__.lower()}; give {_FORMS}")
        if isinstance(member, h5py.Dataset):
            if member.external or member.is_virtual:
                raise DataError(
                    f"{self.path}: '{place}' stores its values in other files; copy the data into this file"
                )
            if member.nbytes > _BEST_COMPRESSION * member.id.get_storage_size() + _BLOCK_BYTES:
                raise DataError(
                    f"{self.path}: '{place}' has shape {member.shape}, but far fewer bytes; create the file again"
                )
        return member


def _rows(dataset: Any) -> Iterator[Any]:
    """Yield the rows of an HDF5 dataset, read in blocks."""
    length = max(1, _BLOCK_BYTES // max(1, dataset.nbytes // max(1, len(dataset))))
    for start in range(0, len(dataset), length):
        yield from dataset[start : start + length]


class PickleFile:
    """The data_lidc.pickle of Knegt, which is loaded into memory."""

    spacing_mm = None

    def __init__(self, path: Path) -> None:
        self.path = path
        size = path.stat().st_size
        if size > 2**28:
            print_note(f"{path}: reading {size / 2**30:.1f} GB into memory")
        self._entries = legacy_pickle.load(path)
        if not isinstance(self._entries, dict):
            raise DataError(f"{path} does not contain a dict of crops; give {_FORMS}")

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Item]:
        for key, entry in self._entries.items():
            name = text_of(key, where=str(self.path))
            where = f"{self.path}: crop '{name}'"
            if not isinstance(entry, dict) or not {"image", "masks", "series_uid"} <= entry.keys():
                raise DataError(f"{where} has no image, masks or series_uid; give {_FORMS}")
            if not isinstance(entry["series_uid"], str | bytes | int):
                raise DataError(f"{where}: series_uid is not text; give {_FORMS}")
            series = text_of(entry["series_uid"], where=where)
            image, masks = _plane(entry["image"], where), _planes(entry["masks"], where)
            yield Item(Case(name, series, image[None], masks, np.ones(len(masks), dtype=np.bool_)), None)


def _plane(value: Any, where: str) -> NDArray[Any]:
    if not isinstance(value, PickledArray) or value.values.ndim != 2 or not value.values.size:
        raise DataError(f"{where}: the image or a mask is not an array (H, W); give {_FORMS}")
    return value.values


def _planes(value: Any, where: str) -> NDArray[Any]:
    """Return masks (A, H, W) from one array or from one array per reader."""
    if isinstance(value, PickledArray) and value.values.ndim == 3 and value.values.size:
        return value.values
    if isinstance(value, list | tuple) and len(value) > MAX_READERS:  # they may all refer to the same plane
        raise DataError(f"{where} has {len(value)} masks, more than {MAX_READERS} readers; give {_FORMS}")
    planes = [_plane(plane, where) for plane in value] if isinstance(value, list | tuple) else []
    if not planes or len({plane.shape for plane in planes}) > 1 or any(p.dtype.kind not in "biuf" for p in planes):
        raise DataError(f"{where}: the masks are not one array (H, W) per reader; give {_FORMS}")
    return np.stack(planes)
