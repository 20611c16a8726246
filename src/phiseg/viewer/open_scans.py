"""The scans of the viewer: those given at the start, cases of a dataset, an example, and uploads."""

import hashlib
import re
import unicodedata
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phiseg.core.errors import DataError
from phiseg.data.store import Dataset
from phiseg.imaging.series import DicomSeries
from phiseg.imaging.volume import PLANES, Plane, Volume, affine_towards
from phiseg.inference.example_scan import example_volume
from phiseg.inference.prepared_stack import PreparedStack, open_scan
from phiseg.inference.preprocessing import Preprocessing
from phiseg.inference.scans import ScanFile, file_name, find_scans
from phiseg.viewer.schema import ListedScan, PlaneInfo, ScanInfo
from phiseg.viewer.uploads import Upload, check_affordable, renamed

EXAMPLE = "example"
EXAMPLE_NAME = "synthetic example"
SPLITS = ("test", "val", "train")
"""Order of the splits in the list."""
MAX_CASES = 1000
"""Maximum number of listed cases of a dataset."""


@dataclass(frozen=True, eq=False)
class OpenScan:
    """A scan in memory, as slices in the plane of the model."""

    id: str
    name: str
    stack: PreparedStack
    series: DicomSeries | None = None
    warnings: tuple[str, ...] = ()
    start: tuple[int, int, int] | None = None
    """Slice, row and column to show first; None is the centre."""
    annotations: NDArray[np.uint8] | None = None
    """(A, N, H, W) annotations of a case of a dataset."""
    annotators: tuple[str, ...] = ()
    split: str | None = None
    """Split of a case of a dataset."""

    @property
    def volume(self) -> Volume:
        """The scan as it was read."""
        return self.stack.volume

    @property
    def file_stem(self) -> str:
        """The name of the scan as the start of a file name, without a suffix such as .nii.gz."""
        suffix = r"\.(nii(\.gz)?|mha|mhd|nrrd|nhdr|png|jpe?g|tiff?|bmp|dcm)$"
        stem = re.sub(suffix, "", self.name, flags=re.IGNORECASE)
        return file_name(unicodedata.normalize("NFC", stem)) or "scan"  # macOS separates letters and accents

    @cached_property
    def info(self) -> ScanInfo:
        """Description of the scan for the page."""
        values = self.stack.stack.values[..., 0]
        rule = self.stack.preprocessing.intensity
        window = (rule.low, rule.high) if rule.low is not None and rule.high is not None else None
        number, height, width = self.stack.stack.grid
        return ScanInfo(
            id=self.id,
            name=self.name,
            num_slices=number,
            height=height,
            width=width,
            spacing_mm=self.stack.stack.spacing_mm,
            has_spacing=self.stack.has_spacing,
            is_dicom=self.series is not None,
            split=self.split,
            file_stem=self.file_stem,
            has_colours=self.stack.preprocessing.has_colours,
            plane=self.stack.plane,
            planes=planes_of(self.stack.plane),
            value_range=(float(values.min()), float(values.max())),
            window=window or _percentiles(values),
            annotators=list(self.annotators),
            start=self.start or (number // 2, height // 2, width // 2),
            warnings=[*self.warnings, *self.stack.warnings],
        )

    def slice_values(self, number: int, plane: int = 0) -> NDArray[Any] | None:
        """Return a slice (H, W) or (H, W, 3) in one of `info.planes`, as shown; None if it does not exist."""
        info = self.info.planes[plane]
        across, down, right = info.axes
        values = self.stack.stack.values
        if not 0 <= number < values.shape[across]:
            return None
        picture: NDArray[Any] = values.take(number, across)
        picture = picture if down < right else picture.swapaxes(0, 1)
        picture = picture[tuple(slice(None, None, -1 if flip else 1) for flip in info.flipped)]
        shown: NDArray[Any] = picture if self.info.has_colours else picture[..., 0]
        return shown


class ScanCollection:
    """Scans by id, read one at a time. The least recently used scan is dropped if there are too many in memory.

    Args:
        preprocessing: preprocessing of the model, which determines plane and channels.
        max_scans: maximum number of scans in memory.
        max_bytes: maximum size of voxels in memory, and of an uploaded scan, in bytes.
        strict_spacing: reject scans whose pixel spacing, slice distance or slice thickness is outside the range of
            the training images.
        strict_intensity: reject scans whose values do not match the window of the model.
    """

    def __init__(
        self,
        preprocessing: Preprocessing,
        *,
        max_scans: int,
        max_bytes: int,
        strict_spacing: bool = False,
        strict_intensity: bool = False,
    ) -> None:
        self.preprocessing, self.max_scans, self.max_bytes = preprocessing, max_scans, max_bytes
        self.strict_spacing, self.strict_intensity = strict_spacing, strict_intensity
        self.dataset: Dataset | None = None
        self._splits: dict[str, str] = {}  # by patient
        self._files: dict[str, ScanFile] = {}
        self._open: OrderedDict[str, OpenScan] = OrderedDict()
        self._lock, self._reading = Lock(), Lock()

    def add(self, path: Path) -> list[str]:
        """Add a scan, a folder of scans or a prepared dataset. Return a note for each skipped folder.

        Raises:
            DataError: the path is not one of these, or is a second dataset.
        """
        if (path / "dataset.json").is_file():
            if self.dataset is not None:
                raise DataError(
                    f"{path} is a second dataset besides {self.dataset.path}; open one dataset at a time"
                )
            self.dataset = Dataset.open(path)
            splits = self.dataset.splits.items()
            self._splits = {patient: split for split, members in splits for patient in members}
            return []
        scans, notes = find_scans([path])
        for scan in scans:
            self._files[f"file-{_short_hash(str(scan.path.absolute()).encode())}"] = scan
        return notes

    def listed(self) -> list[ListedScan]:
        """Return all scans, starting with those given at the start. Test cases come before other cases."""
        with self._lock:
            dropped = [scan for scan_id, scan in self._open.items() if scan_id.startswith("drop-")]
        return [
            *(ListedScan(id=scan_id, name=scan.name, split=None) for scan_id, scan in self._files.items()),
            *(self._listed_cases(self.dataset) if self.dataset else ()),
            ListedScan(id=EXAMPLE, name=EXAMPLE_NAME, split=None),
            *(ListedScan(id=scan.id, name=scan.name, split=None) for scan in dropped),
        ]

    def _listed_cases(self, dataset: Dataset) -> Iterator[ListedScan]:
        names = [*SPLITS, *sorted({*dataset.splits} - {*SPLITS}), None]
        splits = [self._splits.get(case["patient"]) for case in dataset.cases]
        rows = sorted(range(dataset.num_cases), key=lambda row: names.index(splits[row]))
        for row in rows[:MAX_CASES]:
            yield ListedScan(id=f"case-{row}", name=dataset.cases[row]["case"], split=splits[row])

    def holds(self, scan: OpenScan) -> bool:
        """Return whether a scan is still in memory."""
        with self._lock:
            return self._open.get(scan.id) is scan

    def get(self, scan_id: str) -> OpenScan:
        """Return a scan, reading it if necessary.

        Raises:
            DataError: the id is unknown, or the scan cannot be read.
        """
        found = self._in_memory(scan_id)
        if found is not None:
            return found
        with self._reading:
            return self._in_memory(scan_id) or self._keep(self._read(scan_id))

    def drop(self, uploads: Sequence[Upload]) -> OpenScan:
        """Add an uploaded scan: a NIfTI file, a picture, or the files of a DICOM series.

        Args:
            uploads: the only files in their folder. Files of a series are kept with the scan, for DICOM SEG
                exports.

        Raises:
            DataError: the files are not a scan, are several scans, or exceed the memory limit.
        """
        if not uploads:
            raise DataError("no files were dropped; drop a NIfTI file, a picture or the files of one DICOM series")
        folder = uploads[0].path.parent
        title = uploads[0].name if len(uploads) == 1 else f"{len(uploads)} DICOM files"
        try:
            with self._reading:
                check_affordable(uploads, max_bytes=self.max_bytes)
                found, _ = find_scans([folder])
                if len(found) > 1:
                    raise DataError(f"the files contain {len(found)} scans; drop one scan only")
                scan = self._read_file(f"drop-{_hash_of(uploads)}", replace(found[0], name=title))
                warnings = tuple(renamed(warning, uploads) for warning in scan.warnings)
                return self._keep(replace(scan, warnings=warnings))
        except DataError as error:
            raise DataError(renamed(str(error), uploads)) from None

    def _in_memory(self, scan_id: str) -> OpenScan | None:
        with self._lock:
            if scan_id in self._open:
                self._open.move_to_end(scan_id)
            return self._open.get(scan_id)

    def _keep(self, scan: OpenScan) -> OpenScan:
        with self._lock:
            self._open[scan.id] = scan
            self._open.move_to_end(scan.id)
            while len(self._open) > 1 and (len(self._open) > self.max_scans or self._bytes() > self.max_bytes):
                self._open.popitem(last=False)
        return scan

    def _bytes(self) -> int:
        return sum(scan.volume.values.nbytes for scan in self._open.values())

    def _read(self, scan_id: str) -> OpenScan:
        kind, _, number = scan_id.partition("-")
        if scan_id in self._files:
            return self._read_file(scan_id, self._files[scan_id])
        if scan_id == EXAMPLE:
            volume, start = example_volume(self.preprocessing)
            stack = PreparedStack.of(volume, self.preprocessing, name=EXAMPLE)
            return OpenScan(scan_id, EXAMPLE_NAME, stack, start=start)
        if self.dataset and kind == "case" and number in map(str, range(self.dataset.num_cases)):
            return self._read_case(self.dataset, int(number))
        raise DataError("this scan is no longer open; open it again, or drop it on the page again")

    @property
    def _plane(self) -> Plane | None:
        plane = self.preprocessing.plane
        return None if plane == "auto" else plane

    def _read_file(self, scan_id: str, file: ScanFile) -> OpenScan:
        scan, stack = open_scan(
            file, self.preprocessing, resample=not self.strict_spacing, strict_intensity=self.strict_intensity
        )
        return OpenScan(scan_id, file.name, stack, scan.series, scan.warnings)

    def _read_case(self, dataset: Dataset, row: int) -> OpenScan:
        """Return a case of the dataset as a scan of one slice, or a volume as a scan of its slices."""
        own = dataset.spacing_mm(row)
        vertical, horizontal = own or self.preprocessing.network_spacing_mm((1.0, 1.0))
        towards = PLANES[self._plane or "axial"]
        between = dataset.voxel_spacing_mm(row) if dataset.dims == 3 else None
        distance = between[0] if between else max(vertical, horizontal)  # unknown; at least the pixel spacing
        is_known = (between if dataset.dims == 3 else own) is not None
        affine = affine_towards(towards[::-1]) @ np.diag([horizontal, vertical, distance, 1])
        pixels = np.array(dataset.stored_image(row))  # (C, *size)
        volume = Volume(
            (pixels if dataset.dims == 3 else pixels[:, None]).T, affine
        )  # columns, rows, slices, channels
        name = dataset.cases[row]["case"]
        stack = PreparedStack.of(
            volume,
            self.preprocessing,
            name=name,
            thickness_mm=dataset.thickness_mm(row),
            is_prepared=True,
            resample=not (self.strict_spacing and is_known),
            has_spacing=is_known,
        )
        annotations = dataset.annotations(row).reshape(-1, *stack.stack.grid)
        looked = [who for who, valid in zip(dataset.annotator_names, dataset.valid[row], strict=True) if valid]
        return OpenScan(
            f"case-{row}",
            name,
            stack,
            start=_start(annotations) if dataset.dims == 3 else None,
            annotations=annotations,
            annotators=tuple(looked),
            split=self._splits.get(dataset.cases[row]["patient"]),
        )


def planes_of(plane: Plane) -> tuple[PlaneInfo, PlaneInfo, PlaneInfo]:
    """Return how slices in a plane are shown, and cuts through them in the two other planes."""
    own = PLANES[plane]
    opposite = dict(zip("LRPAIS", "RLAPSI", strict=True))

    def described(name: Plane) -> PlaneInfo:
        directions = PLANES[name]
        axes = [own.index(code if code in own else opposite[code]) for code in directions]
        down, right = (code not in own for code in directions[1:])
        return PlaneInfo(name=name, axes=(axes[0], axes[1], axes[2]), flipped=(down, right))

    first, second = (other for other in PLANES if other != plane)
    return described(plane), described(first), described(second)


def _start(annotations: NDArray[np.uint8]) -> tuple[int, int, int] | None:
    """Return the voxel in the middle of what the annotators (A, N, H, W) drew, or None if they drew nothing."""
    drawn = np.argwhere((annotations > 0).any(0))
    if not len(drawn):
        return None
    nearest = drawn[np.abs(drawn - drawn.mean(0)).sum(1).argmin()]
    number, row, column = (int(place) for place in nearest)
    return number, row, column


def _hash_of(uploads: Sequence[Upload]) -> str:
    digest = hashlib.sha256()
    for upload in uploads:
        with upload.path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:12]


def _short_hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


def _percentiles(values: NDArray[np.floating[Any]]) -> tuple[float, float]:
    low, high = np.percentile(values, [0.5, 99.5])
    return float(low), float(max(high, low + 1e-6))
