"""PHiSeg: parameter counts, positions of the latents, and step-by-step sampling."""

import pytest
import torch
import torch.nn.functional as F

from helpers.tiny_models import batch, record_phiseg, tiny_phiseg
from phiseg.core.errors import ConfigError, ModelError
from phiseg.models.noise import draw_noise, seeded_generator
from phiseg.models.phiseg import PHiSegConfig
from phiseg.models.registry import build_model
from phiseg.training.recipe import load_recipe

REFERENCE = (32, 64, 128, 192, 192, 192, 192)


def parameters(*modules):
    return sum(parameter.numel() for module in modules for parameter in module.parameters())


def on_paper(config):
    """Build a model on the meta device."""
    with torch.device("meta"):
        return build_model(config)


@pytest.mark.parametrize(
    "config",
    [PHiSegConfig(), PHiSegConfig(channels=REFERENCE, num_levels=5), load_recipe("phiseg-reference").model],
    ids=["defaults", "config", "recipe"],
)
def test_phiseg_reference_parameter_count(config):
    model = on_paper(config)
    assert parameters(model) == 17_819_186
    assert parameters(model.prior) == 5_981_812
    assert parameters(model.posterior) == 5_982_388
    assert parameters(model.likelihood) == 5_854_986
    assert parameters(model.prior, model.likelihood) == 11_836_798


@pytest.mark.parametrize(
    "config", [PHiSegConfig(num_levels=1), load_recipe("phiseg-l1").model], ids=["config", "recipe"]
)
def test_phiseg_l1_parameter_count(config):
    model = on_paper(config)
    assert parameters(model) == 8_786_314
    assert parameters(model.likelihood) == 65_666
    assert model.noise_shapes((128, 128)) == [(2, 2, 2)]


@pytest.mark.parametrize(
    ("recipe", "sides"),
    [("phiseg-reference", [32, 16, 8, 4, 2]), ("phiseg-paper", [128, 64, 32, 16, 8])],
)
def test_phiseg_latent_positions_by_recipe(recipe, sides):
    model = on_paper(load_recipe(recipe).model)
    assert model.noise_shapes((128, 128)) == [(2, side, side) for side in sides]
    encoding = model.encode(torch.empty(1, 1, 128, 128, device="meta"))
    assert [feature.shape[-2:] for feature in encoding.features] == [(side, side) for side in sides]
    latents = [torch.empty(1, 3, 2, side, side, device="meta") for side in sides]
    assert [logits.shape for logits in model.decode(latents, (128, 128))] == [(1, 3, 2, 128, 128)] * 5


@pytest.mark.parametrize("latents_at", ["coarsest", "finest"])
@pytest.mark.parametrize(("resolutions", "num_levels"), [(r, n) for r in (1, 2, 3, 4) for n in range(1, r + 1)])
def test_phiseg_trains_and_samples_with_any_num_levels(resolutions, num_levels, latents_at):
    channels = (4, 6, 5, 7)[:resolutions]
    model = tiny_phiseg(channels=channels, num_levels=num_levels, latents_at=latents_at, steps=1)
    offset = resolutions - num_levels if latents_at == "coarsest" else 0
    assert model.noise_shapes((16, 24)) == [
        (2, 16 // 2 ** (level + offset), 24 // 2 ** (level + offset)) for level in range(num_levels)
    ]
    image, labels = batch(model.config, (16, 24), 2)
    loss = model(image, labels, generator=seeded_generator(0))
    assert loss.total.isfinite()
    assert len(loss.terms) == 2 * num_levels + 1
    with torch.no_grad():
        noise = draw_noise(model.noise_shapes((16, 24)), 2, 3, seeded_generator(0))
        levels = model.sample_levels(model.encode(image), noise, 3)
    assert [level.shape for level in levels] == [(2, 3, 2, 16, 24)] * num_levels
    assert all(level.isfinite().all() for level in levels)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_levels": 8}, "num_levels = 8 needs that many resolution levels, but channels has 7"),
        ({"num_levels": 0}, "'num_levels' = 0"),
        ({"channels": []}, "'channels' = []"),
        ({"channels": [4, 0, 4, 4, 4]}, "'channels.1' = 0"),
        ({"min_std": 0.0}, "'min_std' = 0.0"),
        ({"latents_at": "finets"}, "'latents_at' = 'finets'"),
        ({"num_classes": 1}, "'num_classes' = 1"),
    ],
)
def test_phiseg_rejects_invalid_config(values, message):
    with pytest.raises(ConfigError) as caught:
        PHiSegConfig.parse(values, where="recipe")
    assert message in str(caught.value)


