"""Filling outlines and grouping annotations, compared with simple reference implementations."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phiseg.imaging.lidc_xml import Outline
from phiseg.imaging.outlines import cluster, rasterise


def outline(points, *, inclusion=True):
    return Outline(0.0, "", inclusion, np.array(points, dtype=np.int64).reshape(-1, 2))


def walk(steps, start):
    """Return an outline of adjacent pixels, as written by the readers' software."""
    points = [start]
    for step in steps:
        points.append((points[-1][0] + step[0], points[-1][1] + step[1]))
    return points


directions = st.sampled_from([(r, c) for r, c in product((-1, 0, 1), repeat=2) if (r, c) != (0, 0)])
outlines = st.builds(
    lambda steps, start, inclusion: outline(walk(steps, start), inclusion=inclusion),
    st.lists(directions, min_size=1, max_size=40),
    st.tuples(st.integers(0, 20), st.integers(0, 20)),
    st.booleans(),
)


def inside(polygon, row, column):
    """Count ray crossings in exact integer arithmetic; None for a pixel on an edge."""
    odd = False
    for (r0, c0), (r1, c1) in zip(polygon, np.roll(polygon, -1, axis=0), strict=True):
        cross = (r1 - r0) * (column - c0) - (c1 - c0) * (row - r0)
        if cross == 0 and min(r0, r1) <= row <= max(r0, r1) and min(c0, c1) <= column <= max(c0, c1):
            return None
        if (r0 > row) != (r1 > row):
            odd ^= (cross > 0) != (r1 > r0)
    return bool(odd)


@given(outlines)
def test_rasterise_fills_inside_without_outline(drawn):
    drawn = drawn._replace(inclusion=True)
    low = drawn.points.min(axis=0) - 2
    size = tuple(int(n) for n in drawn.points.max(axis=0) - low + 3)
    mask = rasterise([drawn], (int(low[0]), int(low[1])), size)
    on_outline = {tuple(point) for point in drawn.points.tolist()}
    for row, column in np.ndindex(size):
        place = (row + int(low[0]), column + int(low[1]))
        expected = inside(drawn.points, *place)
        if place in on_outline:
            assert not mask[row, column]
        elif expected is not None:
            assert mask[row, column] == expected, place


@given(
    st.lists(outlines, max_size=4),
    st.tuples(st.integers(-10, 30), st.integers(-10, 30)),
    st.tuples(st.integers(1, 30), st.integers(1, 30)),
)
def test_rasterise_commutes_with_cropping(drawn, origin, size):
    whole = rasterise(drawn, (-70, -70), (170, 170))
    part = whole[70 + origin[0] :, 70 + origin[1] :][: size[0], : size[1]]
    np.testing.assert_array_equal(rasterise(drawn, origin, size), part)


def test_rasterise_subtracts_exclusions_in_any_order():
    outer = outline([(0, 0), (0, 10), (10, 10), (10, 0)])
    hole = outline([(4, 4), (4, 6), (6, 6), (6, 4)], inclusion=False)
    mask = rasterise([hole, outer], (0, 0), (12, 12))
    np.testing.assert_array_equal(mask, rasterise([outer, hole], (0, 0), (12, 12)))
    assert mask[2, 2]
    assert not mask[5, 5]
    assert not mask[4, 4], "the exclusion's own pixels are outside of the nodule"


def test_rasterise_unites_outlines():
    left, right = outline([(0, 0), (0, 4), (4, 4), (4, 0)]), outline([(0, 10), (0, 14), (4, 14), (4, 10)])
    mask = rasterise([left, right], (0, 0), (5, 15))
    np.testing.assert_array_equal(mask[2, [2, 7, 12]], [True, False, True])


@pytest.mark.parametrize(("points", "area"), [([(3, 3), (3, 4)], 0), ([(2, 3), (3, 4), (4, 3), (3, 2)], 1)])
def test_rasterise_smallest_outlines(points, area):
    assert rasterise([outline(points)], (0, 0), (8, 8)).sum() == area


def points(row, column, level=0):
    return np.array([(row, column, level), (row + 1, column, level)])


def test_cluster_joins_annotations_within_tolerance():
    near, chained, far = points(0, 0), points(0, 2), points(0, 20)
    assert cluster([near, far, chained], tolerance=2.0) == [[0, 2], [1]]
    assert cluster([near, far, chained], tolerance=1.9) == [[0], [1], [2]]
    assert cluster([near, far, chained], tolerance=18.0) == [[0, 1, 2]]
    assert cluster([], tolerance=1.0) == []


def test_cluster_measures_slices_like_pixels():
    assert cluster([points(0, 0, level=0), points(0, 0, level=2)], tolerance=2.5) == [[0, 1]]
    assert cluster([points(0, 0, level=0), points(0, 0, level=3)], tolerance=2.5) == [[0], [1]]


def test_cluster_reduces_tolerance_for_too_many_readers():
    """Four readers of one nodule, and one reader of a nodule 2 pixels away."""
    annotations = [*(points(0, 0) for _ in range(4)), points(0, 2)]
    assert cluster(annotations, tolerance=2.5) == [[0, 1, 2, 3], [4]]


def test_cluster_keeps_inseparable_annotations():
    assert cluster([points(0, 0) for _ in range(6)], tolerance=2.5) == [[0, 1, 2, 3, 4, 5]]
