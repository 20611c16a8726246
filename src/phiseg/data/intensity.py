"""The intensity rule that maps stored pixels to the network's input."""

from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from phiseg.core.config import StrictConfig


class Intensity(StrictConfig):
    """A fixed window (CT, phantoms), or values that were z-scored during preparation (MR)."""

    kind: Literal["window", "zscore", "image_zscore"]
    """`zscore`: by mean and standard deviation of the volume; `image_zscore`: of each image."""
    low: float | None = None
    """Stored value that is mapped to -0.5; lower values are clipped. Only for a window."""
    high: float | None = None
    """Stored value that is mapped to +0.5; higher values are clipped. Only for a window."""

    @model_validator(mode="after")
    def _bounds_fit_the_kind(self) -> Self:
        if self.kind != "window" and (self.low is not None or self.high is not None):
            raise ValueError(f"{self.kind} does not accept 'low' and 'high'; remove them or use kind: window")
        if self.kind == "window" and not (
            self.low is not None
            and self.high is not None
            and np.isfinite([self.low, self.high]).all()
            and self.low < self.high
        ):
            raise ValueError("a window needs two finite numbers with low < high")
        return self


def normalise(images: NDArray[Any], intensity: Intensity) -> NDArray[np.float32]:
    """Return the network's input: a window is clipped and mapped linearly to [-0.5, 0.5], z-scores are kept.

    >>> normalise(np.array([-2000, -1000, 0, 1000]), Intensity(kind="window", low=-1000, high=1000))
    array([-0.5, -0.5,  0. ,  0.5], dtype=float32)

    Args:
        images: stored values of any numeric type and any shape.
        intensity: intensity rule of the dataset.

    Returns:
        A new array of the same shape.
    """
    values = images.astype(np.float32)  # a copy, because int16 would overflow and the store is read-only
    if intensity.low is None or intensity.high is None:
        return values
    scaled: NDArray[np.float32] = (values - intensity.low) / (intensity.high - intensity.low)
    return np.clip(scaled, 0.0, 1.0) - np.float32(0.5)


def zscored(image: NDArray[Any]) -> NDArray[np.float32]:
    """Return an image (C, *size) with mean 0 and standard deviation 1 per channel; constant channels become 0.

    >>> zscored(np.array([[[1, 3]], [[5, 5]]]))
    array([[[-1.,  1.]],
    <BLANKLINE>
           [[ 0.,  0.]]], dtype=float32)
    """
    values = image.astype(np.float64)
    axes = tuple(range(1, values.ndim))
    spread = values.std(axis=axes, keepdims=True)
    scaled: NDArray[np.float64] = (values - values.mean(axis=axes, keepdims=True)) / np.where(spread > 0, spread, 1)
    return scaled.astype(np.float32)