@pytest.fixture(scope="module")
def model():
    return tiny_phiseg()


@pytest.fixture(scope="module")
def inputs(model):
    """Return the encoding of two images and noise for three samples of each."""
    image, _ = batch(model.config, (13, 9), 2)
    with torch.no_grad():
        encoding = model.encode(image)
    return image, encoding, draw_noise(model.noise_shapes((13, 9)), 2, 3, seeded_generator(4))


@torch.no_grad()
def test_phiseg_single_steps_equal_sample(model, inputs):
    image, encoding, noise = inputs
    latents = model.sample_latents(encoding, noise)
    assert [latent.shape for latent in latents] == [level.shape for level in noise]
    logits = model.decode(latents, (13, 9))[0]
    assert torch.equal(logits, model.sample(image, 3, generator=seeded_generator(4)))
    assert torch.equal(logits, model.decode_samples(encoding, noise, 3))
    assert torch.equal(logits, model.sample_levels(encoding, noise, 3)[0])


@torch.no_grad()
@pytest.mark.parametrize("fixed", [{2}, {1}, {0}, {2, 1}, {0, 2}])
def test_sample_latents_keeps_given_levels(model, inputs, fixed):
    """Keep the coarse structure of a sample and redraw its details, or vice versa."""
    _, encoding, noise = inputs
    first = model.sample_latents(encoding, noise)
    fresh = draw_noise(model.noise_shapes((13, 9)), 2, 3, seeded_generator(5))
    again = model.sample_latents(encoding, fresh, given={level: first[level] for level in fixed})
    for level in range(3):
        assert torch.equal(again[level], first[level]) == (level in fixed)


@pytest.mark.parametrize(
    "wrong", [{"given": {3: torch.zeros(1)}}, {"given": {-1: torch.zeros(1)}}, {"temperatures": [1.0] * 2}]
)
def test_sample_latents_rejects_unknown_levels(model, inputs, wrong):
    _, encoding, noise = inputs
    with pytest.raises(ModelError, match="3 levels, 0 to 2"):
        model.sample_latents(encoding, noise, **wrong)


@torch.no_grad()
def test_sample_latents_with_temperatures_zero_and_one(model, inputs):
    _, encoding, noise = inputs
    for level in model.sample_latents(encoding, noise, temperatures=(0.0, 0.0, 0.0)):
        torch.testing.assert_close(level, level[:, :1].expand_as(level))
    plain, warm = (model.sample_latents(encoding, noise, temperatures=t) for t in (None, (1.0, 1.0, 1.0)))
    assert all(torch.equal(a, b) for a, b in zip(plain, warm, strict=True))


@torch.no_grad()
def test_sample_latents_temperature_scales_each_level(model, inputs):
    _, encoding, noise = inputs
    centre = model.sample_latents(encoding, noise, temperatures=(0.0, 0.0, 0.0))
    ones, halves = (model.sample_latents(encoding, noise, temperatures=(0.0, 0.0, t)) for t in (1.0, 0.5))
    torch.testing.assert_close(halves[2] - centre[2], 0.5 * (ones[2] - centre[2]))
    assert not torch.allclose(ones[0], centre[0])  # the means of the finer levels change as well


def test_shared_encoder_passes_prior_features_to_posterior():
    model = tiny_phiseg(shared_encoder=True)
    image, labels = batch(model.config, (16, 16))
    drawn = F.one_hot(labels, 2).movedim(-1, 1) - 0.5
    with record_phiseg(model) as recorded, torch.no_grad():
        model(image, labels, generator=seeded_generator(0))
        own = zip(model.posterior.encode(drawn), model.prior.encode(image), strict=True)
    expected = [ours + theirs for ours, theirs in own]
    assert len(model.posterior.encoder.levels[0]) == 1
    for level, features in enumerate(expected):
        (seen, *_), _ = recorded.calls[f"posterior/{level}"][0]
        torch.testing.assert_close(seen, features)
