"""Surface distances, compared with loops over all pairs of surface pixels, and for shapes with known distances."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import naive_metrics as naive
from phiseg.core.errors import DataError
from phiseg.metrics import surface_distance

SIZE = (12, 10, 14)


def boxes(*sides, size=SIZE):
    """Masks (N, *size) that are boxes from `first` to `last` pixel along each axis."""
    found = torch.zeros(len(sides), *size, dtype=torch.uint8)
    for mask, box in zip(found, sides, strict=True):
        mask[tuple(slice(first, last + 1) for first, last in box)] = 1
    return found


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([(5, 6), (1, 7), (3, 4, 5), (1, 4, 4)]),
    st.integers(1, 3),
    st.sampled_from([2, 3]),
    st.sampled_from([0.1, 0.5, 0.9]),
    st.sampled_from([None, 0.0, 7.5]),
    st.integers(0, 10**6),
)
def test_surface_distance_matches_reference(size, num_annotators, num_classes, share, empty, seed):
    generator = torch.Generator().manual_seed(seed)
    masks = torch.randint(1, num_classes, (1 + num_annotators, *size), generator=generator)
    masks *= torch.rand(masks.shape, generator=generator) < share  # some masks have no pixel of a label
    spacing = (2.5, 0.7, 0.5)[-len(size) :]
    options = {"num_classes": num_classes, "spacing_mm": spacing, "empty": empty}
    found = surface_distance(masks[0], masks[1:], **options)
    expected = naive.surface_distance(masks[0].numpy(), masks[1:].numpy(), num_classes, spacing, empty)
    assert found == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize(("axis", "spacing"), [(0, 2.5), (1, 0.7), (2, 0.5)])
def test_shifted_plane_has_the_distance_of_its_shift(axis, spacing):
    plane = [(0, side - 1) for side in SIZE]
    one, two = ([*plane[:axis], (at, at), *plane[axis + 1 :]] for at in (2, 5))
    masks = boxes(one, two)
    assert surface_distance(masks[0], masks[1:], num_classes=2, spacing_mm=(2.5, 0.7, 0.5)) == pytest.approx(
        3 * spacing
    )


def test_inner_pixels_are_not_part_of_the_surface():
    full, hollow = boxes(*[[(2, 8), (2, 7), (2, 9)]] * 2)
    hollow[4:7, 4:6, 4:8] = 0
    distance = surface_distance(full, hollow[None], num_classes=2, spacing_mm=(1, 1, 1))
    assert distance > 0, "the hollow has a surface inside"
    filled = surface_distance(full, full[None], num_classes=2, spacing_mm=(1, 1, 1))
    assert filled == 0


def test_surface_distance_is_symmetric_and_averaged_over_annotators():
    generator = torch.Generator().manual_seed(0)
    masks = (torch.rand(3, 7, 8, generator=generator) < 0.3).long()
    options = {"num_classes": 2, "spacing_mm": (1.5, 0.5)}
    pairs = [surface_distance(masks[0], masks[[other]], **options) for other in (1, 2)]
    assert pairs[0] == pytest.approx(surface_distance(masks[1], masks[[0]], **options))
    assert surface_distance(masks[0], masks[1:], **options) == pytest.approx(sum(pairs) / 2)


def test_empty_masks_are_excluded_unless_they_have_a_distance():
    mask, other = boxes([(2, 4)] * 3, [(3, 5)] * 3)
    empty = torch.zeros_like(mask)
    options = {"num_classes": 2, "spacing_mm": (1, 1, 1)}
    alone = surface_distance(mask, other[None], **options)
    assert surface_distance(mask, torch.stack([other, empty]), **options) == alone
    assert surface_distance(empty, mask[None], **options) is None
    assert surface_distance(empty, empty[None], **options) is None
    both = torch.stack([other, empty])
    assert surface_distance(mask, both, **options, empty=9.0) == pytest.approx((alone + 9) / 2)


@pytest.mark.parametrize(
    ("prediction", "spacing", "message"),
    [
        (torch.zeros(5, 4, dtype=torch.long), (1, 1), "do not match"),
        (torch.zeros(4, 5, dtype=torch.long), (1, 1, 1), "3 spacings do not match"),
        (torch.full((4, 5), 2), (1, 1), "prediction contains labels 2..2"),
        (torch.zeros(4, 5), (1, 1), "prediction has dtype torch.float32"),
    ],
)
def test_unsuitable_input_is_rejected(prediction, spacing, message):
    with pytest.raises(DataError, match=message):
        surface_distance(prediction, torch.zeros(1, 4, 5, dtype=torch.long), num_classes=2, spacing_mm=spacing)
