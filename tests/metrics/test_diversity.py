import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import naive_metrics as naive
from phiseg.core.errors import DataError
from phiseg.metrics import diversity, energy_distance


def masks(count, num_classes, seed, size=(3, 3)):
    return torch.randint(num_classes, (count, *size), generator=torch.Generator().manual_seed(seed))


@settings(max_examples=30)
@given(st.integers(2, 6), st.sampled_from([2, 3, 5]), st.sampled_from([0.0, 1.0]), st.integers(0, 10**6))
def test_diversity_is_mean_over_distinct_pairs(count, num_classes, both_empty, seed):
    found = masks(count, num_classes, seed)
    expected = naive.diversity(found.tolist(), num_classes, both_empty)
    assert diversity(found, num_classes=num_classes, both_empty=both_empty) == pytest.approx(expected)


def test_diversity_is_a_term_of_unbiased_ged():
    samples, annotations = masks(5, 3, seed=0), masks(4, 3, seed=1)
    distance = energy_distance(samples, annotations, num_classes=3)
    both = diversity(samples, num_classes=3) + diversity(annotations, num_classes=3)
    assert distance.ged_unbiased == pytest.approx(2 * distance.cross - both)


def test_diversity_of_identical_masks_and_of_one_mask():
    assert diversity(masks(1, 2, seed=0).expand(4, -1, -1), num_classes=2) == 0
    assert diversity(torch.zeros(4, 2, 2, dtype=torch.uint8), num_classes=2) == 0
    assert diversity(masks(1, 2, seed=0), num_classes=2) is None


def test_diversity_rejects_missing_annotator():
    with pytest.raises(DataError, match="missing \\(255\\)"):
        diversity(torch.tensor([[[0, 255]], [[0, 1]]]), num_classes=2)
