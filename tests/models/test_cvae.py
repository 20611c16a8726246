"""Conditional VAE: a global latent vector concatenated to the coarsest features of a U-Net."""

import pytest
import torch
from torch.distributions import Normal
from torch.distributions import kl_divergence as reference_kl

from helpers.tiny_models import batch, record, trained
from phiseg.models.cvae import CVAEConfig
from phiseg.models.layers import upsample
from phiseg.models.noise import draw_noise, seeded_generator
from phiseg.models.registry import build_model

SIZE = (8, 12)
CHANNELS, LENGTH = (4, 5, 6), 3


@pytest.fixture(scope="module")
def model():
    config = CVAEConfig(
        channels=CHANNELS,
        blocks_per_level=1,
        latent_dimensions=LENGTH,
        num_classes=3,
        head_init=1.0,
        kl_weight=0.7,
    )
    return trained(config)


def entering(model, run):
    """Return the input of the coarsest decoder level during `run`: (N, 6 + 3 + 5, 4, 6)."""
    with record(lowest=model.body.decoder[-1]) as recorded, torch.no_grad():
        run()
    return torch.cat([args[0] for args, _ in recorded.calls["lowest"]])


def latents_of(model, run):
    """Return the latents concatenated to the coarsest features during `run`: (N, Z)."""
    tiled = entering(model, run)[:, CHANNELS[2] : CHANNELS[2] + LENGTH]
    torch.testing.assert_close(tiled, tiled[:, :, :1, :1].expand_as(tiled))  # the same vector at every pixel
    return tiled[:, :, 0, 0]


def test_cvae_samples_use_prior_latent(model):
    image, _ = batch(model.config, SIZE, 2)
    latents = latents_of(model, lambda: model.sample(image, 4, generator=seeded_generator(0)))
    (noise,) = draw_noise([(LENGTH,)], 2, 4, seeded_generator(0))
    with torch.no_grad():
        mean, std = model.prior(image)
    torch.testing.assert_close(latents, (mean[:, None] + std[:, None] * noise).flatten(0, 1))


def posterior_of(model, image, labels):
    planes = torch.stack([(labels == k).float() - 0.5 for k in range(3)], dim=1)
    with torch.no_grad():
        return model.posterior(torch.cat([image, planes], dim=1))


def test_cvae_training_uses_posterior_latent(model):
    image, labels = batch(model.config, SIZE, 2)
    latents = latents_of(model, lambda: model(image, labels, generator=seeded_generator(0)))
    (noise,) = draw_noise([(LENGTH,)], 2, 1, seeded_generator(0))
    mean, std = posterior_of(model, image, labels)
    torch.testing.assert_close(latents, mean + std * noise[:, 0])


def test_cvae_decoder_input_order(model):
    image, _ = batch(model.config, SIZE, 2)
    joined = entering(model, lambda: model.sample(image, 2, generator=seeded_generator(0)))
    with torch.no_grad():
        _, skip, coarsest = (level.repeat_interleave(2, dim=0) for level in model.body.encoder(image))
    torch.testing.assert_close(joined[:, : CHANNELS[2]], upsample(coarsest, (2, 2)))
    torch.testing.assert_close(joined[:, CHANNELS[2] + LENGTH :], skip)


def test_cvae_loss_is_cross_entropy_plus_weighted_kl(model):
    image, labels = batch(model.config, SIZE, 2)
    with record(output=model.output) as recorded, torch.no_grad():
        loss = model(image, labels, generator=seeded_generator(0))
        prior = model.prior(image)
    ((_, logits),) = recorded.calls["output"]
    entropy = torch.nn.functional.cross_entropy(logits, labels, reduction="sum") / 2
    kl = reference_kl(Normal(*posterior_of(model, image, labels)), Normal(*prior)).sum() / 2
    assert kl > 0.1
    torch.testing.assert_close(loss.terms["kl/0"], kl)
    torch.testing.assert_close(loss.total, entropy + 0.7 * kl)


def test_cvae_logits_depend_on_latent_and_image(model):
    """The logits depend on the latent, and on the image for a fixed latent."""
    (first, second), noise = batch(model.config, SIZE, 2)[0].split(1), torch.randn(1, 2, LENGTH)
    with torch.no_grad():
        one, other = model.encode(first), model.encode(second)
        logits = model.decode_samples(one, [noise], 2)
        mixed = one._replace(features=(*other.features[:-2], *one.features[-2:]))
        assert (logits[:, 0] != logits[:, 1]).any(dim=1).float().mean() > 0.9
        assert not torch.allclose(model.decode_samples(mixed, [noise], 2), logits)


def test_cvae_with_single_resolution_uses_latent():
    model = build_model(CVAEConfig(channels=(4,), latent_dimensions=2, blocks_per_level=1))
    image, labels = batch(model.config, SIZE, 2)
    model(image, labels, generator=seeded_generator(0)).total.backward()
    assert all(parameter.grad.any() for parameter in model.parameters())
    samples = model.sample(image, 2, generator=seeded_generator(0))
    assert not torch.equal(samples[:, 0], samples[:, 1])
