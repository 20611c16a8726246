"""The two folder layouts of `phiseg prepare nifti`.

Case folders:

    SRC/<case>/image.nii.gz            a fourth dimension holds channels
    SRC/<case>/rater-<name>.nii.gz     one file per annotator

The raw data layout of nnU-Net, with one label folder per annotator:

    SRC/imagesTr/<case>_0000.nii.gz    _0001 and so on are further channels
    SRC/labelsTr_<name>/<case>.nii.gz  or labelsTr for a single annotator
    SRC/dataset.json                   "labels" holds the class names

Files may be .nii or .nii.gz. Each case is one patient, unless SRC/patients.csv (`case,patient`) maps cases to
patients.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from phiseg.core.errors import DataError
from phiseg.data.prepare.found_files import AnnotatedImage, FoundFiles, read_patients
from phiseg.data.prepare.patterns_search import layout_error
from phiseg.data.prepare.skipped import SkippedCases
from phiseg.imaging.nifti_files import SUFFIXES

LAYOUTS = (
    "<case>/image.nii.gz with <case>/rater-<name>.nii.gz, or imagesTr/<case>_0000.nii.gz with "
    "labelsTr_<name>/<case>.nii.gz"
)

_NIFTI = re.compile(r"(?P<stem>.+?)\.nii(\.gz)?")
_CHANNEL = re.compile(r"(?P<case>.+)_(?P<channel>\d{4})")


@dataclass
class _Files:
    """Files of one case, possibly incomplete."""

    images: list[Path]
    labels: list[tuple[str, Path]]
    others: list[Path] = field(default_factory=list)


def find_annotated_scans(folder: Path, skipped: SkippedCases) -> FoundFiles:
    """List the cases of a folder; incomplete cases are skipped.

    Raises:
        ConfigError: the folder has neither layout.
        DataError: the folder does not exist or is a single case, or its patients.csv is invalid.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; give a folder with case folders or with imagesTr")
    nnunet = (folder / "imagesTr").is_dir()
    found = _nnunet(folder) if nnunet else _case_folders(folder)
    if not found and any(stem == "image" for stem, _ in _nifti_files(folder)):
        raise DataError(f"{folder} is a single case; give the folder that contains the cases")
    if not any(files.images and files.labels for files in found.values()):
        raise layout_error(folder, LAYOUTS, SUFFIXES)
    patients = read_patients(folder / "patients.csv", set(found))
    scans = []
    for case, files in sorted(found.items()):
        for path in files.others:
            skipped.note(f"{path} is not named image or rater-<name>; rename it if it is one of them")
        with skipped.unless_good(case):
            _check(files, where=folder / ("imagesTr" if nnunet else case), channel_files=nnunet)
            scans.append(AnnotatedImage(case, patients.get(case, case), tuple(files.images), dict(files.labels)))
    return FoundFiles(
        layout="nnU-Net" if nnunet else "case folders",
        cases=scans,
        num_cases=len(found),
        annotators=sorted({annotator for scan in scans for annotator in scan.labels}),
    )


def read_class_names(folder: Path) -> dict[int, str] | None:
    """Read the class names in dataset.json, as {"name": 1} or in the older form {"1": "name"}.

    Raises:
        DataError: dataset.json has "labels" that are not of these forms.
    """
    path = folder / "dataset.json"
    if not path.exists():
        return None
    try:
        labels = json.loads(path.read_text(encoding="utf-8")).get("labels", {})
        newer = all(isinstance(value, int) for value in labels.values())
        pairs = [(value, name) if newer else (name, value) for name, value in labels.items()]
        names = {int(value): str(name) for value, name in pairs}
        if len(names) < len(pairs):
            raise ValueError  # two names for one label
        return names or None
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        raise DataError(
            f'{path}: "labels" must be of the form {{"background": 0, "zone": 1}}; fix them or set --classes'
        ) from None


def _case_folders(folder: Path) -> dict[str, _Files]:
    found = {}
    for inner in sorted(path for path in folder.iterdir() if path.is_dir()):
        files = list(_nifti_files(inner))
        images = [path for stem, path in files if stem == "image"]
        labels = [(stem.removeprefix("rater-"), path) for stem, path in files if stem.startswith("rater-")]
        known = {*images, *(path for _, path in labels)}
        if known:
            found[inner.name] = _Files(images, labels, [path for _, path in files if path not in known])
    return found


def _nnunet(folder: Path) -> dict[str, _Files]:
    found: dict[str, _Files] = defaultdict(lambda: _Files([], []))
    for stem, path in _nifti_files(folder / "imagesTr"):
        if match := _CHANNEL.fullmatch(stem):
            found[match["case"]].images.append(path)
    for labels in sorted(path for path in folder.glob("labelsTr*") if path.is_dir()):
        annotator = labels.name.removeprefix("labelsTr").lstrip("_-. ") or labels.name
        for stem, path in _nifti_files(labels):
            found[stem].labels.append((annotator, path))
    return found


def _nifti_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the name without its suffix and the path of each NIfTI file, except hidden files (macOS)."""
    for path in sorted(folder.iterdir()):
        match = _NIFTI.fullmatch(path.name)
        if match and not path.name.startswith("."):
            yield match["stem"], path


def _check(files: _Files, *, where: Path, channel_files: bool) -> None:
    example = "<case>_0000.nii.gz" if channel_files else "image.nii.gz"
    if not files.images:
        raise DataError(f"{files.labels[0][1]} has no image; add {where / example}")
    if not files.labels:
        place = "labelsTr_<name>" if channel_files else "rater-<name>.nii.gz"
        raise DataError(f"{files.images[0]} has no labels; add {place}, or remove the image")
    channels = [path.name.split(".nii")[0][-4:] for path in files.images]
    if channel_files and channels != [f"{number:04d}" for number in range(len(channels))]:
        raise DataError(
            f"{files.images[0]}: the channels are {', '.join(channels)}, but must be 0000, 0001 and so on, once "
            "each; rename the files"
        )
    if not channel_files and len(files.images) > 1:
        raise DataError(f"{files.images[0]} and {files.images[1].name} both exist; remove one of them")
    home: dict[str, Path] = {}
    for annotator, path in files.labels:
        if annotator in home:
            raise DataError(f"{home[annotator]} and {path} are both of annotator '{annotator}'; remove one of them")
        home[annotator] = path
