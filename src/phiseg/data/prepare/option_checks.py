"""What several sources ask of their options."""

from math import inf, isfinite

from phiseg.core.errors import ConfigError

MAX_SIZE = 8192
"""Pixels along a side; more is a slip of the hand, and would not fit into memory."""


def check_size(*sides: int) -> None:
    """Refuse a height or width that no image has."""
    if not all(1 <= side <= MAX_SIZE for side in sides):
        raise ConfigError(f"size {' x '.join(map(str, sides))} must be 1 to {MAX_SIZE} pixels, such as 128")


def check_spacing(spacing_mm: float | None) -> None:
    """Refuse a pixel spacing that is none; None keeps the source's."""
    if spacing_mm is not None and not 0 < spacing_mm < inf:
        raise ConfigError(f"spacing {spacing_mm:g} must be millimetres above 0, such as 0.6")


def check_window(window: tuple[float, float] | None) -> None:
    """Refuse a window that is none."""
    if window is not None and not (all(map(isfinite, window)) and window[0] < window[1]):
        raise ConfigError(f"window {window} must be two numbers, the lower one first, such as -1000 400")
