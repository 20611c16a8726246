import numpy as np
import pytest
import SimpleITK
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import naive_metrics as naive
from phiseg.core.errors import DataError
from phiseg.metrics import consensus


def masks(count, num_classes, seed, size=(4, 5)):
    return torch.randint(num_classes, (count, *size), generator=torch.Generator().manual_seed(seed))


def raters(count, seed, *, wrong=0.1, size=16, num_classes=2):
    """Return nested discs and raters with different error rates."""
    generator = np.random.default_rng(seed)
    y, x = np.mgrid[:size, :size] - size / 2
    truth = np.sum([np.hypot(x, y) < size / (2.5 + 2 * k) for k in range(num_classes - 1)], axis=0)
    errs = generator.random((count, size, size)) < generator.uniform(0, 2 * wrong, (count, 1, 1))
    found = np.where(errs, generator.integers(num_classes, size=(count, size, size)), truth)
    return torch.from_numpy(truth.astype(np.uint8)), torch.from_numpy(found.astype(np.uint8))


@settings(max_examples=50)
@given(st.integers(1, 6), st.sampled_from([2, 3, 5]), st.integers(0, 10**6))
def test_majority_and_mean_match_reference(count, num_classes, seed):
    found = masks(count, num_classes, seed)
    assert consensus(found, "majority", num_classes=num_classes).tolist() == naive.majority(
        found.tolist(), num_classes
    )
    mean = consensus(found, "mean", num_classes=num_classes)
    one_hot = torch.nn.functional.one_hot(found, num_classes).double().mean(0)
    torch.testing.assert_close(mean, one_hot.permute(2, 0, 1))


@settings(max_examples=25)
@given(st.integers(2, 6), st.integers(0, 10**6))
def test_staple_with_two_classes_matches_warfield(count, seed):
    _, found = raters(count, seed, wrong=0.2, size=10)
    expected = np.array(naive.staple(found.tolist(), 100)).reshape(10, 10)
    clear = np.abs(expected - 0.5) > 0.01
    labels = consensus(found, "staple", num_classes=2).numpy()
    np.testing.assert_array_equal(labels[clear], (expected > 0.5)[clear])


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("count", [3, 4, 6])
def test_staple_with_two_classes_matches_simpleitk(count, seed):
    _, found = raters(count, seed, wrong=0.2)
    images = [SimpleITK.GetImageFromArray(mask) for mask in found.numpy()]
    expected = SimpleITK.GetArrayFromImage(SimpleITK.STAPLE(images, 1.0))
    clear = np.abs(expected - 0.5) > 0.01
    labels = consensus(found, "staple", num_classes=2).numpy()
    np.testing.assert_array_equal(labels[clear], (expected > 0.5)[clear])


@pytest.mark.parametrize("seed", range(5))
def test_staple_with_more_classes_matches_simpleitk(seed):
    _, found = raters(5, seed, num_classes=4, size=24)
    images = [SimpleITK.GetImageFromArray(mask) for mask in found.numpy()]
    expected = SimpleITK.GetArrayFromImage(SimpleITK.MultiLabelSTAPLE(images, 0))
    assert (consensus(found, "staple", num_classes=4).numpy() == expected).mean() > 0.99


def test_staple_trusts_better_raters_more():
    generator = np.random.default_rng(0)
    truth = generator.random((30, 30)) < 0.4
    rates = np.array([0.02, 0.3, 0.3, 0.35, 0.35])
    found = torch.from_numpy((truth ^ (generator.random((5, 30, 30)) < rates[:, None, None])).astype(np.uint8))
    wrong = {
        how: int((consensus(found, how, num_classes=2).numpy() != truth).sum()) for how in ("majority", "staple")
    }
    assert wrong["staple"] < wrong["majority"] / 2


def test_staple_with_many_masks_does_not_underflow():
    truth, found = raters(300, seed=1, wrong=0.2, num_classes=3)
    assert torch.equal(consensus(found, "staple", num_classes=3), truth)


@pytest.mark.parametrize("how", ["majority", "staple"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
def test_consensus_of_identical_masks(how, dtype):
    for mask in (masks(1, 4, seed=0), torch.zeros(1, 3, 3), torch.full((1, 3, 3), 2)):
        mask = mask.to(dtype)
        for count in (1, 3):
            found = consensus(mask.expand(count, -1, -1), how, num_classes=4)
            assert torch.equal(found, mask[0])
            assert found.dtype == dtype


@pytest.mark.parametrize("how", ["majority", "staple"])
def test_consensus_ties_go_to_lowest_label(how):
    first, second = torch.tensor([[0, 0, 2, 2]]), torch.tensor([[2, 2, 0, 0]])
    assert consensus(torch.stack([first, second]), how, num_classes=3).tolist() == [[0, 0, 0, 0]]
    assert consensus(torch.stack([second, first]), how, num_classes=3).tolist() == [[0, 0, 0, 0]]


@pytest.mark.parametrize("how", ["majority", "mean", "staple"])
def test_consensus_is_invariant_to_order(how):
    for seed in range(5):
        _, found = raters(4, seed, num_classes=3)
        turned = consensus(found.flip(0), how, num_classes=3)
        assert torch.equal(turned, consensus(found, how, num_classes=3))


def test_consensus_rejects_unknown_method_and_missing_annotator():
    with pytest.raises(DataError, match="did you mean 'majority'"):
        consensus(masks(2, 2, 0), "majorty", num_classes=2)
    with pytest.raises(DataError, match="missing \\(255\\)"):
        consensus(torch.full((2, 2, 2), 255), "staple", num_classes=2)
