"""Check whether the image around a point looks like the training images.

The crop around the point is described by five percentiles of its values in the range of the network's input. It is
unusual if one of them is outside the range of nearly all training images, or if their combination is rare
(Mahalanobis distance). The check detects another modality or unit, air, and tissue without the usual surroundings
of a lesion. It cannot distinguish a lesion from a vessel.

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
"""Percentiles of the training images between which a percentile of a crop is usual."""
DISTANCE = 99.5
"""Percentile of the distances of the training images up to which the distance of a crop is usual."""
MIN_IMAGES = 50
"""Minimum number of training images for the check."""
MAX_IMAGES = 500
"""Maximum number of training images used."""


class UsualValues(StrictConfig):
    """Statistics of the percentiles of the training images; see the description of this module."""

    low: tuple[float, ...]
    """(P,) lowest usual value of each percentile, in the range of the network's input."""
    high: tuple[float, ...]
    """(P,) highest usual value of each percentile."""
    mean: tuple[float, ...]
    """(P,) mean of each percentile."""
    precision: tuple[tuple[float, ...], ...]
    """(P, P) inverse of the covariance of the percentiles."""
    max_distance: float
    """Largest usual squared Mahalanobis distance."""

    @classmethod
    def of(cls, images: Sequence[NDArray[np.float32]]) -> Self | None:
        """Return the statistics of images (C, h, w) in the network's range; None for too few images."""
        if len(images) < MIN_IMAGES:
            return None
        found = np.stack([percentiles(image) for image in images])  # (n, P)
        low, high = np.percentile(found, RANGE, axis=0)
        # Additional variance keeps percentiles that are all equal, such as those of air, from dominating.
        precision = np.linalg.inv(np.cov(found.T) + 1e-4 * np.eye(len(PERCENTILES)))
        limit = np.percentile(_distances(found, found.mean(0), precision), DISTANCE)
        return cls(
            low=_rounded(low),
            high=_rounded(high),
            mean=_rounded(found.mean(0)),
            precision=tuple(_rounded(row) for row in precision),
            max_distance=float(limit),
        )

    def why_unusual(self, image: NDArray[np.float32], intensity: Intensity) -> str | None:
        """Return why a crop (C, h, w) does not look like the training images, or None if it does.

        Args:
            image: crop in the range of the network's input.
            intensity: intensity rule, to report values of the scan.
        """
        found = percentiles(image)
        low, high = np.array(self.low) - 1e-4, np.array(self.high) + 1e-4
        beyond = np.maximum(low - found, found - high)
        if beyond.max() > 0:
            worst = int(beyond.argmax())
            here, *usual = (_in_scan(value, intensity) for value in (found[worst], low[worst], high[worst]))
            why = (
                f"the {PERCENTILES[worst]}th percentile of the crop is {here}; in {RANGE[1] - RANGE[0]:g} % of the "
                f"training images it is between {usual[0]} and {usual[1]}"
            )
        elif _distances(found[None], np.array(self.mean), np.array(self.precision))[0] > self.max_distance:
            places = (0, len(PERCENTILES) // 2, len(PERCENTILES) - 1)
            values = ", ".join(
                f"{PERCENTILES[place]}th percentile {_in_scan(found[place], intensity)}" for place in places
            )
            why = f"{values}: a combination rarer than in {DISTANCE:g} % of the training images"
        else:
            return None
        return (
            "the image around the point does not look like the model's training images, so the samples may be "
            f"meaningless; check the point and the scan ({why})"
        )


def percentiles(image: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the percentiles (P,) of the values of an image over all channels."""
    found: NDArray[np.float64] = np.percentile(image.astype(np.float64), PERCENTILES)
    return found


def _distances(
    found: NDArray[np.float64], mean: NDArray[np.float64], precision: NDArray[np.floating[Any]]
) -> NDArray[np.float64]:
    """Return the squared Mahalanobis distances (n,) of percentiles (n, P)."""
    away = found - mean
    distances: NDArray[np.float64] = np.einsum("ip,pq,iq->i", away, precision, away)
    return distances


def _in_scan(value: float, intensity: Intensity) -> str:
    """Format a value of the network's input as a value of the scan, if the conversion is known."""
    if intensity.low is None or intensity.high is None:
        return f"{value:.2f} (z-score)"
    return f"{intensity.low + (value + 0.5) * (intensity.high - intensity.low):.0f}"


def _rounded(values: NDArray[np.floating[Any]]) -> tuple[float, ...]:
    return tuple(float(f"{value:.6g}") for value in values)
