"""Monte Carlo dropout: masks are determined by the noise, in training and sampling."""

import pytest
import torch
import torch.nn.functional as F

from helpers.tiny_models import batch, trained
from phiseg.core.errors import ConfigError, ModelError
from phiseg.models.mcdropout import MCDropoutConfig, dropout_mask
from phiseg.models.model_folder import load_model, save_calibration, save_model
from phiseg.models.noise import draw_noise, seeded_generator
from phiseg.models.registry import build_model
from phiseg.models.temperatures import Calibration
from phiseg.models.unet import UNetConfig

SIZE = (14, 21)  # padded to 16 x 24
WIDTHS = {"channels": (4, 5, 6, 7), "blocks_per_level": 1, "num_classes": 3}


@pytest.fixture(scope="module", params=[1, 2, 4])
def model(request):
    return trained(MCDropoutConfig(**WIDTHS, dropout=0.3, dropout_levels=request.param), size=(16, 16))


def naive_logits(model, image, masks):
    """Run the U-Net on one padded image with the given dropout masks by position."""
    x, skips = image[None], []
    for level, blocks in enumerate(model.body.encoder.levels):
        x = blocks(F.avg_pool2d(x, 2) if level else x)
        x = x * masks.get(f"down {level}", 1)
        skips.append(x)
    for level in (2, 1, 0):
        below = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        x = model.body.decoder[level](torch.cat([below, skips[level]], dim=1))
        x = x * masks.get(f"up {level}", 1)
    return model.output(model.combine(x))[0]


PLACES = {
    1: ["down 3"],
    2: ["down 2", "down 3", "up 2"],
    4: ["down 0", "down 1", "down 2", "down 3", "up 2", "up 1", "up 0"],
}


