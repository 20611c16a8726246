"""Average symmetric surface distance of a segmentation and annotations.

Convention: the surface of a mask consists of its pixels that have a neighbour outside the mask along an axis, or
that are at the border of the image. Distances are between the centres of pixels. The result is the mean over the
surface pixels of both masks, then over the foreground labels and the annotators.

A annotators, K classes. *size is (H, W) for an image and (D, H, W) for a volume.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from torch import Tensor

from phiseg.core.errors import DataError
from phiseg.metrics.overlap import checked_labels

Mask = NDArray[np.bool_]


def surface_distance(
    prediction: Tensor,
    annotations: Tensor,
    *,
    num_classes: int,
    spacing_mm: Sequence[float],
    empty: float | None = None,
) -> float | None:
    """Return the average symmetric surface distance (ASSD) of a segmentation to annotations, in mm.

    d(a, b) = (sum of d(p, S_b) over p in S_a + sum of d(p, S_a) over p in S_b) / (|S_a| + |S_b|), where S_a and S_b
    are the surfaces and d(p, S) is the distance of p to the nearest pixel of S.

    Args:
        prediction: integer labels (*size).
        annotations: integer labels (A, *size).
        num_classes: K, including the background.
        spacing_mm: distance between pixels along each axis.
        empty: distance of two masks of which at least one is empty, so that a surface does not exist. None excludes
            them from the mean.

    Returns:
        None if no pair is left.

    Raises:
        DataError: labels are not integers in 0..K-1, a mask has no pixels, or sizes or `spacing_mm` do not match.

    >>> import torch
    >>> bars = torch.tensor([[0, 1, 1, 1, 0, 0], [0, 0, 0, 1, 1, 1]])[:, None]  # (2, 1, 6)
    >>> surface_distance(bars[0], bars[1:], num_classes=2, spacing_mm=(1, 2))
    2.0
    """
    if prediction.shape != annotations.shape[1:] or len(spacing_mm) != prediction.ndim:
        raise DataError(
            f"prediction {tuple(prediction.shape)}, annotations {tuple(annotations.shape)} and {len(spacing_mm)} "
            "spacings do not match; pass (*size), (A, *size) and one spacing per axis"
        )
    drawn = checked_labels("prediction", prediction, num_classes).cpu().numpy()
    experts = checked_labels("annotations", annotations, num_classes).cpu().numpy()
    distances = []
    for label in range(1, num_classes):
        surfaces = _surfaces(np.concatenate([(drawn == label)[None], experts == label]))
        fields = [_distances_to(surface, spacing_mm) if surface.any() else None for surface in surfaces]
        for surface, field in zip(surfaces[1:], fields[1:], strict=True):
            if fields[0] is None or field is None:
                distances.append(empty)
            else:
                distances.append(float(np.concatenate([field[surfaces[0]], fields[0][surface]]).mean()))
    known = [distance for distance in distances if distance is not None]
    return sum(known) / len(known) if known else None


def _surfaces(masks: Mask) -> Mask:
    """Return the surfaces of masks (N, *size), cropped to the part of the image where any mask is."""
    spans = [np.flatnonzero(masks.any(tuple({*range(masks.ndim)} - {axis}))) for axis in range(1, masks.ndim)]
    if not spans[0].size:
        return masks
    masks = masks[:, *(slice(span[0], span[-1] + 1) for span in spans)]
    structure = ndimage.generate_binary_structure(masks.ndim - 1, 1)[None]  # neighbours of the same mask
    surfaces: Mask = masks & ~ndimage.binary_erosion(masks, structure)
    return surfaces


def _distances_to(surface: Mask, spacing_mm: Sequence[float]) -> NDArray[np.float64]:
    """Return the distance of every pixel to the nearest pixel of a surface."""
    field: NDArray[np.float64] = ndimage.distance_transform_edt(~surface, sampling=spacing_mm)
    return field
