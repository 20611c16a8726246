"""Conversion of stored values by slope and intercept, as in DICOM."""

from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from phiseg.core.errors import ConfigError


def check_rescale(rescale: tuple[float, float] | None) -> None:
    """Raise ConfigError if slope or intercept is not finite, or the slope is 0."""
    if rescale is not None and not (all(map(isfinite, rescale)) and rescale[0] != 0):
        raise ConfigError(f"rescale {rescale} is invalid; give a nonzero slope and an intercept, such as 1 -1024")


def rescaled(image: NDArray[Any], rescale: tuple[float, float], dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """Return `image * slope + intercept` as `dtype`, rounded if that is an integer type."""
    values = image.astype(np.float64) * rescale[0] + rescale[1]
    with np.errstate(over="ignore"):  # the writer rejects infinite pixels
        return (np.rint(values) if np.dtype(dtype).kind == "i" else values).astype(dtype)


def rescaled_type(stored: np.dtype[Any], slope: float, low: float, high: float) -> np.dtype[Any]:
    """Return the type of rescaled images: int16 if rounding keeps stored values distinct, otherwise float32.

    Args:
        stored: type before rescaling; only integers become int16.
        slope: slope; below 1, rounding would map different stored values to the same number.
        low: smallest rescaled value of all images.
        high: largest rescaled value of all images.
    """
    bounds = np.iinfo(np.int16)
    fits = bounds.min <= np.rint(low) and np.rint(high) <= bounds.max
    return np.dtype(np.int16 if stored.kind in "iu" and abs(slope) >= 1 and fits else np.float32)