@torch.no_grad()
def test_mcdropout_sample_is_unet_pass_with_masks(model):
    image, _ = batch(model.config, SIZE, 2)
    noise = draw_noise(model.noise_shapes(SIZE), 2, 3, seeded_generator(0))
    samples = model.decode_samples(model.encode(image), noise, 3)
    padded = F.pad(image, (0, 3, 0, 2), mode="replicate")
    threshold = torch.distributions.Normal(0, 1).icdf(torch.tensor(0.3))
    places = PLACES[model.config.dropout_levels]
    for row in range(2):
        for number in range(3):
            keep = [(tensor[row, number] > threshold).float() for tensor in noise]
            masks = {place: kept / 0.7 for place, kept in zip(places, keep, strict=True)}
            expected = naive_logits(model, padded[row], masks)[:, : SIZE[0], : SIZE[1]]
            torch.testing.assert_close(samples[row, number], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dropout", [0.0, 0.1, 0.5, 0.9])
def test_dropout_mask_rate_and_mean(dropout):
    number = 200_000
    mask = dropout_mask(torch.randn(number, generator=seeded_generator(0)), dropout)
    assert set(mask.unique().tolist()) <= {0.0, torch.tensor(1 / (1 - dropout)).item()}
    error = (dropout * (1 - dropout) / number) ** 0.5
    assert (mask == 0).double().mean().item() == pytest.approx(dropout, abs=4 * error + 1e-12)
    assert mask.double().mean().item() == pytest.approx(1, abs=4 * error / (1 - dropout) + 1e-6)


@torch.no_grad()
def test_mcdropout_samples_depend_on_noise(model):
    image, _ = batch(model.config, SIZE, 1)
    noise = draw_noise(model.noise_shapes(SIZE), 1, 2, seeded_generator(0))
    repeated = [tensor[:, [0, 1, 0]] for tensor in noise]
    samples = model.decode_samples(model.encode(image), repeated, 3)[0]
    torch.testing.assert_close(samples[0], samples[2])
    assert not torch.allclose(samples[0], samples[1], atol=1e-2)


@torch.no_grad()
def test_mcdropout_uses_every_mask(model):
    image, _ = batch(model.config, SIZE, 1)
    noise = draw_noise(model.noise_shapes(SIZE), 1, 1, seeded_generator(0))
    encoding = model.encode(image)
    first = model.decode_samples(encoding, noise, 1)
    for place in range(len(noise)):
        other = [-tensor if at == place else tensor for at, tensor in enumerate(noise)]
        assert not torch.allclose(model.decode_samples(encoding, other, 1), first, atol=1e-4), place


def test_mcdropout_without_dropout_equals_unet(model):
    plain = build_model(MCDropoutConfig(**WIDTHS, dropout=0.0, dropout_levels=model.config.dropout_levels)).eval()
    unet = build_model(UNetConfig(**WIDTHS)).eval()
    plain.load_state_dict(model.state_dict())
    unet.load_state_dict(model.state_dict())
    image, labels = batch(model.config, SIZE)
    expected = unet.sample(image, 1, generator=seeded_generator(0))
    samples = plain.sample(image, 3, generator=seeded_generator(0))
    torch.testing.assert_close(samples, expected.expand_as(samples), rtol=1e-4, atol=1e-5)
    losses = [network(image, labels, generator=seeded_generator(0)) for network in (plain, unet)]
    torch.testing.assert_close(losses[0].total, losses[1].total)
    assert losses[0].terms.keys() == losses[1].terms.keys()


def test_mcdropout_loss_is_cross_entropy_of_one_sample(model):
    image, labels = batch(model.config, SIZE)
    (logits,) = model.sample(image, 1, generator=seeded_generator(5)).unbind(1)
    expected = F.cross_entropy(logits, labels, reduction="none").sum((1, 2)).mean()
    loss = model(image, labels, generator=seeded_generator(5))
    torch.testing.assert_close(loss.total, expected)
    assert loss.terms == {"cross_entropy/0": loss.total.detach(), "elbo": -loss.total.detach()}


@torch.no_grad()
def test_mcdropout_encodes_deterministic_part_once(model):
    calls = []
    hooks = [
        level.register_forward_hook(lambda _, args, __: calls.append(len(args[0])))
        for level in model.body.encoder.levels
    ]
    model.sample(batch(model.config, SIZE, 2)[0], 3, generator=seeded_generator(0))
    for hook in hooks:
        hook.remove()
    coarser = model.config.dropout_levels - 1
    assert calls == [2] * (4 - coarser) + [6] * coarser


def test_mcdropout_rejects_too_many_dropout_levels():
    with pytest.raises(ConfigError, match=r"dropout_levels = 3 needs that many resolution levels, .* has 2"):
        MCDropoutConfig.parse({"channels": [4, 4], "dropout_levels": 3}, where="recipe.yaml")


def test_mcdropout_rejects_dropout_of_one():
    with pytest.raises(ConfigError, match="'dropout' = 1"):
        MCDropoutConfig.parse({"dropout": 1}, where="recipe.yaml")


def test_mcdropout_rejects_noise_temperature(model, tmp_path):
    noise = torch.randn(200_000, generator=seeded_generator(0))
    rates = {
        (rate, factor): float((dropout_mask(factor * noise, rate) == 0).float().mean())
        for rate in (0.25, 0.5)
        for factor in (1, 2)
    }
    assert rates[0.25, 1] == pytest.approx(0.25, abs=0.01)
    assert rates[0.25, 2] == pytest.approx(0.368, abs=0.01)  # P(noise < half of the 0.25 quantile, -0.6745)
    assert rates[0.5, 1] == rates[0.5, 2]
    assert set(model.takes_temperature) == {False}
    save_model(tmp_path / "model", model, preprocessing={}, provenance={}, card="")
    save_calibration(tmp_path / "model", Calibration(noise=(1.0,) * len(model.takes_temperature)), fit={})
    assert load_model(tmp_path / "model").config == model.config
    save_calibration(tmp_path / "model", Calibration(noise=(2.0,) * len(model.takes_temperature)), fit={})
    with pytest.raises(ModelError, match="does not support; run `phiseg calibrate` again"):
        load_model(tmp_path / "model")
