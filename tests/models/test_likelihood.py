"""Likelihood network: residual logits from coarse to fine."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from helpers.tiny_models import batch, record, tiny_phiseg
from phiseg.models.noise import draw_noise, seeded_generator

SIZE = (16, 24)
LEVELS = 3


@pytest.fixture(scope="module", params=["coarsest", "finest"])
def model(request):
    return tiny_phiseg(latents_at=request.param, num_classes=3)


@pytest.fixture(scope="module")
def latents(model):
    return draw_noise(model.noise_shapes(SIZE), 2, 1, seeded_generator(0))


@torch.no_grad()
def decode(model, latents):
    return [logits.flatten(0, 1).numpy() for logits in model.decode(latents, SIZE)]


def is_constant_on_patches(array, side):
    *_, height, width = array.shape
    blocks = array.reshape(*array.shape[:-2], height // side, side, width // side, side)
    return np.ptp(blocks, axis=(-3, -1)).max() < 1e-4


def test_level_residual_is_constant_on_its_patches(model, latents):
    accumulated = [*decode(model, latents), 0.0]
    for level in range(LEVELS):
        residual = accumulated[level] - accumulated[level + 1]
        assert is_constant_on_patches(residual, 2**level)
        assert not is_constant_on_patches(residual, 2 ** (level + 1))


def test_accumulated_logits_are_sums_of_residuals(model, latents):
    with record(**{str(level): module for level, module in enumerate(model.likelihood.output)}) as recorded:
        accumulated = decode(model, latents)
    residuals = [recorded.calls[str(level)][0][1].numpy() for level in range(LEVELS)]
    full = [np.kron(residual, np.ones((2**level, 2**level))) for level, residual in enumerate(residuals)]
    for level in range(LEVELS):
        assert residuals[level].shape == (2, 3, SIZE[0] // 2**level, SIZE[1] // 2**level)
        np.testing.assert_allclose(accumulated[level], sum(full[level:]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("changed", range(LEVELS))
def test_latent_affects_its_level_and_finer_ones(model, latents, changed):
    others = [latent + (level == changed) for level, latent in enumerate(latents)]
    before, after = ([*decode(model, z), 0.0] for z in (latents, others))
    for level in range(LEVELS):
        assert np.array_equal(before[level], after[level]) == (level > changed)
        residuals = [accumulated[level] - accumulated[level + 1] for accumulated in (before, after)]
        assert np.allclose(*residuals, atol=1e-4) == (level > changed)  # finer levels depend on coarser ones


def test_gradient_of_finest_output_reaches_all_levels(model, latents):
    """The gradient flows through the sum of the residuals."""
    (finest, *_) = model.decode(latents, SIZE)
    gradients = torch.autograd.grad(finest.square().sum(), [layer.bias for layer in model.likelihood.output])
    assert all(gradient.any() for gradient in gradients)


def test_likelihood_does_not_depend_on_image(model):
    """For fixed latents, the segmentation does not depend on the image."""
    (one, _), (other, _) = (batch(model.config, SIZE, 1, seed=seed) for seed in (0, 1))
    noise = draw_noise(model.noise_shapes(SIZE), 1, 2, seeded_generator(0))
    given = dict(enumerate(noise))
    outputs = []
    with record(likelihood=model.likelihood) as recorded, torch.no_grad():
        for image in (one, other):
            kept = model.sample_latents(model.encode(image), noise, given=given)
            outputs.append(decode(model, kept)[0])
            assert not torch.equal(*(model.sample(i, 1, generator=seeded_generator(0)) for i in (one, other)))
    assert np.array_equal(*outputs)
    assert all(len(args) == 1 and len(args[0]) == LEVELS for args, _ in recorded.calls["likelihood"])


def test_decode_crops_logits_to_image(model, latents):
    with torch.no_grad():
        whole, cropped = model.decode(latents, SIZE), model.decode(latents, (13, 17))
    assert all(torch.equal(a[..., :13, :17], b) for a, b in zip(whole, cropped, strict=True))


def test_bilinear_upsampling_of_coarse_logits():
    nearest, smooth = (tiny_phiseg(upsampling=name, num_classes=3) for name in ("nearest", "bilinear"))
    smooth.load_state_dict(nearest.state_dict())
    latents = draw_noise(nearest.noise_shapes(SIZE), 2, 1, seeded_generator(0))
    with record(**{str(level): module for level, module in enumerate(nearest.likelihood.output)}) as recorded:
        decode(nearest, latents)
    coarse, middle, fine = (recorded.calls[name][0][1] for name in ("2", "1", "0"))
    expected = fine
    for residual in (coarse, middle):
        expected = expected + F.interpolate(residual, SIZE, mode="bilinear", align_corners=False)
    np.testing.assert_allclose(decode(smooth, latents)[0], expected.numpy(), rtol=1e-4, atol=1e-4)
