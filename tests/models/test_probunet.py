"""Probabilistic U-Net: a global latent vector concatenated to the last features of a U-Net."""

import pytest
import torch

from helpers.tiny_models import batch, record, trained
from phiseg.models.noise import draw_noise, seeded_generator
from phiseg.models.probunet import ProbUNetConfig

SIZE = (8, 12)
WIDTH, LENGTH = 4, 3


@pytest.fixture(scope="module")
def model():
    config = ProbUNetConfig(
        channels=(WIDTH, 5, 6), blocks_per_level=1, latent_dimensions=LENGTH, num_classes=3, head_init=1.0
    )
    return trained(config)


def latents_of(model, run):
    """Return the latents concatenated to the features during `run`: (N, Z)."""
    with record(combine=model.combine) as recorded, torch.no_grad():
        run()
    joined = torch.cat([args[0] for args, _ in recorded.calls["combine"]])
    tiled = joined[:, WIDTH:]
    assert tiled.shape[1] == LENGTH
    assert (tiled == tiled[:, :, :1, :1]).all()  # the same vector at every pixel
    return tiled[:, :, 0, 0]


def test_probunet_samples_use_prior_latent(model):
    image, _ = batch(model.config, SIZE, 2)
    latents = latents_of(model, lambda: model.sample(image, 4, generator=seeded_generator(0)))
    (noise,) = draw_noise([(LENGTH,)], 2, 4, seeded_generator(0))
    with torch.no_grad():
        mean, std = model.prior(image)
    expected = mean[:, None] + std[:, None] * noise
    torch.testing.assert_close(latents, expected.flatten(0, 1))


def test_probunet_training_uses_posterior_latent(model):
    image, labels = batch(model.config, SIZE, 2)
    latents = latents_of(model, lambda: model(image, labels, generator=seeded_generator(0)))
    (noise,) = draw_noise([(LENGTH,)], 2, 1, seeded_generator(0))
    planes = torch.stack([(labels == k).float() - 0.5 for k in range(3)], dim=1)
    with torch.no_grad():
        mean, std = model.posterior(torch.cat([image, planes], dim=1))
    torch.testing.assert_close(latents, mean + std * noise[:, 0])


def test_vector_gaussian_averages_over_coarsest_pixels(model):
    image, _ = batch(model.config, SIZE, 2)
    with torch.no_grad():
        mean, std = model.prior(image)
        features = model.prior.encoder(image)[-1]
        head = model.prior.head
        stds = torch.nn.functional.softplus(head.raw_std(features)) + model.config.min_std
        torch.testing.assert_close(mean, head.mean(features).mean((2, 3)))
        torch.testing.assert_close(std, stds.mean((2, 3)))


def test_probunet_features_depend_on_image_only(model):
    image, _ = batch(model.config, SIZE, 2)
    with record(combine=model.combine) as recorded, torch.no_grad():
        model.sample(image, 2, generator=seeded_generator(0))
        features = model.body(image)
    ((joined,), _) = recorded.calls["combine"][0]
    torch.testing.assert_close(joined[:, :WIDTH], features.repeat_interleave(2, dim=0))
