import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from helpers import naive_metrics as naive
from phiseg.core.errors import DataError
from phiseg.metrics import (
    EPSILON,
    error_maps,
    expected_cross_entropy,
    gamma_map,
    mean_log_probs,
    ncc,
    s_ncc,
)

seeds = st.integers(0, 10**6)
quick = settings(max_examples=50)


def softmax_samples(num_samples, num_classes, seed, *, size=(3, 4), sharpness=2.0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(num_samples, num_classes, *size, generator=generator, dtype=torch.float64)
    return logits.softmax(1).to(dtype)


def labels(count, num_classes, seed, size=(3, 4)):
    return torch.randint(num_classes, (count, *size), generator=torch.Generator().manual_seed(seed))


def noise(*size, seed):
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def float64(values):
    return torch.tensor(values, dtype=torch.float64)


@quick
@given(st.integers(1, 5), st.integers(1, 3), st.sampled_from([2, 3, 5]), st.sampled_from([0.5, 5.0, 50.0]), seeds)
def test_gamma_errors_and_s_ncc_match_reference(num_samples, num_annotators, num_classes, sharpness, seed):
    probs = softmax_samples(num_samples, num_classes, seed, sharpness=sharpness)
    annotations = labels(num_annotators, num_classes, seed)
    gamma, errors = gamma_map(probs), error_maps(probs, annotations)
    expected_gamma = naive.gamma(probs.tolist())
    expected_errors = [naive.error(probs.tolist(), annotation) for annotation in annotations.tolist()]
    torch.testing.assert_close(gamma, float64(expected_gamma))
    torch.testing.assert_close(errors, float64(expected_errors))
    correlations = [naive.pearson(expected_gamma, error) for error in expected_errors]
    result = s_ncc(gamma, errors)
    assert result.value == pytest.approx(sum(correlations) / num_annotators, abs=1e-9)
    assert result.num_constant == 0


def test_gamma_averages_logarithms():
    probs = torch.tensor([[0.9, 0.1], [0.3, 0.7]]).reshape(2, 2, 1, 1)
    expected = -0.6 * (math.log(0.9) + math.log(0.3)) / 2 - 0.4 * (math.log(0.1) + math.log(0.7)) / 2
    assert gamma_map(probs).item() == pytest.approx(expected)
    entropy_of_mean = -0.6 * math.log(0.6) - 0.4 * math.log(0.4)
    assert gamma_map(probs).item() > entropy_of_mean + 0.1


@quick
@given(st.integers(1, 6), st.sampled_from([2, 3, 5]), st.sampled_from([0.5, 5.0, 500.0]), seeds)
def test_gamma_is_at_least_entropy_of_mean(num_samples, num_classes, sharpness, seed):
    probs = softmax_samples(num_samples, num_classes, seed, sharpness=sharpness)
    gamma = gamma_map(probs)
    mean = probs.mean(0)
    assert (gamma >= -EPSILON).all()
    # The 1e-8 in the logarithm subtracts at most 1e-8 per class.
    assert (gamma >= torch.special.entr(mean).sum(0) - num_classes * EPSILON - 1e-12).all()


def test_expected_cross_entropy_of_one_hot_target_is_error_map():
    probs, annotations = softmax_samples(4, 3, seed=0), labels(2, 3, seed=1)
    one_hot = torch.nn.functional.one_hot(annotations, 3).movedim(-1, 1)  # (A, K, H, W)
    torch.testing.assert_close(
        expected_cross_entropy(one_hot, mean_log_probs(probs)), error_maps(probs, annotations)
    )


def test_error_of_certain_mistake_is_log_epsilon():
    probs = torch.tensor([1.0, 0.0]).reshape(1, 2, 1, 1)
    assert error_maps(probs, torch.tensor([[[1]]])).item() == pytest.approx(-math.log(EPSILON))
    assert mean_log_probs(probs, eps=1e-3).flatten()[1].item() == pytest.approx(math.log(1e-3))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_mean_log_probs_keeps_epsilon_in_half_precision(dtype):
    probs = torch.tensor([1.0, 0.0], dtype=dtype).reshape(1, 2, 1, 1)
    result = error_maps(probs, torch.tensor([[[1]]]))
    assert result.dtype == torch.float32
    assert result.item() == pytest.approx(-math.log(EPSILON))


@quick
@given(seeds)
def test_ncc_is_pearson_correlation(seed):
    first, second = noise(3, 5, seed=seed), noise(4, 3, 5, seed=seed + 1) + noise(3, 5, seed=seed)
    expected = [naive.pearson(first.tolist(), other) for other in second.tolist()]
    torch.testing.assert_close(ncc(first, second), float64(expected))
    torch.testing.assert_close(ncc(second, first), float64(expected))


@quick
@given(seeds, st.floats(1e-3, 1e3), st.floats(-1e3, 1e3))
def test_ncc_is_invariant_to_scale_and_offset(seed, scale, offset):
    first, second = noise(3, 5, seed=seed), noise(3, 5, seed=seed + 1)
    value = ncc(first, second)
    torch.testing.assert_close(ncc(first, scale * second + offset), value, atol=1e-8, rtol=0)
    torch.testing.assert_close(ncc(first, -scale * second + offset), -value, atol=1e-8, rtol=0)


@quick
@given(seeds, st.lists(st.floats(-1e3, 1e3, width=32), min_size=6, max_size=6))
def test_ncc_is_in_minus_one_to_one(seed, values):
    first = float64(values).reshape(2, 3)
    for second in (first, -first, noise(2, 3, seed=seed)):
        assert -1 <= ncc(first, second).item() <= 1


@quick
@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e3))
def test_ncc_of_map_with_itself_is_one(offset, scale):
    ramp = torch.arange(6.0, dtype=torch.float64).reshape(2, 3) * scale + offset
    assume(ramp.std() > 1e-8)
    assert ncc(ramp, ramp).item() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("scale", [1e-200, 1e-30, 1e30, 1e200])
