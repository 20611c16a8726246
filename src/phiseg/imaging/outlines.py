"""Convert outlines of LIDC-IDRI to masks, and group the annotations of several readers into nodules.

Both follow pylidc (Hancock and Magnan, J Med Imaging 3:044504, 2016), which is the basis of most LIDC datasets.
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
    """Fill the outlines of one nodule by one reader on one slice.

    A pixel belongs to the nodule if its centre is inside an outline; pixels of the outline itself do not. Excluding
    outlines are applied after all others, including their own pixels.

    Args:
        outlines: outlines of one slice, in drawing order.
        origin: row and column in the slice of the first pixel of the window; may be negative.
        size: height and width of the window.

    Returns:
        (H, W), true inside the nodule. The result does not depend on the window.
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
    """Group annotations of the same nodule.

    Two annotations belong together if pixels of their outlines are at most `tolerance` apart, directly or through
    other annotations. While a nodule has more annotations than readers, the tolerance is reduced by 10 % for all.

    Args:
        outlined: outline pixels of each annotation, (P, 3) row, column and slice index. As in pylidc, distances are
            in these units, not in millimetres.
        tolerance: initial tolerance; the slice thickness in millimetres, used as a plain number.

    Returns:
        The members of each nodule. A nodule that cannot be split before the tolerance is below 0.1 has more than 4.
    """
    if not outlined:
        return []
    trees = [KDTree(points) for points in outlined]
    distance = np.zeros((len(outlined), len(outlined)))
    for i, points in enumerate(outlined):
        for j in range(i):
            distance[i, j] = distance[j, i] = np.min(trees[j].query(points)[0])
    while True:
        number, group = connected_components(distance <= tolerance, directed=False)
        members = [np.flatnonzero(group == nodule).tolist() for nodule in range(number)]
        tolerance *= 0.9
        if max(map(len, members)) <= MAX_READERS or tolerance < 0.1:
            return members
