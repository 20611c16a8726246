"""LIDC crops as folders of PNG files, in two layouts.

- Kohl's crops: `{train,val,test}/images/PATIENT/NAME.png` with `{train,val,test}/gt/PATIENT/NAME_l0.png` and
  further readers, or the same without the splits. A reader without a file is marked as missing.
- LIDC-IDRI-slices: `PATIENT/nodule-N/images/slice-M.png` with `PATIENT/nodule-N/mask-0/slice-M.png` and further
  readers. Every slice has a file for every reader, so a missing file is an error.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from phiseg.core.errors import DataError
from phiseg.data.prepare.fixed_size_source import Item, print_note
from phiseg.data.prepare.skipped import SkippedCases
from phiseg.data.splits import SPLIT_NAMES
from phiseg.data.writer import Case
from phiseg.imaging.png import read_png

LAYOUTS = "images/PATIENT/NAME.png with gt/, or PATIENT/nodule-0/images/slice-0.png with mask-0/"


class _Crop(NamedTuple):
    split: str | None
    patient: str
    case: str
    image: Path
    masks: dict[int, Path]
    """Mask files by reader."""
    columns: Mapping[str, int] = {}


class PngFolder:
    """A folder in either layout. Crops with an unreadable file are reported and skipped."""

    spacing_mm = None

    def __init__(self, path: Path) -> None:
        self.path = path
        self.kind, self._crops = "Kohl's PNGs", list(_find_crops(path))
        if not self._crops:
            self.kind, self._crops = "LIDC-IDRI-slices", list(_find_nodules(path))
            if self._crops:
                print_note(
                    f"{path}: these 8-bit images were scaled per slice and cannot be converted to Hounsfield "
                    "units; for Hounsfield units use 'phiseg prepare lidc'"
                )
        if not self._crops:
            raise DataError(f"{path} has no PNG files in a known layout; give a folder with {LAYOUTS}")
        self._num_readers = 1 + max((reader for crop in self._crops for reader in crop.masks), default=0)
        self._broken: set[Path] = set()
        self.skipped = SkippedCases()

    def __len__(self) -> int:
        return len(self._crops)

    def __iter__(self) -> Iterator[Item]:
        for crop in self._crops:
            if crop.image in self._broken:
                continue
            try:
                yield Item(self._case(crop), crop.split)
            except DataError as error:
                self._broken.add(crop.image)
                self.skipped.note(str(error))

    def tell_counts(self) -> None:
        """Print the numbers of skipped crops and of missing masks to stderr."""
        if self._broken:
            print_note(f"{self.path}: skipped {len(self._broken)} of {len(self)} crops with an unreadable file")
        missing = sum(self._num_readers - len(crop.masks) for crop in self._crops)
        if missing:
            print_note(f"{self.path}: {missing} masks have no file and are marked as missing")

    def _case(self, crop: _Crop) -> Case:
        image = read_png(crop.image)
        labels = np.zeros((self._num_readers, *image.shape), dtype=np.uint8)
        for reader, path in crop.masks.items():
            mask = read_png(path)
            if mask.shape != image.shape:
                raise DataError(
                    f"{path} has shape {mask.shape}, but its image has {image.shape}; download it again"
                )
            labels[reader] = mask > 0
        valid = np.isin(np.arange(self._num_readers), list(crop.masks))
        return Case(crop.case, crop.patient, image[None], labels, valid, crop.columns)


def _find_crops(root: Path) -> Iterator[_Crop]:
    """Find the crops of all splits, including archives that were unpacked into a separate folder per split."""
    parts = (
        [(None, root)]
        if (root / "images").is_dir()
        else [
            (split, folder)
            for split in SPLIT_NAMES
            for folder in (root / split, root / f"lidc_crops_{split}" / split)
            if (folder / "images").is_dir()
        ]
    )
    for split, folder in parts:
        for patient in sorted(path for path in (folder / "images").iterdir() if path.is_dir()):
            masks: dict[str, dict[int, Path]] = {}
            for path in sorted((folder / "gt" / patient.name).glob("*.png")):
                if match := re.fullmatch(r"(.+)_l(\d)", path.stem):
                    masks.setdefault(match[1], {})[int(match[2])] = path
            for image in sorted(patient.glob("*.png")):
                yield _Crop(split, patient.name, f"{patient.name}/{image.stem}", image, masks.get(image.stem, {}))


def _find_nodules(root: Path) -> Iterator[_Crop]:
    """Find the slices of LIDC-IDRI-slices in `root`, or in a folder of that name in `root`.

    Raises:
        DataError: the image of a slice or the mask of a reader is missing.
    """
    if (root / "LIDC-IDRI-slices").is_dir():
        root = root / "LIDC-IDRI-slices"
    nodules = [
        (patient.name, number, nodule)
        for patient in sorted(path for path in root.iterdir() if path.is_dir())
        for number, nodule in _numbered(patient, r"nodule-(\d+)")
    ]
    last_reader = max(
        (reader for *_, nodule in nodules for reader, _ in _numbered(nodule, r"mask-(\d)")), default=0
    )
    folders = ("images", *(f"mask-{reader}" for reader in range(last_reader + 1)))
    missing = []
    for patient, number, nodule in nodules:
        slices = {folder: dict(_numbered(nodule / folder, r"slice-(\d+)\.png")) for folder in folders}
        for level in sorted(set().union(*slices.values())):
            missing += [nodule / folder / f"slice-{level}.png" for folder in folders if level not in slices[folder]]
            if missing:
                continue
            image, *masks = (slices[folder][level] for folder in folders)
            case = f"{patient}-nodule-{number}-slice-{level}"
            yield _Crop(None, patient, case, image, dict(enumerate(masks)), {"nodule": number, "slice": level})
    if missing:
        raise DataError(
            f"{missing[0]} does not exist ({len(missing)} files are missing): every slice must have an image and "
            f"the masks of readers 0 to {last_reader}; download the folder again"
        )


def _numbered(folder: Path, pattern: str) -> list[tuple[int, Path]]:
    """Return the members of a folder whose names match, with their numbers, in ascending order."""
    if not folder.is_dir():
        return []
    matches = ((re.fullmatch(pattern, path.name), path) for path in folder.iterdir())
    return sorted((int(match[1]), path) for match, path in matches if match)
