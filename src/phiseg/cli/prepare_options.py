"""Conversion of options that several `phiseg prepare` commands share."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from phiseg.core.errors import ConfigError

if TYPE_CHECKING:
    from phiseg.data.prepare.patterns import FilePatterns


def file_patterns(images: tuple[str, ...], rater: str | None, target: str | None) -> "FilePatterns | None":
    """Return the patterns of images and labels, or None if there are none."""
    from phiseg.data.prepare.patterns import FilePatterns

    if not images and rater is None:
        if target is not None:
            raise ConfigError("--target needs --image and --rater; add the patterns of the file names")
        return None
    if not images or rater is None:
        raise ConfigError("--image and --rater must be given together; add the other pattern")
    return FilePatterns(images=images, rater=rater, target=target)


def parse_size(text: str | None) -> tuple[int, int] | None:
    """Return height and width of a size such as 192 or 192x160."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+)(?:[x,](\d+))?", text)
    if not match:
        raise ConfigError(f"--size '{text}' is not a size in pixels; use a number or HxW, such as 192 or 192x160")
    from phiseg.data.prepare.option_checks import MIN_SIZE, check_size

    height, width = int(match[1]), int(match[2] or match[1])
    check_size(height, width, smallest=MIN_SIZE)
    return height, width


def parse_values(pairs: Sequence[str], *, option: str) -> dict[int, int]:
    """Return a mapping of labels from pairs such as 3:0."""
    values: dict[int, int] = {}
    for pair in pairs:
        match = re.fullmatch(r"(-?\d+):(\d+)", pair)
        if not match:
            raise ConfigError(f"{option} '{pair}' is not of the form OLD:NEW; give two labels, such as 3:0")
        old, new = int(match[1]), int(match[2])
        if values.get(old, new) != new:
            raise ConfigError(f"{option} maps label {old} to both {values[old]} and {new}; remove one of them")
        values[old] = new
    return values
