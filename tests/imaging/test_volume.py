"""Volumes keep the world position of each voxel in any orientation."""

from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phiseg.imaging.volume import PLANES, Volume, coarsest_plane, difference_of_grids, from_slices, to_slices

ORIENTATIONS = [
    "".join(letters)
    for order in permutations(("LR", "PA", "IS"))
    for letters in product(*order)
]  # fmt: skip
TOWARDS = {"R": (1, 0, 0), "L": (-1, 0, 0), "A": (0, 1, 0), "P": (0, -1, 0), "S": (0, 0, 1), "I": (0, 0, -1)}


def turn(angles):
    """Rotation about x, then y, then z."""
    matrix = np.eye(3)
    for axis, angle in enumerate(angles):
        one, other = (axis + 1) % 3, (axis + 2) % 3
        step = np.eye(3)
        step[[one, one, other, other], [one, other, one, other]] = (
            np.cos(angle),
            -np.sin(angle),
            np.sin(angle),
            np.cos(angle),
        )
        matrix = step @ matrix
    return matrix


def volume_towards(codes, *, angles=(0, 0, 0), spacing=(0.7, 1.1, 3.0), shape=(3, 4, 5), channels=()):
    """Return a volume of unique values with axes towards `codes`, rotated by `angles`."""
    affine = np.eye(4)
    affine[:3, :3] = turn(angles) @ np.array([TOWARDS[code] for code in codes]).T * spacing
    affine[:3, 3] = (-31.0, 12.5, 100.25)
    return Volume(np.arange(np.prod([*shape, *channels])).reshape(*shape, *channels), affine)


def places(volume):
    """Return world coordinates by value; the values of the first channel are unique."""
    values = volume.values.reshape(*volume.grid, -1)[..., 0]
    return {int(values[index]): volume.affine @ [*index, 1] for index in np.ndindex(volume.grid)}


volumes = st.builds(
    volume_towards,
    st.sampled_from(ORIENTATIONS),
    angles=st.tuples(*[st.floats(-0.9, 0.9)] * 3),
    shape=st.tuples(*[st.integers(1, 4)] * 3),
    channels=st.sampled_from([(), (2,)]),
)


def test_there_are_48_orientations():
    assert len(set(ORIENTATIONS)) == 48


@settings(max_examples=80)
@given(volumes, st.sampled_from(list(PLANES)))
def test_from_slices_inverts_to_slices(volume, plane):
    stack = to_slices(volume, plane)
    back = from_slices(stack.values, plane, like=volume)
    np.testing.assert_array_equal(back.values, volume.values)
    np.testing.assert_array_equal(back.affine, volume.affine)


@settings(max_examples=80)
@given(volumes, st.sampled_from(list(PLANES)))
def test_to_slices_keeps_world_positions(volume, plane):
    before, after = places(volume), places(to_slices(volume, plane))
    assert before.keys() == after.keys()
    for value, place in before.items():
        np.testing.assert_allclose(after[value], place, atol=1e-9)


@pytest.mark.parametrize("codes", ORIENTATIONS)
def test_to_slices_axis_directions(codes):
    volume = volume_towards(codes, angles=(0.2, -0.1, 0.15))
    assert volume.reoriented("LPS").grid == tuple(
        volume.grid[next(i for i, code in enumerate(codes) if code in pair)] for pair in ("LR", "PA", "IS")
    )
    for plane, expected in {"axial": "SPL", "coronal": "PIL", "sagittal": "LIP"}.items():
        directions = to_slices(volume, plane).affine[:3, :3].T
        assert "".join(max(TOWARDS, key=lambda code: d @ TOWARDS[code]) for d in directions) == expected


def test_to_slices_uses_radiological_convention():
    volume = volume_towards("LPS")
    np.testing.assert_array_equal(to_slices(volume, "axial").values[2], volume.values[:, :, 2].T)
    np.testing.assert_array_equal(to_slices(volume, "coronal").values[2], volume.values[:, 2, ::-1].T)
    np.testing.assert_array_equal(to_slices(volume, "sagittal").values[2], volume.values[2, :, ::-1].T)


@settings(max_examples=80)
@given(volumes, st.sampled_from(ORIENTATIONS))
def test_reoriented_like_undoes_axis_permutation(volume, codes):
    turned = volume.reoriented(codes)
    like = turned.reoriented_like(volume)
    assert difference_of_grids(volume, like) is None
    np.testing.assert_array_equal(like.values, volume.values)


def test_reoriented_like_with_45_degree_rotation():
    volume = volume_towards("RAS", angles=(0, 0, np.pi / 4), spacing=(1, 1, 1))
    turned = Volume(
        volume.values[::-1].transpose(1, 0, 2),
        volume.affine @ np.array([[0, -1, 0, 2], [1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1.0]]),
    )
    np.testing.assert_array_equal(turned.reoriented_like(volume).values, volume.values)


@pytest.mark.parametrize(
    ("spacing", "plane"),
    [
        ((1, 1, 3), "axial"),
        ((1, 3, 1), "coronal"),
        ((3, 1, 1), "sagittal"),
        ((1, 1, 1), "axial"),
        ((1, 1.0001, 1), "axial"),
        ((3, 3, 1), "coronal"),
    ],
)
def test_coarsest_plane_follows_spacing(spacing, plane):
    assert coarsest_plane(volume_towards("RAS", spacing=spacing, angles=(0.1, 0.1, 0))) == plane


@pytest.mark.parametrize(("axis", "plane"), [(0, "sagittal"), (1, "coronal"), (2, "axial")])
def test_coarsest_plane_of_single_slice(axis, plane):
    shape, spacing = [6, 7, 8], [2.0, 3.0, 4.0]
    shape[axis], spacing[axis] = 1, 0.5
    assert coarsest_plane(Volume(np.zeros(shape), np.diag([*spacing, 1.0]))) == plane


def test_volume_spacing_is_norm_of_affine_columns():
    assert volume_towards("PIL", angles=(0.4, 0.2, 0.1)).spacing_mm == pytest.approx((0.7, 1.1, 3.0))


def test_difference_of_grids():
    volume = volume_towards("RAS")
    shifted, tilted = volume.affine.copy(), volume.affine.copy()
    shifted[0, 3] += 2.5
    tilted[2, 1] += 0.2
    assert (
        difference_of_grids(volume, Volume(volume.values[:2], volume.affine))
        == "3 x 4 x 5 against 2 x 4 x 5 voxels"
    )
    assert difference_of_grids(volume, Volume(volume.values, shifted)) == "voxels up to 2.5 mm apart"
    assert difference_of_grids(volume, Volume(volume.values, tilted)) == "voxels up to 0.6 mm apart"
    assert difference_of_grids(volume, Volume(volume.values, volume.affine + 1e-4)) is None
