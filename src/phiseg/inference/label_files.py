"""Recognise label files of annotators in datasets that `phiseg prepare` reads, so that they are not predicted."""

import re
from collections.abc import Collection, Hashable, Iterator
from pathlib import Path
from typing import NamedTuple

_SUFFIX = re.compile(r"(\.nii)?\.[^.]+$")


class _Layout(NamedTuple):
    """Regular expressions for the names of label files and of images, without suffixes.

    A file is a label if there is an image with the same named parts in the same folder. An expression with a slash
    includes the name of the folder, and label and image are then in folders next to each other.
    """

    label: str
    image: str
    anywhere: bool = False
    """Whether label and image may be in any two folders."""


_LAYOUTS = {
    "a folder per case": _Layout(r"rater-.+", r"image"),
    "QUBIQ": _Layout(r"task\d+_seg\d+", r"image"),
    "CURVAS": _Layout(r"annotation_.+", r"image"),
    "MSSEG-2": _Layout(r"ground_truth.*", r"flair_.+"),
    "RIGA": _Layout(r"(?P<case>.+)-\d+", r"(?P<case>.+)prime"),
    "BIDS": _Layout(
        r"(?P<case>sub-[^_]+(_ses-[^_]+)?)_.*mask",
        r"(?P<case>sub-[^_]+(_ses-[^_]+)?)_.+(?<!mask)",
        anywhere=True,
    ),
    "nnU-Net": _Layout(r"labels(?P<split>T[rs])?(_.*)?/.+", r"images(?P<split>T[rs])?/.+"),
    "ISIC": _Layout(r"segs/(?P<case>.+?)_A\d+_.+", r"images/(?P<case>.+)"),
    "a folder per annotator, such as REFUGE": _Layout(r".+/(?P<case>.+)", r"images/(?P<case>.+)"),
}


def find_label_files(files: Collection[Path]) -> set[Path]:
    """Return those of the files that are labels of other files, in one of the layouts.

    Args:
        files: absolute paths.
    """
    return {file for layout in _LAYOUTS.values() for file in _labels_in(files, layout)}


def _labels_in(files: Collection[Path], layout: _Layout) -> Iterator[Path]:
    keys = {file: _key(layout.image, file, anywhere=layout.anywhere) for file in files}
    images = {key for key in keys.values() if key is not None}
    for file, key in keys.items():
        if key is None and _key(layout.label, file, anywhere=layout.anywhere) in images:
            yield file


def _key(pattern: str, file: Path, *, anywhere: bool) -> Hashable:
    """Return what a label and its image share, the folder and the named parts; None if the name does not match."""
    stem = _SUFFIX.sub("", file.name)
    with_folder = "/" in pattern
    match = re.fullmatch(pattern, f"{file.parent.name}/{stem}" if with_folder else stem)
    folder = None if anywhere else file.parent.parent if with_folder else file.parent
    return match and (folder, *match.groupdict().values())
