"""Strides and kernels for pixels with different side lengths."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phiseg.models.pyramid import MIN_SIDE, Pyramid, plan_pyramid

spacings = st.lists(st.floats(0.1, 20), min_size=2, max_size=3)


def test_regular_pyramid_halves_every_axis():
    pyramid = Pyramid.regular(3, 3)
    assert (pyramid.dims, pyramid.point) == (3, (1, 1, 1))
    assert [pyramid.scale(level) for level in range(3)] == [(1, 1, 1), (2, 2, 2), (4, 4, 4)]


def test_scale_multiplies_strides():
    pyramid = Pyramid(((1, 2, 2), (2, 1, 2), (2, 2, 2)), ((3, 3, 3),) * 4)
    assert [pyramid.scale(level) for level in range(4)] == [(1, 1, 1), (1, 2, 2), (2, 2, 4), (4, 4, 8)]


@pytest.mark.parametrize(
    ("spacing", "patch_size", "depth_strides", "depth_kernels"),
    [
        ((1.0, 1.0, 1.0), None, (2, 2, 2, 2, 2), (3, 3, 3, 3, 3, 3)),
        ((1.0, 1.0, 1.0), (16, 64, 64), (2, 2, 2, 1, 1), (3, 3, 3, 3, 3, 3)),
        ((2.0, 0.7, 0.7), (16, 64, 64), (1, 2, 2, 2, 1), (1, 3, 3, 3, 3, 3)),
        ((2.0, 1.0, 1.0), (16, 64, 64), (1, 2, 2, 2, 1), (3, 3, 3, 3, 3, 3)),  # twice: kernel 3, but not halved
        ((5.0, 0.5, 0.5), (9, 128, 128), (1, 1, 1, 2, 2), (1, 1, 1, 3, 3, 3)),
        ((2.0, 0.7, 0.7), (3, 64, 64), (1, 1, 1, 1, 1), (1, 3, 3, 3, 3, 3)),  # few slices
    ],
)
def test_plan_by_spacing_and_patch(spacing, patch_size, depth_strides, depth_kernels):
    pyramid = plan_pyramid(spacing, 6, patch_size)
    assert pyramid.strides == tuple((stride, 2, 2) for stride in depth_strides)
    assert pyramid.kernels == tuple((kernel, 3, 3) for kernel in depth_kernels)


def test_plan_for_squares_is_regular():
    assert plan_pyramid((0.7, 0.7), 5) == Pyramid.regular(2, 5)
    assert plan_pyramid((3.0, 3.0, 3.0), 1, (8, 8, 8)) == Pyramid.regular(3, 1)


@settings(max_examples=60)
@given(spacings, st.integers(1, 7), st.data())
def test_plan_makes_pixels_more_regular(spacing, num_levels, data):
    pyramid = plan_pyramid(spacing, num_levels)
    assert (len(pyramid.strides), len(pyramid.kernels)) == (num_levels - 1, num_levels)
    ratios = []
    for level in range(num_levels):
        sides = [a * b for a, b in zip(spacing, pyramid.scale(level), strict=True)]
        ratios.append(max(sides) / min(sides))
    assert all(after <= max(before, 2) + 1e-9 for before, after in pairwise(ratios))
    size = data.draw(st.lists(st.integers(1, 100), min_size=len(spacing), max_size=len(spacing)))
    limited = plan_pyramid(spacing, num_levels, size)
    for pixels, scale in zip(size, limited.scale(num_levels - 1), strict=True):
        assert pixels / scale > MIN_SIDE - 1 or scale == 1
