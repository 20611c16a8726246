import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import naive_metrics as naive
from phiseg.core.errors import DataError
from phiseg.metrics import dice, iou, most_probable, overlap, pairwise_iou

EMPTY = torch.zeros(1, 3, 3, dtype=torch.long)
FULL = torch.ones(1, 3, 3, dtype=torch.long)


def masks(count, num_classes, seed, size=(3, 4)):
    """Random masks; with few pixels, some labels are empty in one or both masks of many pairs."""
    return torch.randint(num_classes, (count, *size), generator=torch.Generator().manual_seed(seed))


sets = st.tuples(st.integers(1, 5), st.integers(1, 5), st.sampled_from([2, 3, 6]), st.integers(0, 10**6))


@settings(max_examples=50)
@given(sets, st.sampled_from([0.0, 0.5, 1.0]))
def test_pairwise_iou_matches_reference(sizes, both_empty):
    num_first, num_second, num_classes, seed = sizes
    first, second = masks(num_first, num_classes, seed), masks(num_second, num_classes, seed + 1)
    expected = [[naive.iou(a, b, num_classes, both_empty) for b in second.tolist()] for a in first.tolist()]
    result = pairwise_iou(first, second, num_classes=num_classes, both_empty=both_empty)
    torch.testing.assert_close(result, torch.tensor(expected, dtype=torch.float64))


@settings(max_examples=50)
@given(sets, st.sampled_from([0.0, 0.5, 1.0]))
@pytest.mark.parametrize(("score", "definition"), [(iou, naive.iou), (dice, naive.dice)])
def test_iou_and_dice_broadcast_and_match_reference(score, definition, sizes, both_empty):
    num_first, num_second, num_classes, seed = sizes
    first, second = masks(num_first, num_classes, seed), masks(num_second, num_classes, seed + 1)
    expected = [[definition(a, b, num_classes, both_empty) for b in second.tolist()] for a in first.tolist()]
    result = score(first[:, None], second, num_classes=num_classes, both_empty=both_empty)
    torch.testing.assert_close(result, torch.tensor(expected, dtype=torch.float64))


@settings(max_examples=50)
@given(st.integers(0, 10**6))
def test_dice_follows_from_iou_for_one_label(seed):
    first, second = masks(4, 2, seed), masks(4, 2, seed + 1)
    first[:, 0, 0] = 1
    overlap_ = iou(first, second, num_classes=2)
    torch.testing.assert_close(dice(first, second, num_classes=2), 2 * overlap_ / (1 + overlap_))


@pytest.mark.parametrize("score", [pairwise_iou, iou, dice])
def test_overlap_of_empty_masks(score):
    assert score(EMPTY, EMPTY, num_classes=2).item() == 1
    assert score(EMPTY, EMPTY, num_classes=2, both_empty=0.0).item() == 0
    assert score(EMPTY, FULL, num_classes=2).item() == 0
    assert score(FULL, EMPTY, num_classes=2).item() == 0
    assert score(FULL, FULL, num_classes=2).item() == 1


def test_overlap_of_absent_label_counts_as_agreement():
    other = FULL.clone()
    other[0, 0, :] = 0
    assert pairwise_iou(FULL, other, num_classes=3).item() == pytest.approx((6 / 9 + 1) / 2)
    assert pairwise_iou(FULL, other, num_classes=3, both_empty=0.0).item() == pytest.approx((6 / 9) / 2)


def test_overlap_ignores_background():
    first, second = torch.zeros(1, 10, 10, dtype=torch.long), torch.zeros(1, 10, 10, dtype=torch.long)
    first[0, 0, 0], second[0, 9, 9] = 1, 1
    assert pairwise_iou(first, second, num_classes=2).item() == 0


def test_pairwise_counts_do_not_depend_on_chunk_size(monkeypatch):
    first, second = masks(3, 3, seed=0), masks(4, 3, seed=1)
    whole = pairwise_iou(first, second, num_classes=3)
    monkeypatch.setattr(overlap, "_ELEMENTS_PER_CHUNK", 20)  # 5 of 12 pixels per chunk; the last chunk is shorter
    torch.testing.assert_close(pairwise_iou(first, second, num_classes=3), whole, rtol=0, atol=0)


