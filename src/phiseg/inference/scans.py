"""What people point at: NIfTI files, folders of a DICOM series, PNGs, and folders of any of them."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import nibabel
import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from pydicom.misc import is_dicom

from phiseg.core.errors import DataError
from phiseg.imaging.dicom import read_folder
from phiseg.imaging.nifti import SUFFIXES, read_nifti
from phiseg.imaging.series import DicomSeries, read_series
from phiseg.imaging.volume import PLANES, Plane, Volume, affine_towards

SUMMARY = "summary.json"
"""The file that tells a folder with results from any other."""
NO_SCAN = {"DOC", "KO", "PR", "REG", "RTDOSE", "RTPLAN", "RTSTRUCT", "SEG", "SR"}
"""Modalities of DICOM files that are about a scan: segmentations, reports and the like."""


@dataclass(frozen=True)
class ScanFile:
    """A scan that was found, not yet read."""

    name: str
    """What its results are called."""
    path: Path
    kind: Literal["nifti", "dicom", "png"]
    series_uid: str | None = None
    """Which series of a DICOM folder; without it, there may be one only."""

    @cached_property
    def content_hash(self) -> str:
        """The SHA-256 of its file, or of those in its folder: it tells scans of one name apart.

        Raises:
            DataError: a file cannot be read.
        """
        digest = hashlib.sha256()
        try:
            for file in sorted(self.path.iterdir()) if self.kind == "dicom" else [self.path]:
                if _looks_like_dicom(file) or self.kind != "dicom":
                    digest.update(file.read_bytes())
        except OSError as error:
            reason = f"{error.filename or self.path} cannot be read ({error.strerror or error})"
            raise DataError(f"{reason}; check the file and the right to read it") from None
        return digest.hexdigest()


@dataclass(frozen=True)
class Scan:
    """A scan with its voxels."""

    volume: Volume
    """(I, J, K, C)."""
    series: DicomSeries | None = None
    """Where it came from, for a DICOM series."""
    has_spacing: bool = True
    """False where the file does not say how large a pixel is."""
    warnings: tuple[str, ...] = ()


def find_scans(inputs: Sequence[Path], *, results: Path | None = None) -> tuple[list[ScanFile], list[str]]:
    """Find the scans that the inputs are or hold.

    The DICOM files of a folder are one series; whatever else lies in it, and in the folders below, is found too,
    but not what phiseg itself wrote. What is reached in several ways counts once. Scans of one name get their
    folders' names in front, and those of one folder keep their suffixes.

    Args:
        inputs: files and folders.
        results: where results will go, which may not be an input too.

    Returns:
        The scans, sorted by name, and a line for every DICOM folder without one.

    Raises:
        DataError: an input does not exist, is of another kind, or holds no scan.
    """
    cure = "give a NIfTI file, a PNG, a DICOM folder or a folder of those, no results of phiseg"
    if not inputs:
        raise DataError(f"there is no INPUT to predict; {cure}")
    found: dict[Path, ScanFile] = {}
    notes: list[str] = []
    for path in inputs:
        if not path.exists():
            raise DataError(f"{path} does not exist; {cure}")
        if results and path.resolve() == results.resolve():
            raise DataError(f"{path} is the folder for the results, too; give another --out")
        passed_over: list[str] = []
        scans = list(_scans_in(path, set(), passed_over))
        if not scans and not passed_over:
            raise DataError(f"{path} {'holds' if path.is_dir() else 'is'} no scan; {cure}")
        notes += passed_over
        for scan in scans:
            found.setdefault(scan.path.resolve(), scan)
    if not found:
        raise DataError(f"there is no scan to predict: {notes[0]}; {cure}")
    return sorted(_named_apart(list(found.values())), key=lambda scan: scan.name), list(dict.fromkeys(notes))


def read_scan(
    scan: ScanFile, *, channels: int, plane: Plane | None, spacing_mm: tuple[float, float] | None = None
) -> Scan:
    """Read a scan.

    Args:
        scan: which.
        channels: how many a colour picture should have: 1 makes it grey.
        plane: the plane that a picture without a place is taken to lie in; axial if not given.
        spacing_mm: what the pixels (vertical, horizontal) of such a picture are taken to be; 1 if not given.

    Raises:
        DataError: it cannot be read, with the reason.
    """
    if scan.kind == "nifti":
        return Scan(read_nifti(scan.path, channels=True), warnings=_nifti_warnings(scan.path))
    if scan.kind == "dicom":
        series = read_series(scan.path, series_uid=scan.series_uid)
        volume = Volume(series.volume.values[..., None], series.volume.affine)
        return Scan(volume, series, warnings=series.warnings)
    pixels = _read_png(scan.path, channels)  # (H, W, C)
    towards = PLANES[plane or "axial"]
    values = pixels.swapaxes(0, 1)[:, :, None]  # columns, rows, one slice
    vertical, horizontal = spacing_mm or (1.0, 1.0)
    affine = affine_towards(towards[::-1]) @ np.diag([horizontal, vertical, 1, 1])
    warning = f"{scan.path} says nothing of its pixels' size: they count as {vertical:g} x {horizontal:g} mm"
    return Scan(Volume(values, affine), has_spacing=False, warnings=(warning,))


def _scans_in(path: Path, visited: set[Path], notes: list[str]) -> Iterator[ScanFile]:
    name = path.name.lower()
    if path.is_dir():
        if path.resolve() in visited or _is_ours(path):  # visited: by a link that leads upwards
            return
        visited.add(path.resolve())
        entries = sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
        modality = _modality(entries)
        if modality in NO_SCAN:
            notes.append(f"{path} is passed over: its DICOM files are no slices of a scan ({modality})")
        elif modality is not None:
            yield ScanFile(_absolute(path).name, path, "dicom")
        for entry in entries:
            yield from _scans_in(entry, visited, notes)
    elif name.endswith(SUFFIXES):
        yield ScanFile(path.name[: name.rindex(".nii")] or path.name, path, "nifti")
    elif name.endswith(".png"):
        yield ScanFile(path.stem, path, "png")


def _is_ours(folder: Path) -> bool:
    """Tell whether a folder is a case of a prediction, or an evaluation."""
    try:
        summary = json.loads((folder / SUMMARY).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(summary, dict) and str(summary.get("format")).startswith("phiseg-")


def _modality(files: Sequence[Path]) -> str | None:
    """Return the modality of the DICOM files among some, that of a scan if there is any; None without DICOM."""
    modality = None
    for path in files:
        if _looks_like_dicom(path):
            series = read_folder([path]).series
            modality = series[0].modality if series else ""
            if modality not in NO_SCAN:
                break
    return modality


def _looks_like_dicom(path: Path) -> bool:
    """Tell whether a file is part of a series; the DICOMDIR of a disc only lists those in the folders below."""
    try:
        named = path.suffix.lower() in {".dcm", ".ima"}
        return path.is_file() and path.name != "DICOMDIR" and (named or is_dicom(path))
    except OSError:
        return False


def _nifti_warnings(path: Path) -> tuple[str, ...]:
    header: Any = nibabel.load(path).header
    if header["sform_code"] or header["qform_code"]:
        return ()
    return (f"{path} says nothing of its orientation: its axes count as left, anterior and superior",)


def _named_apart(scans: list[ScanFile]) -> list[ScanFile]:
    """Put folders' names in front of names that several scans have, until all differ."""
    folders = [_absolute(scan.path).parent for scan in scans]
    shared = Counter(zip(folders, (scan.name for scan in scans), strict=True))
    own = [
        scan.path.name if shared[folder, scan.name] > 1 else scan.name
        for scan, folder in zip(scans, folders, strict=True)
    ]
    names, depth = own, 0
    while len(set(names)) < len(names):
        depth += 1
        count = Counter(names)
        if depth == max(len(folder.parts) for folder in folders):
            name, _ = count.most_common(1)[0]
            first, second, *_ = (scan.path for scan, taken in zip(scans, names, strict=True) if taken == name)
            raise DataError(f"{first} and {second} would both be called {name}; rename one of them")
        names = [
            "-".join([*folder.parts[1:][-depth:], name]) if count[taken] > 1 else taken
            for folder, name, taken in zip(folders, own, names, strict=True)
        ]
    return [replace(scan, name=name) for scan, name in zip(scans, names, strict=True)]


def _absolute(path: Path) -> Path:
    """Return a path without dots; links keep the names that they were given."""
    return Path(os.path.normpath(path.absolute()))


def _read_png(path: Path, channels: int) -> NDArray[Any]:
    try:
        with Image.open(path, formats=["PNG"]) as image:
            grey = image.mode in ("L", "I", "I;16", "I;16B")
            pixels = np.asarray(image if grey else image.convert("L" if channels == 1 else "RGB"))
    except (OSError, UnidentifiedImageError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{path} cannot be read as PNG ({error}); save it again") from None
    return pixels.reshape(*pixels.shape[:2], -1)
