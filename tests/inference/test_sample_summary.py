"""Summaries of samples do not depend on the chunk size."""

import math

import pytest
import torch

from phiseg.inference.sample_summary import summarise_samples
from phiseg.metrics import gamma_map, mean_log_probs

B, S, K, H, W = 2, 7, 3, 4, 5


@pytest.fixture
def logits():
    return 4 * torch.randn(B, S, K, H, W, generator=torch.Generator().manual_seed(0))


def test_it_equals_the_direct_computation(logits):
    summaries = summarise_samples([logits])
    assert len(summaries) == B
    for image, summary in zip(logits, summaries, strict=True):
        probs = image.softmax(1)
        assert torch.equal(summary.labels, image.argmax(1).to(torch.uint8))
        torch.testing.assert_close(summary.mean_probs, probs.mean(0))
        torch.testing.assert_close(summary.mean_log_probs, mean_log_probs(probs))
        torch.testing.assert_close(summary.gamma, gamma_map(probs))


@pytest.mark.parametrize("chunk_size", range(1, S + 2))
def test_summary_is_independent_of_chunks(chunk_size, logits):
    whole = summarise_samples([logits])
    for first, second in zip(summarise_samples(logits.split(chunk_size, dim=1)), whole, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_summary_accepts_generator(logits):
    assert len(summarise_samples(chunk for chunk in logits.split(2, dim=1))) == B


@pytest.mark.parametrize("num_samples", [1, 9])
def test_certain_logits_stay_finite(num_samples):
    logits = torch.tensor([1e4, -1e4]).reshape(2, 1, 1).expand(1, num_samples, 2, 1, 1)
    (summary,) = summarise_samples([logits])
    torch.testing.assert_close(summary.mean_log_probs.flatten(), torch.tensor([0.0, math.log(1e-8)]))
    assert summary.gamma.item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_float32(dtype, logits):
    for summary, exact in zip(summarise_samples([logits.to(dtype)]), summarise_samples([logits]), strict=True):
        assert summary.mean_probs.dtype == torch.float32
        torch.testing.assert_close(summary.mean_probs, exact.mean_probs, rtol=0.05, atol=0.02)


def test_summaries_of_images_are_independent(logits):
    alone = summarise_samples([logits[1:]])[0]
    assert all(torch.equal(a, b) for a, b in zip(alone, summarise_samples([logits])[1], strict=True))
