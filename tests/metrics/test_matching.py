import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import naive_metrics as naive
from phiseg.core.errors import DataError
from phiseg.metrics import best_dice, matched_iou, matching, pairwise_iou
from phiseg.metrics.matching import matched_mean


def masks(count, num_classes, seed, size=(2, 3)):
    return torch.randint(num_classes, (count, *size), generator=torch.Generator().manual_seed(seed))


counts = st.sampled_from([(1, 1), (1, 4), (2, 3), (3, 2), (4, 2), (6, 3), (5, 5)])  # least common multiples up to 6
classes = st.sampled_from([2, 3])
empties = st.sampled_from([0.0, 1.0])
seeds = st.integers(0, 10**6)
quick = settings(max_examples=30)


@quick
@given(counts, classes, empties, seeds)
@pytest.mark.parametrize("largest", [500, 0], ids=["Hungarian", "transport"])
def test_matched_iou_is_the_best_matching(largest, sizes, num_classes, both_empty, seed):
    samples, annotations = masks(sizes[0], num_classes, seed), masks(sizes[1], num_classes, seed + 1)
    expected = naive.matched_iou(samples.tolist(), annotations.tolist(), num_classes, both_empty)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matching, "_MAX_REPLICAS", largest)
        found = matched_iou(samples, annotations, num_classes=num_classes, both_empty=both_empty)
    assert found == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("num_samples", "num_annotators"), [(100, 4), (100, 3), (16, 6)])
def test_matched_iou_copies_and_transport_agree(num_samples, num_annotators, monkeypatch):
    similarity = pairwise_iou(masks(num_samples, 3, 0, (4, 4)), masks(num_annotators, 3, 1, (4, 4)), num_classes=3)
    copies = matched_mean(similarity)
    monkeypatch.setattr(matching, "_MAX_REPLICAS", 0)
    assert matched_mean(similarity) == pytest.approx(copies, abs=1e-8)
    assert matched_mean(similarity.T) == pytest.approx(copies, abs=1e-8)


def test_matched_iou_of_1000_samples_and_6_annotators():
    annotations = masks(6, 2, seed=0, size=(8, 8))
    samples = annotations.repeat(167, 1, 1)[:1000]  # two of them are drawn 166 times, the others 167 times
    found = matched_iou(samples, annotations, num_classes=2)
    assert 0.998 < found < 1


@quick
@given(st.integers(1, 4), st.integers(1, 3), classes, seeds)
def test_matched_iou_is_one_for_equal_distributions(count, times, num_classes, seed):
    annotations = masks(count, num_classes, seed)
    samples = annotations.repeat(times, 1, 1).flip(0)
    assert matched_iou(samples, annotations, num_classes=num_classes) == pytest.approx(1)


def test_matched_iou_uses_all_samples():
    annotations = torch.tensor([[[1, 1, 0, 0]]])
    samples = torch.tensor([[[1, 1, 0, 0]], [[0, 0, 1, 1]], [[0, 0, 1, 1]], [[0, 0, 1, 1]]])
    assert matched_iou(samples, annotations, num_classes=2) == 0.25
    assert best_dice(samples, annotations, num_classes=2) == 1


@quick
@given(st.integers(1, 5), st.integers(1, 5), st.sampled_from([2, 3, 5]), empties, seeds)
def test_best_dice_matches_reference(num_samples, num_annotators, num_classes, both_empty, seed):
    samples, annotations = masks(num_samples, num_classes, seed), masks(num_annotators, num_classes, seed + 1)
    expected = naive.best_dice(samples.tolist(), annotations.tolist(), num_classes, both_empty)
    found = best_dice(samples, annotations, num_classes=num_classes, both_empty=both_empty)
    assert found == pytest.approx(expected)


def test_best_dice_of_empty_annotation():
    empty, full = torch.zeros(1, 2, 2, dtype=torch.uint8), torch.ones(1, 2, 2, dtype=torch.uint8)
    for score in (matched_iou, best_dice):
        assert score(empty, empty, num_classes=2) == 1
        assert score(full, empty, num_classes=2) == 0


@pytest.mark.parametrize("score", [matched_iou, best_dice])
def test_matching_rejects_masks_of_different_size(score):
    with pytest.raises(DataError, match="cannot be paired"):
        score(masks(2, 2, 0), masks(2, 2, 0, size=(3, 3)), num_classes=2)
