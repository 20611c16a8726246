"""The ladder of latents: who is conditioned on whom in training and at sampling, and what a walk takes."""

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
    """Return a function that moves the mean of one network's coarsest latent by one, with nothing else changed."""

    def shift(side):
        model = tiny_phiseg()
        with torch.no_grad():
            getattr(model, side).coarsest.mean.bias += 1
        return model

    return shift


def distributions(model, run):
    """Return the distributions of every level that `run(model)` computed: (side, level) -> Gaussian."""
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


def test_in_training_the_posteriors_latents_feed_both_networks(model, shifted):
    before, after = (distributions(m, train) for m in (model, shifted("posterior")))
    torch.testing.assert_close(after["posterior", 2].mean, before["posterior", 2].mean + 1)
    assert same(before["prior", 2], after["prior", 2])  # p(z_L | x) has nothing below it
    for level in (1, 0):
        assert not same(before["posterior", level], after["posterior", level])
        assert not same(before["prior", level], after["prior", level])


def test_the_kl_teaches_the_posterior_through_its_latents(model):
    """The prior of a finer level is a function of the posterior's sample, and the gradient of eq. 2 knows it."""
    with record_phiseg(model) as recorded:
        train(model)
    ((_, prior),) = recorded.calls["prior/0"]
    (gradient,) = torch.autograd.grad(prior.mean.sum() + prior.std.sum(), model.posterior.coarsest.mean.bias)
    assert gradient.any()


def test_in_training_nothing_is_drawn_from_the_prior(model, shifted):
    before, after = (distributions(m, train) for m in (model, shifted("prior")))
    torch.testing.assert_close(after["prior", 2].mean, before["prior", 2].mean + 1)
    for key in before.keys() - {("prior", 2)}:
        assert same(before[key], after[key])


def test_at_sampling_the_prior_feeds_itself_and_the_posterior_is_not_run(model, shifted):
    before, after = (distributions(m, sample) for m in (model, shifted("prior")))
    assert {side for side, _ in before} == {"prior"}
    for level in (1, 0):
        assert not same(before["prior", level], after["prior", level])
    assert all(same(before[key], value) for key, value in distributions(shifted("posterior"), sample).items())


@pytest.fixture(scope="module")
def walk(model):
    """Return features of two images and noise for three samples of each, folded."""
    image, _ = batch(model.config, SIZE, number=2)
    noise = draw_noise(model.noise_shapes(SIZE), 2, 3, seeded_generator(1))
    with torch.no_grad():
        return model.prior.encode(image), [level.flatten(0, 1) for level in noise]


def test_a_walk_takes_each_latent_from_its_distribution(model, walk):
    features, noise = walk
    with torch.no_grad():
        drawn, latents = model.prior.draw(features, noise)
    for level in range(3):
        torch.testing.assert_close(latents[level], drawn[level].mean + drawn[level].std * noise[level])


def test_each_sample_belongs_to_its_own_image(model, walk):
    """Item b * S + s is image b: a wrong order would mix patients."""
    features, noise = walk
    with torch.no_grad():
        together = model.prior.draw(features, noise).latents
        for image in range(2):
            alone = model.prior.draw(
                [f[image : image + 1] for f in features], [n[3 * image : 3 * image + 3] for n in noise]
            )
            for level in range(3):
                latents = together[level][3 * image : 3 * image + 3]
                torch.testing.assert_close(latents, alone.latents[level], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_a_given_level_is_kept_and_the_finer_ones_follow_it(model, walk, kept):
    features, noise = walk
    chosen = torch.randn_like(noise[kept])
    with torch.no_grad():
        free = model.prior.draw(features, noise)
        held = model.prior.draw(features, noise, given={kept: chosen})
    assert torch.equal(held.latents[kept], chosen)
    for level in range(3):
        if level > kept:  # coarser levels know nothing of it
            assert torch.equal(held.latents[level], free.latents[level])
        if level >= kept:
            assert same(held.distributions[level], free.distributions[level])
        if level < kept:
            assert not torch.allclose(held.latents[level], free.latents[level])


def test_a_walk_with_every_level_given_needs_no_noise(model, walk):
    features, noise = walk
    given = {level: torch.randn_like(noise[level]) for level in range(3)}
    with torch.no_grad():
        with_noise = model.prior.draw(features, noise, given=given)
        without = model.prior.draw(features, None, given=given)
    assert all(torch.equal(without.latents[level], given[level]) for level in range(3))
    assert all(same(a, b) for a, b in zip(with_noise.distributions, without.distributions, strict=True))


def test_temperature_zero_walks_along_the_means(model, walk):
    features, noise = walk
    with torch.no_grad():
        drawn, latents = model.prior.draw(features, noise, temperatures=(0.0, 0.0, 0.0))
        other, _ = model.prior.draw(features, [torch.randn_like(n) for n in noise], temperatures=(0.0, 0.0, 0.0))
    for level in range(3):
        assert torch.equal(latents[level], drawn[level].mean)
        assert torch.equal(other[level].mean, drawn[level].mean)


@pytest.mark.parametrize("heated", [0, 1, 2])
def test_a_temperature_scales_the_spread_of_its_level(model, walk, heated):
    features, noise = walk
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
def test_every_resolution_is_used(latents_at):
    """With the latents at the finest levels, what lies below them comes up as in a U-Net."""
    model = tiny_phiseg(latents_at=latents_at)
    image = batch(model.config, SIZE)[0].requires_grad_()
    encoder_features = []
    model.prior.encoder.register_forward_hook(lambda module, args, output: encoder_features.extend(output))
    features = model.prior.encode(image)
    gradients = torch.autograd.grad(sum(f.square().sum() for f in features), encoder_features)
    assert all(gradient.any() for gradient in gradients)
