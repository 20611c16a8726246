"""Crops of a slice, compared with loops over pixels that do not use SimpleITK."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phiseg.imaging.frame import Frame, crop

SIZES = st.tuples(st.integers(1, 9), st.integers(1, 9))
STEPS = st.tuples(*[st.sampled_from([0.37, 0.6, 1.0, 1.3, 2.1])] * 2)
PLACES = st.tuples(
    *[st.floats(-6, 9).map(lambda place: round(place, 2) + 0.003)] * 2
)  # never halfway between pixels
WHOLE = st.tuples(st.integers(-12, 12), st.integers(-12, 12))


def naive_crop(image, frame, fill, interpolation):
    """A slice extends half a pixel beyond the centres of its border pixels, with constant values."""
    out = np.full(frame.size, fill, dtype=np.float64)
    for r in range(frame.size[0]):
        for c in range(frame.size[1]):
            y, x = frame.origin[0] + frame.step[0] * r, frame.origin[1] + frame.step[1] * c
            if not (-0.5 <= y < image.shape[0] - 0.5 and -0.5 <= x < image.shape[1] - 0.5):
                continue
            if interpolation == "nearest":
                out[r, c] = image[round(y), round(x)]
                continue
            y, x = min(max(y, 0), image.shape[0] - 1), min(max(x, 0), image.shape[1] - 1)
            top, left = int(y), int(x)
            bottom, right = min(top + 1, image.shape[0] - 1), min(left + 1, image.shape[1] - 1)
            down, over = y - top, x - left
            upper = (1 - over) * image[top, left] + over * image[top, right]
            lower = (1 - over) * image[bottom, left] + over * image[bottom, right]
            out[r, c] = (1 - down) * upper + down * lower
    return out


def picture(size, seed=0):
    return np.random.default_rng(seed).integers(0, 200, size).astype(np.float64)


@settings(max_examples=60)
@given(SIZES, PLACES, STEPS, SIZES)
def test_crop_linear_matches_reference(size, origin, step, out_size):
    image, frame = picture(size), Frame(origin, step, out_size)
    expected = naive_crop(image, frame, -7, "linear")
    np.testing.assert_allclose(crop(image, frame, fill=-7, interpolation="linear"), expected, atol=1e-9)


@settings(max_examples=60)
@given(SIZES, PLACES, STEPS, SIZES)
def test_crop_nearest_matches_reference(size, origin, step, out_size):
    labels, frame = picture(size).astype(np.uint8), Frame(origin, step, out_size)
    found = crop(labels, frame, fill=255, interpolation="nearest")
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, naive_crop(labels, frame, 255, "nearest"))


@settings(max_examples=60)
@given(SIZES, WHOLE, SIZES, st.sampled_from(["linear", "nearest"]))
def test_crop_copies_whole_pixels(size, origin, out_size, interpolation):
    image, frame = picture(size), Frame((float(origin[0]), float(origin[1])), (1.0, 1.0), out_size)
    assert frame.copies_pixels
    expected = naive_crop(image, frame, -7, "nearest")
    np.testing.assert_array_equal(crop(image, frame, fill=-7, interpolation=interpolation), expected)


@settings(max_examples=60)
@given(PLACES | WHOLE, STEPS, SIZES, st.tuples(st.integers(0, 5), st.integers(0, 5)))
def test_crop_is_equivariant_to_shifts(origin, step, out_size, shift):
    image = picture((7, 8))
    wide = np.full((7 + shift[0], 8 + shift[1]), 0.0)
    wide[shift[0] :, shift[1] :] = image
    frame = Frame(origin, step, out_size)
    shifted = Frame((origin[0] + shift[0], origin[1] + shift[1]), step, out_size)
    inside = crop(np.ones_like(image), frame, fill=0, interpolation="nearest") > 0
    found = crop(wide, shifted, interpolation="nearest")
    np.testing.assert_array_equal(found, crop(image, frame, interpolation="nearest"))
    assert not found[~inside].any()


@settings(max_examples=60)
@given(WHOLE, SIZES)
def test_inverse_frame_restores_position(origin, out_size):
    image = picture((7, 8))
    frame = Frame((float(origin[0]), float(origin[1])), (1.0, 1.0), out_size)
    back = frame.inverse(image.shape)
    seen = crop(np.ones(out_size), back, interpolation="nearest") > 0
    returned = crop(crop(image, frame, fill=-7, interpolation="nearest"), back, fill=-7, interpolation="nearest")
    np.testing.assert_array_equal(returned, np.where(seen, image, -7))


@given(PLACES, STEPS, SIZES, SIZES)
def test_inverse_maps_positions_back(origin, step, size, slice_size):
    frame = Frame(origin, step, size)
    back = frame.inverse(slice_size)
    assert back.size == slice_size
    for pixel in (0, 3):
        there = [o + s * pixel for o, s in zip(frame.origin, frame.step, strict=True)]
        again = [o + s * place for o, s, place in zip(back.origin, back.step, there, strict=True)]
        assert again == pytest.approx([pixel, pixel], abs=1e-9)
    assert back.inverse(size).origin == pytest.approx(frame.origin)


@pytest.mark.parametrize(
    ("centre", "size", "step", "origin"),
    [
        ((3.5, 3.5), (4, 4), (1.0, 1.0), (2.0, 2.0)),
        ((3.0, 3.0), (4, 4), (1.0, 1.0), (1.0, 1.0)),  # even size: one more pixel at the top and left
        ((2.0, 2.0), (9, 5), (1.0, 1.0), (-2.0, 0.0)),
        ((9.5, 4.0), (5, 5), (2.0, 0.5), (5.5, 3.0)),
    ],
)
def test_centred_frame_origin(centre, size, step, origin):
    assert Frame.centred(centre, size, step).origin == origin


def test_crop_accepts_batches():
    stack = np.random.default_rng(0).normal(size=(2, 3, 6, 7))
    frame = Frame((0.3, 1.2), (0.7, 1.1), (5, 4))
    found = crop(stack, frame, interpolation="linear")
    assert found.shape == (2, 3, 5, 4)
    np.testing.assert_array_equal(found[1, 2], crop(stack[1, 2], frame, interpolation="linear"))


def test_crop_rounds_integers():
    image = np.array([[-3, 0, 4]], dtype=np.int16)
    found = crop(image, Frame((0.0, 0.3), (1.0, 1.0), (1, 2)), interpolation="linear")
    assert found.dtype == np.int16
    assert found.tolist() == [[-2, 1]]  # -2.1 and 1.2
