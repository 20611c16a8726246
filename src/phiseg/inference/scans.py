"""Find and read scans: NIfTI, MetaImage, NRRD and pictures, folders with a DICOM series, and folders of these."""

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import nibabel
import numpy as np
from numpy.typing import NDArray
from pydicom.misc import is_dicom

from phiseg.core.errors import DataError
from phiseg.core.formats import is_from_phiseg
from phiseg.imaging import itk_files, nifti_files, pictures
from phiseg.imaging.dicom import Series, read_folder
from phiseg.imaging.series import DicomSeries, read_series
from phiseg.imaging.volume import PLANES, Plane, Volume, affine_towards
from phiseg.inference.input_checks import INPUTS, check_inputs
from phiseg.inference.label_files import find_label_files

SUMMARY = "summary.json"
"""The file that identifies a folder with results."""
PICTURE = "picture.png"
"""Figure in the folder of a predicted case."""
NO_SCAN = {"DOC", "KO", "PR", "REG", "RTDOSE", "RTPLAN", "RTSTRUCT", "SEG", "SR"}
"""Modalities of DICOM files that are not scans: segmentations, reports and the like."""


@dataclass(frozen=True)
class ScanFile:
    """A scan on disk."""

    name: str
    """Name of the results."""
    path: Path
    kind: Literal["nifti", "itk", "dicom", "picture"]
    """Format; `itk` is MetaImage or NRRD, `picture` is PNG, JPEG, TIFF or BMP."""
    series_uid: str | None = None
    """Series of a DICOM folder; None if there is only one."""
    identifiers: frozenset[str] = frozenset()
    """Series UID and patient ID of a DICOM series."""
    is_named: bool = False
    """Whether the user chose the name."""

    @property
    def names(self) -> frozenset[str]:
        """Names of the scan in a table of points: its name and, for a DICOM series, its folder and identifiers."""
        return frozenset({self.name, self.path.name} if self.kind == "dicom" else {self.name}) | self.identifiers

    def is_called(self, text: str) -> bool:
        """Return whether a text is the path, a name, the series UID or the patient ID of the scan."""
        called = text in {*self.names, self.path.name}
        return called or _absolute(Path(text)) == _absolute(self.path)

    def is_input_of(self, made_with: Mapping[str, Any]) -> bool:
        """Return whether a finished case was predicted from this scan; a scan that cannot be read counts as equal.

        Args:
            made_with: what the case depends on, from its summary.
        """
        if made_with.get("input") != self.path.name:
            return False
        try:
            return bool(made_with.get("content") == self.content_hash)
        except DataError:
            return True

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of the file, or of the files in the folder, to distinguish scans of the same name.

        Raises:
            DataError: a file cannot be read.
        """
        digest = hashlib.sha256()
        try:
            for file in self._files():
                digest.update(file.read_bytes())
        except OSError as error:
            reason = f"{error.filename or self.path} cannot be read ({error.strerror or error})"
            raise DataError(f"{reason}; check the file and its permissions") from None
        return digest.hexdigest()

    def _files(self) -> list[Path]:
        if self.kind == "dicom":
            return [file for file in sorted(self.path.iterdir()) if _looks_like_dicom(file)]
        return itk_files.files_of(self.path) if self.kind == "itk" else [self.path]


@dataclass(frozen=True)
class Scan:
    """A scan in memory."""

    volume: Volume
    """Voxels (I, J, K, C)."""
    series: DicomSeries | None = None
    """The DICOM series, if the scan is one."""
    has_spacing: bool = True
    """False if the file does not state the pixel size."""
    warnings: tuple[str, ...] = ()

    @property
    def modality(self) -> str | None:
        """DICOM modality; None if unknown."""
        return self.series.modality if self.series else None

    @property
    def thickness_mm(self) -> float | None:
        """Slice thickness in the DICOM headers; None if unknown."""
        return self.series.thickness_mm if self.series else None


def find_scans(
    inputs: Sequence[Path], *, results: Path | None = None, series: str | None = None
) -> tuple[list[ScanFile], list[str]]:
    """Find the scans in files and folders.

    The DICOM files of a folder are one series, named after the patient ID or, without one, after the folder. Other
    files in the folder and its subfolders are found too, except results of phiseg and label files of annotators. A
    label file is found if it is itself an input. A scan that is reached several times counts once. Several series
    of a patient are distinguished by their folders. Other scans of the same name are prefixed with the names of
    their folders, and those in the same folder keep their suffixes. Several files named image have only the names
    of their folders.

    Args:
        inputs: files and folders.
        results: folder for the results, which must not be an input.
        series: UID of the series in DICOM folders with several.

    Returns:
        The scans sorted by name, and notes on DICOM folders without a scan and on skipped label files.

    Raises:
        DataError: an input does not exist, is not a scan, or contains no scan.
    """
    check_inputs(inputs, results=results)
    found: dict[Path, ScanFile] = {}
    in_folders: list[ScanFile] = []
    notes: list[str] = []
    for path in inputs:
        passed_over: list[str] = []
        scans = list(_scans_in(path, set(), passed_over, series))
        if not scans and not passed_over:
            raise DataError(f"{path} {'contains no' if path.is_dir() else 'is not a'} scan; {INPUTS}")
        notes += passed_over
        if path.is_dir():
            in_folders += scans
        else:
            found |= {scan.path.resolve(): scan for scan in scans}
    labels = find_label_files({_absolute(scan.path) for scan in in_folders if scan.kind != "dicom"})
    labels -= {_absolute(scan.path) for scan in found.values()}
    if labels:
        folders = [path for path in inputs if any(label.is_relative_to(_absolute(path)) for label in labels)]
        where = folders[0] if len(folders) == 1 else f"{len(folders)} folders"
        notes.append(f"skipping {len(labels)} label file{'s' * (len(labels) > 1)} of annotators in {where}")
    for scan in in_folders:
        if _absolute(scan.path) not in labels:
            found.setdefault(scan.path.resolve(), scan)
    if not found:
        raise DataError(f"no scans found: {notes[0]}; {INPUTS}")
    scans = _name_apart(_name_after_folders([replace(scan, series_uid=series) for scan in found.values()]))
    return sorted(scans, key=lambda scan: scan.name), list(dict.fromkeys(notes))


def read_scan(
    scan: ScanFile, *, channels: int | None, plane: Plane | None, spacing_mm: tuple[float, float] | None = None
) -> Scan:
    """Read a scan.

    Args:
        scan: scan to read.
        channels: number of channels that a picture must have: 1 for grey values, 3 for colours; None for any.
        plane: assumed plane of an image without geometry; axial by default.
        spacing_mm: assumed pixel spacing (vertical, horizontal) of such an image; 1 by default.

    Raises:
        DataError: the scan cannot be read.
    """
    if scan.kind == "nifti":
        return Scan(nifti_files.read_nifti(scan.path, channels=True), warnings=_nifti_warnings(scan.path))
    if scan.kind == "itk":
        volume, has_spacing = itk_files.read_itk(scan.path, channels=True), itk_files.stated_spacing(scan.path)
        return Scan(volume, has_spacing=has_spacing, warnings=_itk_warnings(scan.path, has_spacing=has_spacing))
    if scan.kind == "dicom":
        series = read_series(scan.path, series_uid=scan.series_uid)
        volume = Volume(series.volume.values[..., None], series.volume.affine)
        return Scan(volume, series, warnings=series.warnings)
    pixels = _read_picture(scan.path, channels)  # (H, W, C)
    towards = PLANES[plane or "axial"]
    values = pixels.swapaxes(0, 1)[:, :, None]  # columns, rows, one slice
    vertical, horizontal = spacing_mm or (1.0, 1.0)
    affine = affine_towards(towards[::-1]) @ np.diag([horizontal, vertical, 1, 1])
    warning = (
        f"{scan.path} does not state its pixel size; measurements are in pixels, and output images assume "
        f"{vertical:g} x {horizontal:g} mm"
    )
    return Scan(Volume(values, affine), has_spacing=False, warnings=(warning,))


def _scans_in(path: Path, visited: set[Path], notes: list[str], series: str | None) -> Iterator[ScanFile]:
    name = path.name.lower()
    if path.is_dir():
        if path.resolve() in visited or _is_ours(path):  # visited: a link to a parent folder
            return
        visited.add(path.resolve())
        entries = sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
        first = _series_of(entries, series)
        if first is not None and first.modality in NO_SCAN:
            notes.append(f"skipping {path}: its DICOM files are not slices of a scan ({first.modality})")
        elif first is not None:
            identifiers = frozenset({first.uid, first.patient} - {""})
            yield ScanFile(file_name(first.patient) or _absolute(path).name, path, "dicom", identifiers=identifiers)
        for entry in entries:
            yield from _scans_in(entry, visited, notes, series)
    elif name.endswith(nifti_files.SUFFIXES):
        yield ScanFile(path.name[: name.rindex(".nii")] or path.name, path, "nifti")
    elif name.endswith(itk_files.SUFFIXES):
        yield ScanFile(path.stem, path, "itk")
    elif name.endswith(pictures.SUFFIXES):
        yield ScanFile(path.stem, path, "picture")


def _is_ours(folder: Path) -> bool:
    """Return whether a folder is a case of a prediction or an evaluation."""
    try:
        summary = json.loads((folder / SUMMARY).read_bytes())
    except (OSError, ValueError):
        return False
    return is_from_phiseg(summary)


def _series_of(files: Sequence[Path], series_uid: str | None) -> Series | None:
    """Return the series of DICOM files, preferably the one with the UID or, without a UID, any scan.

    None if there are no DICOM files, and a series without a name if none of them is readable.
    """
    found = unreadable = None
    for path in files:
        if not _looks_like_dicom(path):
            continue
        unreadable = Series("", "", "", ())
        for series in read_folder([path]).series:
            if found is None or found.modality in NO_SCAN or series.uid == series_uid:
                found = series
        if found is not None and found.modality not in NO_SCAN and series_uid in (None, found.uid):
            break
    return found or unreadable


def file_name(text: str) -> str:
    """Return a text without characters that file systems reject.

    >>> file_name("A/B 12^C"), file_name("LIDC-IDRI-0003"), file_name("..")
    ('A_B_12_C', 'LIDC-IDRI-0003', '')
    """
    return re.sub(r"[^\w.-]+", "_", text).strip("._-")[:64]


def _looks_like_dicom(path: Path) -> bool:
    """Return whether a file is part of a series. A DICOMDIR only lists files in other folders."""
    try:
        named = path.suffix.lower() in {".dcm", ".ima"}
        return path.is_file() and path.name != "DICOMDIR" and (named or is_dicom(path))
    except OSError:
        return False


def _nifti_warnings(path: Path) -> tuple[str, ...]:
    header: Any = nibabel.load(path).header
    if header["sform_code"] or header["qform_code"]:
        return ()
    return (f"{path} does not state its orientation; assuming the axes left, anterior and superior",)


def _itk_warnings(path: Path, *, has_spacing: bool) -> tuple[str, ...]:
    warnings = []
    if not has_spacing:
        warnings.append(f"{path} does not state its voxel size; measurements are in pixels, and 1 mm is assumed")
    if not itk_files.stated_orientation(path):
        warnings.append(f"{path} does not state its orientation; assuming the axes left, posterior and superior")
    return tuple(warnings)


def _name_after_folders(scans: list[ScanFile]) -> list[ScanFile]:
    """Add the names of their folders to DICOM series of the same patient."""
    number = Counter(scan.name for scan in scans if scan.kind == "dicom")
    return [
        replace(scan, name=f"{scan.name}-{_absolute(scan.path).name}")
        if scan.kind == "dicom" and number[scan.name] > 1
        else scan
        for scan in scans
    ]


def _name_apart(scans: list[ScanFile]) -> list[ScanFile]:
    """Prefix the names of folders to equal names of scans until all differ. Case is ignored, as by some disks."""
    folders = [_absolute(scan.path).parent for scan in scans]
    shared = Counter(zip(folders, (scan.name.casefold() for scan in scans), strict=True))
    own = [
        scan.path.name if shared[folder, scan.name.casefold()] > 1 else scan.name
        for scan, folder in zip(scans, folders, strict=True)
    ]
    names, depth = own, 0
    while len(count := Counter(name.casefold() for name in names)) < len(names):
        depth += 1
        if depth == max(len(folder.parts) for folder in folders):
            name, _ = count.most_common(1)[0]
            same = (scan.path for scan, taken in zip(scans, names, strict=True) if taken.casefold() == name)
            first, second, *_ = same
            raise DataError(
                f"{first} and {second} would have the same name {name}, ignoring case; rename one of them"
            )
        names = [
            _with_folders(name, folder.parts[1:][-depth:]) if count[taken.casefold()] > 1 else taken
            for folder, name, taken in zip(folders, own, names, strict=True)
        ]
    return [replace(scan, name=name) for scan, name in zip(scans, names, strict=True)]


def _with_folders(name: str, folders: Sequence[str]) -> str:
    """Return a name with the names of folders in front; they replace the name `image`.

    >>> _with_folders("ct", ["site", "case01"]), _with_folders("image", ["case01"])
    ('site-case01-ct', 'case01')
    """
    return "-".join(folders if folders and name == "image" else [*folders, name])


def _absolute(path: Path) -> Path:
    """Return an absolute path without dots, without resolving links."""
    return Path(os.path.normpath(path.absolute()))


def _read_picture(path: Path, channels: int | None) -> NDArray[Any]:
    """Read a picture (H, W, C). Colours that are all grey count as grey values.

    Raises:
        DataError: it cannot be read, or has colours and the model takes none, or the other way round.
    """
    pixels = np.moveaxis(pictures.read_picture(path), 0, 2)
    if pixels.shape[2] == 3 and channels != 3 and (pixels == pixels[..., :1]).all():
        pixels = pixels[..., :1]
    if pixels.shape[2] == 3 and channels == 1:
        raise DataError(f"{path} has colours, but the model takes grey images; convert the picture to grey values")
    if pixels.shape[2] == 1 and channels == 3:
        raise DataError(f"{path} has grey values, but the model takes RGB images; use a picture with colours")
    return pixels
