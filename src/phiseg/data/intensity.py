"""The intensity rule: how a stored pixel becomes the network's input."""

from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from phiseg.core.config import StrictConfig


class Intensity(StrictConfig):
    """Either a fixed window (CT, phantoms) or values that were z-scored when they were prepared (MR)."""

    kind: Literal["window", "zscore"]
    low: float | None = None
    """Stored value that becomes -0.5; everything below is clipped. Only for a window."""
    high: float | None = None
    """Stored value that becomes +0.5; everything above is clipped. Only for a window."""

    @model_validator(mode="after")
    def _bounds_fit_the_kind(self) -> Self:
        if self.kind == "zscore" and (self.low is not None or self.high is not None):
            raise ValueError("zscore takes neither 'low' nor 'high'; remove them or use kind: window")
        if self.kind == "window" and not (
            self.low is not None
            and self.high is not None
            and np.isfinite([self.low, self.high]).all()
            and self.low < self.high
        ):
            raise ValueError("a window needs two finite numbers with low < high")
        return self


def normalise(images: NDArray[Any], intensity: Intensity) -> NDArray[np.float32]:
    """Return the network's input: a window is clipped and mapped linearly to [-0.5, 0.5], a z-score is kept.

    >>> normalise(np.array([-2000, -1000, 0, 1000]), Intensity(kind="window", low=-1000, high=1000))
    array([-0.5, -0.5,  0. ,  0.5], dtype=float32)

    Args:
        images: stored values of any numeric type and any shape.
        intensity: the dataset's rule.

    Returns:
        A new array of the same shape.
    """
    values = images.astype(np.float32)  # a copy: int16 arithmetic would overflow, and the store is read-only
    if intensity.low is None or intensity.high is None:
        return values
    scaled: NDArray[np.float32] = (values - intensity.low) / (intensity.high - intensity.low)
    return np.clip(scaled, 0.0, 1.0) - np.float32(0.5)