def test_ncc_does_not_overflow_or_underflow(scale):
    first, second = noise(3, 5, seed=0), noise(3, 5, seed=1)
    torch.testing.assert_close(ncc(first * scale, second), ncc(first, second))


def test_ncc_uses_float64_for_float32_maps():
    first = (1000 + noise(20, 20, seed=0)).float()  # float32 sums of squares would lose the variance
    second = (1000 + noise(20, 20, seed=0) + noise(20, 20, seed=1)).float()
    expected = naive.pearson(first.tolist(), second.tolist())
    assert ncc(first, second).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("value", [0.0, 0.1, -3.7, 1e-30, 12345.678])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ncc_of_constant_map_is_declared_value(value, dtype):
    flat = torch.full((7, 9), value, dtype=dtype)
    other = noise(7, 9, seed=0).to(dtype)
    assert ncc(flat, other).item() == 0
    assert ncc(other, flat, constant=0.25).item() == 0.25
    assert ncc(flat, flat, constant=1.0).item() == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ncc_treats_rounding_noise_as_constant(dtype):
    flat = torch.full((7, 9), 0.1, dtype=dtype)
    flat[::2] = torch.nextafter(flat[::2], torch.ones((), dtype=dtype))
    assert ncc(flat, flat).item() == 0
    flat[0, 0] *= 1.001
    assert ncc(flat, flat).item() == pytest.approx(1)


def test_s_ncc_counts_constant_maps():
    gamma, errors = noise(4, 4, seed=0), torch.stack([noise(4, 4, seed=0), torch.ones(4, 4), torch.zeros(4, 4)])
    assert s_ncc(gamma, errors) == (pytest.approx(1 / 3), 2)
    assert s_ncc(gamma, errors, constant=1.0) == (pytest.approx(1), 2)
    assert s_ncc(torch.zeros(4, 4), errors) == (0, 3)


def test_s_ncc_of_certain_model_is_defined():
    probs = torch.zeros(5, 2, 4, 4)
    probs[:, 0] = 1
    result = s_ncc(gamma_map(probs), error_maps(probs, labels(3, 2, seed=0, size=(4, 4))))
    assert result == (0, 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gamma_map(torch.randn(3, 2, 4, 4)), "softmax"),
        (lambda: gamma_map(2 + torch.rand(3, 2, 4, 4)), "softmax"),
        (lambda: gamma_map(torch.full((3, 2, 4, 4), math.nan)), "softmax"),
        (lambda: gamma_map(torch.rand(2, 4, 4)), r"\(S, K, \*size\)"),
        (lambda: mean_log_probs(torch.rand(0, 2, 4, 4)), "at least one sample"),
        (lambda: error_maps(torch.rand(3, 2, 4, 4), torch.full((1, 4, 4), 255)), "missing"),
        (lambda: error_maps(torch.rand(3, 2, 4, 4), torch.zeros(1, 4, 4)), "argmax"),
        (lambda: error_maps(torch.rand(3, 2, 4, 4), labels(1, 2, seed=0, size=(4, 3))), r"\(A, \*size\)"),
        (lambda: error_maps(torch.rand(3, 2, 4, 4), labels(4, 2, seed=0, size=(4,))), r"\(A, \*size\)"),
        (lambda: expected_cross_entropy(torch.rand(3, 4, 4), torch.rand(2, 4, 4)), "does not match"),
        (lambda: ncc(torch.rand(4, 4), torch.rand(4, 1)), "of equal size"),
        (lambda: ncc(torch.rand(2, 4, 4), torch.rand(3, 4, 4)), "broadcast"),
        (lambda: ncc(torch.rand(4, 4), torch.full((4, 4), math.inf)), "infinity"),
        (lambda: ncc(torch.rand(4, 4), torch.full((4, 4), math.nan)), "NaN"),
        (lambda: s_ncc(torch.rand(4, 4), torch.rand(4, 4)), "one image or volume at a time"),
        (lambda: s_ncc(torch.rand(2, 3, 4, 4), torch.rand(3, 2, 3, 4, 4)), "one image or volume at a time"),
        (lambda: s_ncc(torch.rand(4, 4), torch.rand(0, 4, 4)), "do not match"),
    ],
)
def test_ncc_functions_reject_invalid_input(call, message):
    with pytest.raises(DataError, match=message):
        call()
