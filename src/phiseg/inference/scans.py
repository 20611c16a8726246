"""What people point at: NIfTI files, folders of a DICOM series, PNGs, and folders of any of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from pydicom.misc import is_dicom

from phiseg.core.errors import DataError
from phiseg.imaging.nifti import SUFFIXES, read_nifti
from phiseg.imaging.series import DicomSeries, read_series
from phiseg.imaging.volume import PLANES, Plane, Volume, affine_towards


@dataclass(frozen=True)
class ScanFile:
    """A scan that was found, not yet read."""

    name: str
    """What its results are called."""
    path: Path
    kind: Literal["nifti", "dicom", "png"]


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


def find_scans(inputs: Sequence[Path]) -> list[ScanFile]:
    """Find the scans that the inputs are or hold, sorted by name.

    A folder with DICOM files is a series, and any other folder is searched. Scans of one name get their folders'
    names in front.

    Raises:
        DataError: an input does not exist, is of another kind, or holds no scan.
    """
    found: list[ScanFile] = []
    for path in inputs:
        if not path.exists():
            raise DataError(f"{path} does not exist; give a NIfTI file, a PNG, a DICOM folder or a folder of those")
        scans = list(_scans_in(path))
        if not scans:
            what = "holds no scan" if path.is_dir() else "is no scan"
            raise DataError(f"{path} {what}; give a NIfTI file, a PNG, a DICOM folder or a folder of those")
        found += scans
    unique = {scan.path.resolve(): scan for scan in found}
    return sorted(_named_apart(list(unique.values())), key=lambda scan: scan.name)


def read_scan(scan: ScanFile, *, channels: int, plane: Plane | None) -> Scan:
    """Read a scan.

    Args:
        scan: which.
        channels: how many a colour picture should have: 1 makes it grey.
        plane: the plane that a picture without a place is taken to lie in; axial if not given.

    Raises:
        DataError: it cannot be read, with the reason.
    """
    if scan.kind == "nifti":
        return Scan(read_nifti(scan.path, channels=True))
    if scan.kind == "dicom":
        series = read_series(scan.path)
        volume = Volume(series.volume.values[..., None], series.volume.affine)
        return Scan(volume, series, warnings=series.warnings)
    pixels = _read_png(scan.path, channels)  # (H, W, C)
    towards = PLANES[plane or "axial"]
    values = pixels.swapaxes(0, 1)[:, :, None]  # columns, rows, one slice
    warning = f"{scan.path} says nothing of its pixels' size: they count as 1 mm"
    return Scan(Volume(values, affine_towards(towards[::-1])), has_spacing=False, warnings=(warning,))


def _scans_in(path: Path) -> Iterator[ScanFile]:
    name = path.name.lower()
    if path.is_dir():
        entries = sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
        if any(_looks_like_dicom(entry) for entry in entries):
            yield ScanFile(path.absolute().name, path, "dicom")
        else:
            for entry in entries:
                yield from _scans_in(entry)
    elif name.endswith(SUFFIXES):
        yield ScanFile(path.name[: -len(".nii.gz" if name.endswith(".gz") else ".nii")], path, "nifti")
    elif name.endswith(".png"):
        yield ScanFile(path.stem, path, "png")


def _looks_like_dicom(path: Path) -> bool:
    try:
        return path.is_file() and (path.suffix.lower() in {".dcm", ".ima"} or is_dicom(path))
    except OSError:
        return False


def _named_apart(scans: list[ScanFile]) -> list[ScanFile]:
    """Put folders' names in front of names that several scans have, until all differ."""
    depth = 1
    names = [scan.name for scan in scans]
    while len(set(names)) < len(names):
        names = [
            "-".join([*scan.path.resolve().parent.parts[-depth:], scan.name]) if names.count(name) > 1 else name
            for scan, name in zip(scans, names, strict=True)
        ]
        depth += 1
    return [ScanFile(name.replace("/", ""), scan.path, scan.kind) for scan, name in zip(scans, names, strict=True)]


def _read_png(path: Path, channels: int) -> NDArray[Any]:
    try:
        with Image.open(path, formats=["PNG"]) as image:
            coloured = image.mode in ("RGB", "RGBA", "P", "LA", "PA")
            pixels = np.asarray(image.convert("L" if channels == 1 else "RGB") if coloured else image)
    except (OSError, UnidentifiedImageError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{path} cannot be read as PNG ({error}); save it again") from None
    return pixels.reshape(*pixels.shape[:2], -1)
