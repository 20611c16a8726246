"""Validation of options shared by several sources."""

from collections.abc import Sequence
from math import isfinite

from phiseg.core.errors import ConfigError

MIN_SIZE = 16
"""Minimum side of an image in pixels for the commands. Smaller values are typing errors."""
MAX_SIZE = 8192
"""Maximum side of an image in pixels. Larger values are typing errors and would exceed memory."""
MAX_SPACING = 20.0
"""Maximum pixel spacing in mm. Larger values are typing errors, such as 60 for 0.60."""
MIN_RESAMPLED = 16
"""Minimum side of a resampled slice in pixels, unless the slice is smaller before resampling."""


def check_size(*sides: int, smallest: int = 1) -> None:
    """Raise ConfigError if a height or width is not in the range from `smallest` to `MAX_SIZE`."""
    if not all(smallest <= side <= MAX_SIZE for side in sides):
        shown = " x ".join(map(str, sides))
        raise ConfigError(f"size {shown} is out of range; use {smallest} to {MAX_SIZE} pixels, such as 128")


def check_spacing(spacing_mm: float | None) -> None:
    """Raise ConfigError if a pixel spacing is invalid. None keeps the spacing of the source."""
    if spacing_mm is not None and not 0 < spacing_mm <= MAX_SPACING:
        raise ConfigError(
            f"spacing {spacing_mm:g} is invalid; give a positive number of millimetres up to {MAX_SPACING:g}, "
            "such as 0.6"
        )


def check_resampled(
    spacing_mm: float | None, before: Sequence[Sequence[int]], after: Sequence[Sequence[int]]
) -> None:
    """Raise ConfigError if resampling to a pixel spacing leaves hardly any pixels of a slice.

    Args:
        spacing_mm: pixel spacing; None if slices are not resampled.
        before: height and width of the slices of each scan.
        after: the same after resampling.
    """
    for old, new in zip(before, after, strict=True):
        if spacing_mm is not None and min(new) < min(MIN_RESAMPLED, *old):
            raise ConfigError(
                f"spacing {spacing_mm:g} turns slices of {old[0]} x {old[1]} into {new[0]} x {new[1]} pixels; "
                "give millimetres per pixel, such as 0.6"
            )


def check_window(window: tuple[float, float] | None) -> None:
    """Raise ConfigError if a window is invalid."""
    if window is not None and not (all(map(isfinite, window)) and window[0] < window[1]):
        raise ConfigError(f"window {window} is invalid; give two numbers, the lower one first, such as -1000 400")
