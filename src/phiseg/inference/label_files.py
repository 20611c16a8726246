"""Recognise label files of annotators in folders that `phiseg prepare` reads, so that they are not predicted.

<case>/image.nii.gz              <case>/rater-<name>.nii.gz
imagesTr/<case>_0000.nii.gz      labelsTr_<name>/<case>.nii.gz
images/<case>.jpg                <annotator>/<case>.png
"""

import re
from pathlib import Path

_SUFFIX = re.compile(r"(\.nii)?\.[^.]+$")


def is_label_file(path: Path) -> bool:
    """Return whether a file is a label of an image in one of the layouts."""
    folder = path.parent
    if path.name.startswith("rater-"):
        return any((folder / f"image{suffix}").is_file() for suffix in (".nii.gz", ".nii"))
    if folder.name.startswith("labels") and (folder.parent / f"images{folder.name[6:8]}").is_dir():
        return True
    images = folder.parent / "images"
    return (
        folder.name != "images" and images.is_dir() and _stem(path) in {_stem(entry) for entry in images.iterdir()}
    )


def _stem(path: Path) -> str:
    return _SUFFIX.sub("", path.name)
