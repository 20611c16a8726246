"""Does the place that is predicted look like the training images?

The crop around the point is described by five percentiles of its values in the network's range. It is unusual if
one of them lies outside of the range of nearly all training images, or if their combination is rare there (their
Mahalanobis distance). This notices another modality or unit, air, and tissue without a lesion's usual surroundings;
it cannot tell a lesion from a vessel.

Shapes: n images of C channels and h x w pixels, P percentiles.
"""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from phiseg.core.config import StrictConfig
from phiseg.data.intensity import Intensity

PERCENTILES = (5, 25, 50, 75, 95)
RANGE = (0.1, 99.9)
"""Percentiles of the training images within which a crop's own percentile is usual."""
DISTANCE = 99.5
"""Percentile of the training images' distances up to which a crop's is usual."""
MIN_IMAGES = 50
"""Fewer training images tell too little about what is usual."""
MAX_IMAGES = 500
"""Training images that are looked at, at most."""


class UsualValues(StrictConfig):
    """What percentiles of values the training images have; see this module."""

    low: tuple[float, ...]
    """(P,), the lowest usual one of each percentile, in the network's range."""
    high: tuple[float, ...]
    """(P,), the highest usual one."""
    mean: tuple[float, ...]
    """(P,)."""
    precision: tuple[tuple[float, ...], ...]
    """(P, P), the inverse of their covariance."""
    max_distance: float
    """The largest usual squared Mahalanobis distance."""

    @classmethod
    def of(cls, images: Sequence[NDArray[np.float32]]) -> Self | None:
        """Return what is usual among images (C, h, w) in the network's range; None for too few of them."""
        if len(images) < MIN_IMAGES:
            return None
        found = np.stack([percentiles(image) for image in images])  # (n, P)
        low, high = np.percentile(found, RANGE, axis=0)
        # A little more variance keeps percentiles that are all the same, as those of air, from being decisive.
        precision = np.linalg.inv(np.cov(found.T) + 1e-4 * np.eye(len(PERCENTILES)))
        limit = np.percentile(_distances(found, found.mean(0), precision), DISTANCE)
        return cls(
            low=_rounded(low),
            high=_rounded(high),
            mean=_rounded(found.mean(0)),
            precision=tuple(_rounded(row) for row in precision),
            max_distance=float(limit),
        )

    def doubts(self, image: NDArray[np.float32], intensity: Intensity) -> str | None:
        """Return why a crop (C, h, w) does not look like the training images; None where it does.

        Args:
            image: in the network's range.
            intensity: how it got there, for values as the scan has them.
        """
        found = percentiles(image)
        low, high = np.array(self.low) - 1e-4, np.array(self.high) + 1e-4
        beyond = np.maximum(low - found, found - high)
        if beyond.max() > 0:
            worst = int(beyond.argmax())
            here, *usual = (_in_scan(value, intensity) for value in (found[worst], low[worst], high[worst]))
            why = (
                f"{_share(worst)} {here}, and in {RANGE[1] - RANGE[0]:g} % of those images {usual[0]} to {usual[1]}"
            )
        elif _distances(found[None], np.array(self.mean), np.array(self.precision))[0] > self.max_distance:
            places = (0, len(PERCENTILES) // 2, len(PERCENTILES) - 1)
            values = ", ".join(f"{_share(place)} {_in_scan(found[place], intensity)}" for place in places)
            why = f"{values}: a combination that is rarer than in {DISTANCE:g} % of those images"
        else:
            return None
        return (
            "the image around the point does not look like the model's training images, so the samples may be "
            f"meaningless; check the point and the scan ({why})"
        )


def percentiles(image: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the percentiles (P,) of an image's values, over all channels."""
    found: NDArray[np.float64] = np.percentile(image.astype(np.float64), PERCENTILES)
    return found


def _distances(
    found: NDArray[np.float64], mean: NDArray[np.float64], precision: NDArray[np.floating[Any]]
) -> NDArray[np.float64]:
    """Return the squared Mahalanobis distances (n,) of percentiles (n, P)."""
    away = found - mean
    distances: NDArray[np.float64] = np.einsum("ip,pq,iq->i", away, precision, away)
    return distances


def _share(place: int) -> str:
    return f"{PERCENTILES[place]} % of its pixels are below"


def _in_scan(value: float, intensity: Intensity) -> str:
    """Write a value of the network's range as the scan has it, where that is known."""
    if intensity.low is None or intensity.high is None:
        return f"{value:.2f} (z-score)"
    return f"{intensity.low + (value + 0.5) * (intensity.high - intensity.low):.0f}"


def _rounded(values: NDArray[np.floating[Any]]) -> tuple[float, ...]:
    return tuple(float(f"{value:.6g}") for value in values)
