"""Hierarchy of latents: conditioning in training and sampling, and the drawing of latents."""

import pytest
import torch

from helpers.tiny_models import batch, record_phiseg, tiny_phiseg
from phiseg.models.noise import draw_noise, seeded_generator

SIZE = (16, 8)


@pytest.fixture(scope="module")
def model():
    return tiny_phiseg()


@pytest.fixture
def shifted():
    """Return a function that shifts the mean of the coarsest latent of one network by one."""

    def shift(side):
        model = tiny_phiseg()
        with torch.no_grad():
            getattr(model, side).coarsest.mean.bias += 1
        return model

    return shift


def distributions(model, run):
    """Return the distributions of all levels computed by `run(model)`: (side, level) -> Gaussian."""
    with record_phiseg(model) as recorded, torch.no_grad():
        run(model)
    outputs = {}
    for name, calls in recorded.calls.items():
        side, _, level = name.partition("/")
        if level and calls:
            outputs[side, int(level)] = calls[0][1]
    return outputs


def train(model):
    model(*batch(model.config, SIZE), generator=seeded_generator(0))


def sample(model):
    model.sample(batch(model.config, SIZE)[0], 2, generator=seeded_generator(0))


def same(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_training_passes_posterior_latents_to_both_networks(model, shifted):
    before, after = (distributions(m, train) for m in (model, shifted("posterior")))
    torch.testing.assert_close(after["posterior", 2].mean, before["posterior", 2].mean + 1)
    assert same(before["prior", 2], after["prior", 2])  # p(z_L | x) is not conditioned on a latent
    for level in (1, 0):
        assert not same(before["posterior", level], after["posterior", level])
        assert not same(before["prior", level], after["prior", level])


def test_kl_gradient_flows_through_posterior_latents(model):
    """The prior of a finer level depends on the posterior sample, so the gradient of eq. 2 passes through it."""
    with record_phiseg(model) as recorded:
        train(model)
    ((_, prior),) = recorded.calls["prior/0"]
    (gradient,) = torch.autograd.grad(prior.mean.sum() + prior.std.sum(), model.posterior.coarsest.mean.bias)
    assert gradient.any()


def test_training_draws_nothing_from_prior(model, shifted):
    before, after = (distributions(m, train) for m in (model, shifted("prior")))
    torch.testing.assert_close(after["prior", 2].mean, before["prior", 2].mean + 1)
    for key in before.keys() - {("prior", 2)}:
        assert same(before[key], after[key])


def test_sampling_uses_prior_only(model, shifted):
    before, after = (distributions(m, sample) for m in (model, shifted("prior")))
    assert {side for side, _ in before} == {"prior"}
    for level in (1, 0):
        assert not same(before["prior", level], after["prior", level])
    assert all(same(before[key], value) for key, value in distributions(shifted("posterior"), sample).items())


@pytest.fixture(scope="module")
def inputs(model):
    """Return features of two images and noise for three samples of each, folded."""
    image, _ = batch(model.config, SIZE, number=2)
    noise = draw_noise(model.noise_shapes(SIZE), 2, 3, seeded_generator(1))
    with torch.no_grad():
        return model.prior.encode(image), [level.flatten(0, 1) for level in noise]


def test_draw_samples_each_latent_from_its_distribution(model, inputs):
    features, noise = inputs
    with torch.no_grad():
        drawn, latents = model.prior.draw(features, noise)
    for level in range(3):
        torch.testing.assert_close(latents[level], drawn[level].mean + drawn[level].std * noise[level])


def test_draw_keeps_samples_with_their_image(model, inputs):
    """Item b * S + s belongs to image b."""
    features, noise = inputs
    with torch.no_grad():
        together = model.prior.draw(features, noise).latents
        for image in range(2):
            alone = model.prior.draw(
                [f[image : image + 1] for f in features], [n[3 * image : 3 * image + 3] for n in noise]
            )
            for level in range(3):
                latents = together[level][3 * image : 3 * image + 3]
                torch.testing.assert_close(latents, alone.latents[level], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("fixed", [0, 1, 2])
def test_draw_keeps_given_level_and_conditions_finer_ones(model, inputs, fixed):
    features, noise = inputs
    chosen = torch.randn_like(noise[fixed])
    with torch.no_grad():
        free = model.prior.draw(features, noise)
        held = model.prior.draw(features, noise, given={fixed: chosen})
    assert torch.equal(held.latents[fixed], chosen)
    for level in range(3):
        if level > fixed:  # coarser levels do not depend on it
            assert torch.equal(held.latents[level], free.latents[level])
        if level >= fixed:
            assert same(held.distributions[level], free.distributions[level])
        if level < fixed:
            assert not torch.allclose(held.latents[level], free.latents[level])


def test_draw_with_all_levels_given_needs_no_noise(model, inputs):
    features, noise = inputs
    given = {level: torch.randn_like(noise[level]) for level in range(3)}
    with torch.no_grad():
        with_noise = model.prior.draw(features, noise, given=given)
        without = model.prior.draw(features, None, given=given)
    assert all(torch.equal(without.latents[level], given[level]) for level in range(3))
    assert all(same(a, b) for a, b in zip(with_noise.distributions, without.distributions, strict=True))


def test_draw_with_zero_temperature_returns_means(model, inputs):
    features, noise = inputs
    with torch.no_grad():
        drawn, latents = model.prior.draw(features, noise, temperatures=(0.0, 0.0, 0.0))
        other, _ = model.prior.draw(features, [torch.randn_like(n) for n in noise], temperatures=(0.0, 0.0, 0.0))
    for level in range(3):
        assert torch.equal(latents[level], drawn[level].mean)
        assert torch.equal(other[level].mean, drawn[level].mean)


@pytest.mark.parametrize("heated", [0, 1, 2])
def test_draw_temperature_scales_std_of_its_level(model, inputs, heated):
    features, noise = inputs
    temperatures = [1.0, 1.0, 1.0]
    temperatures[heated] = 0.25
    with torch.no_grad():
        plain = model.prior.draw(features, noise)
        cooled = model.prior.draw(features, noise, temperatures=temperatures)
    mean = plain.distributions[heated].mean
    spread = 0.25 * (plain.latents[heated] - mean)
    torch.testing.assert_close(cooled.latents[heated] - mean, spread, rtol=1e-4, atol=1e-4)
    for level in range(heated + 1, 3):
        assert torch.equal(cooled.latents[level], plain.latents[level])


@pytest.mark.parametrize("latents_at", ["coarsest", "finest"])
def test_hierarchy_uses_all_resolutions(latents_at):
    """With latents at the finest levels, features of coarser levels are upsampled as in a U-Net."""
    model = tiny_phiseg(latents_at=latents_at)
    image = batch(model.config, SIZE)[0].requires_grad_()
    encoder_features = []
    model.prior.encoder.register_forward_hook(lambda module, args, output: encoder_features.extend(output))
    features = model.prior.encode(image)
    gradients = torch.autograd.grad(sum(f.square().sum() for f in features), encoder_features)
    assert all(gradient.any() for gradient in gradients)
