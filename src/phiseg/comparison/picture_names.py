"""Names of the pictures of a comparison, which are also their keys in the template of the report."""

from enum import StrEnum


class PictureKind(StrEnum):
    """What a picture shows."""

    SAMPLES = "samples"
    LEVELS = "levels"
    SCORES = "scores"
    TERMS = "terms"
    SCATTER = "scatter"
    RELIABILITY = "reliability"
    CURVES = "curves"


NUMBERED = (PictureKind.SAMPLES, PictureKind.LEVELS, PictureKind.SCATTER)
"""Kinds with several pictures, now or in earlier versions."""

_NAMES = "|".join(rf"{kind}(-\d+)?" if kind in NUMBERED else kind for kind in PictureKind)
PATTERN = rf"((all|one)-)?({_NAMES})\.png"
"""Regular expression of the name of a picture's file; a regime of an experiment may come first."""


def picture_file(kind: PictureKind, index: int = 0) -> str:
    """Return the name of the file.

    >>> picture_file(PictureKind.SAMPLES, 1)
    'samples-2.png'
    """
    return f"{kind}.png" if index == 0 else f"{kind}-{index + 1}.png"
