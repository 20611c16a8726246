"""Validation of options shared by several sources."""

from math import inf, isfinite

from phiseg.core.errors import ConfigError

MAX_SIZE = 8192
"""Maximum side of an image in pixels. Larger values are typing errors and would exceed memory."""


def check_size(*sides: int) -> None:
    """Raise ConfigError if a height or width is out of range."""
    if not all(1 <= side <= MAX_SIZE for side in sides):
        shown = " x ".join(map(str, sides))
        raise ConfigError(f"size {shown} is out of range; use 1 to {MAX_SIZE} pixels, such as 128")


def check_spacing(spacing_mm: float | None) -> None:
    """Raise ConfigError if a pixel spacing is invalid. None keeps the spacing of the source."""
    if spacing_mm is not None and not 0 < spacing_mm < inf:
        raise ConfigError(f"spacing {spacing_mm:g} is invalid; give a positive number of millimetres, such as 0.6")


def check_window(window: tuple[float, float] | None) -> None:
    """Raise ConfigError if a window is invalid."""
    if window is not None and not (all(map(isfinite, window)) and window[0] < window[1]):
        raise ConfigError(f"window {window} is invalid; give two numbers, the lower one first, such as -1000 400")
