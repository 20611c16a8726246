"""From outlines to masks, and from several readers' outlines to nodules: LIDC-IDRI's rules.

Both follow pylidc (Hancock and Magnan, J Med Imaging 3:044504, 2016), by which the field's LIDC datasets were made.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.path import Path as Polygon
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components
from scipy.spatial import KDTree

from phiseg.imaging.lidc_xml import Outline

MAX_READERS = 4


def rasterise(outlines: Sequence[Outline], origin: tuple[int, int], size: tuple[int, int]) -> NDArray[np.bool_]:
    """Fill the outlines that one reader drew of one nodule on one slice.

    A pixel belongs to the nodule if its centre is inside of an outline; the outline's own pixels do not. Outlines
    that exclude a part take it out after all others, with their own pixels.

    Args:
        outlines: of one slice, in the order they were drawn in.
        origin: row and column of the window's first pixel in the slice; may be negative.
        size: the window's height and width.

    Returns:
        (H, W), true inside of the nodule: what a larger window would show at that place.
    """
    mask = np.zeros(size, dtype=np.bool_)
    for outline in sorted(outlines, key=lambda outline: not outline.inclusion):
        points = outline.points - origin
        low, high = np.maximum(points.min(axis=0), 0), np.minimum(points.max(axis=0) + 1, size)
        if (low >= high).any():
            continue
        box = np.s_[low[0] : high[0], low[1] : high[1]]
        polygon = Polygon(np.append(points, points[:1], axis=0), closed=True)
        inside = polygon.contains_points(np.mgrid[box].reshape(2, -1).T).reshape(mask[box].shape)
        mask[box] = (mask[box] | inside) if outline.inclusion else (mask[box] & ~inside)
        rows, columns = points[((points >= 0) & (points < size)).all(axis=1)].T
        mask[rows, columns] = False
    return mask


def cluster(outlined: Sequence[NDArray[np.int64]], tolerance: float) -> list[list[int]]:
    """Find out which annotations are of the same nodule.

    Two belong together if pixels of their outlines are at most `tolerance` apart, directly or by way of others.
    While a nodule would have more annotations than there are readers, the tolerance shrinks by a tenth for all.

    Args:
        outlined: the outlines' pixels of every annotation, (P, 3) row, column and slice number. Distances are
            counted in these, not in millimetres: that is pylidc's rule.
        tolerance: where to begin; the slice thickness in millimetres, taken as a number.

    Returns:
        The members of each nodule. One that cannot be parted before the tolerance is below 0.1 has more than 4.
    """
    if not outlined:
        return []
    trees = [KDTree(points) for points in outlined]
    distance = np.zeros((len(outlined), len(outlined)))
    for i, points in enumerate(outlined):
        for j in range(i):
            distance[i, j] = distance[j, i] = np.min(trees[j].query(points)[0])
    while True:
        number, home = connected_components(distance <= tolerance, directed=False)
        members = [np.flatnonzero(home == nodule).tolist() for nodule in range(number)]
        tolerance *= 0.9
        if max(map(len, members)) <= MAX_READERS or tolerance < 0.1:
            return members