@pytest.mark.parametrize("elements", [1, 15, 2**22])
def test_pairwise_counts_of_set_with_itself(monkeypatch, elements):
    monkeypatch.setattr(overlap, "_ELEMENTS_PER_CHUNK", elements)
    found = masks(5, 4, seed=0)
    for one, other in zip(
        overlap.pairwise_counts(found, found, num_classes=4),
        overlap.pairwise_counts(found, found.clone(), num_classes=4),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_pairwise_counts_are_exact_beyond_float32():
    size = 2**24 + 3
    first = torch.ones(1, size, dtype=torch.uint8)
    second = first.clone()
    second[0, 0] = 0
    assert pairwise_iou(first, second, num_classes=2).item() == (size - 1) / size


def test_pairwise_counts_do_not_depend_on_default_dtype():
    first = masks(3, 2, seed=0, size=(40, 41))
    expected = pairwise_iou(first, first, num_classes=2)
    try:
        torch.set_default_dtype(torch.bfloat16)
        torch.testing.assert_close(pairwise_iou(first, first, num_classes=2), expected, rtol=0, atol=0)
    finally:
        torch.set_default_dtype(torch.float32)


def test_pairwise_counts_are_exact_under_autocast():
    first = masks(3, 2, seed=0, size=(40, 41))
    expected = iou(first[:, None], first, num_classes=2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = pairwise_iou(first, first, num_classes=2)
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32])
def test_overlap_accepts_all_integer_dtypes(dtype):
    first, second = masks(3, 2, seed=0), masks(2, 2, seed=1)
    for score, a in ((pairwise_iou, first), (iou, first[:, None]), (dice, first[:, None])):
        expected = score(a, second, num_classes=2)
        torch.testing.assert_close(score(a.to(dtype), second.to(dtype), num_classes=2), expected)


def test_label_beyond_dtype_range_does_not_wrap():
    first = torch.full((1, 2, 2), 44, dtype=torch.uint8)  # 300 = 256 + 44
    for score in (pairwise_iou, iou, dice):
        result = score(first, first, num_classes=301, both_empty=0.0)
        assert result.item() == pytest.approx(1 / 300)


def test_pairwise_iou_accepts_volumes():
    first, second = masks(2, 3, seed=0, size=(2, 3, 4)), masks(3, 3, seed=1, size=(2, 3, 4))
    flat = pairwise_iou(first.flatten(2), second.flatten(2), num_classes=3)
    torch.testing.assert_close(pairwise_iou(first, second, num_classes=3), flat)


@pytest.mark.parametrize("score", [pairwise_iou, iou, dice])
@pytest.mark.parametrize(
    ("first", "second", "num_classes", "message"),
    [
        (FULL.float(), FULL, 2, "argmax"),
        (FULL, FULL * 255, 2, "255..255, outside 0..1"),
        (FULL, -FULL, 2, "-1..-1, outside 0..1"),
        (FULL, FULL, 1, "background"),
        (FULL[:0], FULL, 2, "at least one"),
        (FULL, FULL[..., :2], 2, "of equal size"),
        (FULL, FULL[..., :1], 2, "of equal size"),
        (FULL[0, 0], FULL[0, 0, :2], 2, "pass"),
    ],
)
def test_overlap_rejects_invalid_input(score, first, second, num_classes, message):
    with pytest.raises(DataError, match=message):
        score(first, second, num_classes=num_classes)


def test_overlap_rejects_shapes_that_do_not_broadcast():
    with pytest.raises(DataError, match="broadcast"):
        iou(FULL.expand(2, 3, 3), FULL.expand(3, 3, 3), num_classes=2)


def test_most_probable_equals_argmax_with_ties():
    values = torch.randint(3, (5, 4, 6, 7), generator=torch.Generator().manual_seed(0)).float()
    for dim in range(4):
        found = most_probable(values, dim)
        assert found.dtype == torch.uint8
        assert torch.equal(found.long(), values.argmax(dim))
