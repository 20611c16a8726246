"""Normal distributions: KL compared with torch.distributions, precision, and minimum standard deviation."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributions import Normal
from torch.distributions import kl_divergence as torch_kl

from phiseg.models.gaussian import Gaussian, GaussianHead, kl_divergence

MIN_STD = 1e-4
quick = settings(max_examples=60)
seeds = st.integers(0, 10**6)
shapes = st.sampled_from([(1, 1), (3, 6), (2, 2, 3, 4), (1, 1, 1, 1)])


def random_gaussian(shape, seed, *, widest=3.0):
    """Return means up to 10 and standard deviations from the minimum to e^widest."""
    generator = torch.Generator().manual_seed(seed)
    mean = 20 * torch.rand(shape, generator=generator) - 10
    low = torch.tensor(MIN_STD).log()
    return Gaussian(mean, (low + (widest - low) * torch.rand(shape, generator=generator)).exp())


def reference(q, p):
    """Return KL[q || p] per item in double precision from torch.distributions."""
    q, p = (Normal(gaussian.mean.double(), gaussian.std.double()) for gaussian in (q, p))
    return torch_kl(q, p).flatten(1).sum(1)


@quick
@given(shapes, seeds)
def test_kl_matches_torch_distributions(shape, seed):
    q, p = random_gaussian(shape, seed), random_gaussian(shape, seed + 1)
    result = kl_divergence(q, p)
    assert result.shape == shape[:1]
    torch.testing.assert_close(result.double(), reference(q, p), rtol=1e-4, atol=1e-4)


@quick
@given(shapes, seeds, st.sampled_from([torch.bfloat16, torch.float16]))
def test_kl_uses_float32_for_low_precision(shape, seed, dtype):
    q, p = (Gaussian(*(t.to(dtype) for t in random_gaussian(shape, seed + i, widest=0.5))) for i in (0, 1))
    result = kl_divergence(q, p)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result.double(), reference(q, p), rtol=1e-4, atol=1e-4)


@quick
@given(shapes, seeds)
def test_kl_is_non_negative_and_zero_for_equal(shape, seed):
    q = random_gaussian(shape, seed)
    assert torch.equal(kl_divergence(q, q), torch.zeros(shape[0]))
    nearby = Gaussian(q.mean * (1 + 1e-6), q.std * (1 + 1e-6))
    assert (kl_divergence(nearby, q) >= -1e-6 * q.mean[0].numel()).all()


def test_kl_is_not_symmetric():
    q, p = random_gaussian((2, 3), 0), random_gaussian((2, 3), 1)
    assert not torch.allclose(kl_divergence(q, p), kl_divergence(p, q))


@pytest.mark.parametrize("q_std", [MIN_STD, 1.0, 1e4])
@pytest.mark.parametrize("p_std", [MIN_STD, 1.0, 1e4])
@pytest.mark.parametrize("distance", [0.0, 1e3])
def test_kl_and_gradient_are_finite_at_min_std(q_std, p_std, distance):
    tensors = [torch.full((1, 1), value, requires_grad=True) for value in (distance, q_std, 0.0, p_std)]
    result = kl_divergence(Gaussian(*tensors[:2]), Gaussian(*tensors[2:]))
    result.sum().backward()
    assert result.isfinite().all()
    assert all(tensor.grad.isfinite().all() for tensor in tensors)


@quick
@given(seeds, st.floats(0, 3))
def test_draw_is_mean_plus_scaled_noise(seed, temperature):
    gaussian, noise = random_gaussian((2, 3), seed), torch.randn(2, 3)
    expected = [
        m + temperature * s * e for m, s, e in zip(*(t.flatten().tolist() for t in (*gaussian, noise)), strict=True)
    ]
    result = gaussian.draw(noise, temperature).flatten().tolist()
    assert result == pytest.approx(expected, rel=1e-5, abs=1e-4)
    assert torch.equal(gaussian.draw(noise, 0.0), gaussian.mean)
    assert torch.equal(gaussian.draw(noise), gaussian.draw(noise, 1.0))


def constant_head(mean, raw_std, **options):
    head = GaussianHead(1, 1, min_std=MIN_STD, init_scale=1.0, **options)
    for layer, value in ((head.mean, mean), (head.raw_std, raw_std)):
        nn.init.zeros_(layer.weight)
        nn.init.constant_(layer.bias, value)
    return head


@pytest.mark.parametrize(
    ("raw", "std"), [(-1e4, MIN_STD), (0.0, 0.6931472 + MIN_STD), (5.0, 5.0067153 + MIN_STD), (1e4, 1e4)]
)
def test_head_std_is_softplus_plus_min_std(raw, std):
    gaussian = constant_head(2.5, raw)(torch.randn(2, 1, 3, 3))
    assert gaussian.mean.shape == gaussian.std.shape == (2, 1, 3, 3)
    torch.testing.assert_close(gaussian.mean, torch.full((2, 1, 3, 3), 2.5))
    torch.testing.assert_close(gaussian.std, torch.full((2, 1, 3, 3), std))


def test_head_is_float32_under_autocast():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        gaussian = GaussianHead(4, 2, min_std=MIN_STD, init_scale=1.0, mean_kernel=(3, 3))(torch.randn(1, 4, 5, 5))
    assert gaussian.mean.dtype == gaussian.std.dtype == torch.float32
    assert gaussian.mean.shape == gaussian.std.shape == (1, 2, 5, 5)


def test_head_init_scale_multiplies_initial_weights():
    weights = []
    for scale in (1.0, 0.1):
        torch.manual_seed(0)
        head = GaussianHead(4, 2, min_std=MIN_STD, init_scale=scale)
        weights.append(torch.cat([head.mean.weight, head.raw_std.weight]))
        assert not head.mean.bias.any()
        assert not head.raw_std.bias.any()
    torch.testing.assert_close(weights[1], 0.1 * weights[0])
