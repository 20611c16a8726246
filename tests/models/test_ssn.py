"""Stochastic Segmentation Network: a low-rank Gaussian over logits, and its Monte Carlo likelihood."""

import math

import pytest
import torch
from pydantic import ValidationError
from torch.distributions import Categorical, LowRankMultivariateNormal

from helpers.tiny_models import batch, trained
from phiseg.core.errors import ModelError
from phiseg.models.model_folder import load_weights
from phiseg.models.noise import draw_noise, seeded_generator
from phiseg.models.registry import build_model
from phiseg.models.ssn import SSNConfig
from phiseg.models.unet import UNetConfig

SIZE = (5, 7)  # not multiples of the stride 4
CLASSES, RANK, NUM_DRAWS = 3, 2, 6


@pytest.fixture(scope="module")
def model():
    config = SSNConfig(
        channels=(4, 5, 6),
        blocks_per_level=1,
        num_classes=CLASSES,
        rank=RANK,
        monte_carlo=NUM_DRAWS,
        head_init=1.0,
        min_std=0.05,
    )
    return trained(config)


def naive_logits(encoding, row, shared, single):
    """Return mean + F e1 + std e2 of one image with loops over vectors of length K * H * W."""
    mean, std, factor = (tensor[row].double() for tensor in encoding.features)
    columns = factor.reshape(RANK, -1)
    flat = [
        mean.flatten()[i]
        + sum(columns[q, i] * shared[q] for q in range(RANK))
        + std.flatten()[i] * single.flatten()[i]
        for i in range(mean.numel())
    ]
    return torch.stack(flat).reshape(mean.shape)


@torch.no_grad()
def test_ssn_loss_matches_reference(model):
    image, labels = batch(model.config, SIZE, 2)
    loss = model(image, labels, generator=seeded_generator(0))
    encoding = model.encode(image)
    shared, single = (
        part.double() for part in draw_noise(model.noise_shapes(SIZE), 2, NUM_DRAWS // 2, seeded_generator(0))
    )
    per_image = []
    for row in range(2):
        likelihoods = []
        for draw in range(NUM_DRAWS // 2):
            for sign in (1, -1):
                logits = naive_logits(encoding, row, sign * shared[row, draw], sign * single[row, draw])
                log_probs = Categorical(logits=logits.movedim(0, -1)).log_prob(labels[row])
                likelihoods.append(log_probs.sum().exp())  # 35 pixels: no underflow in float64
        per_image.append(-torch.stack(likelihoods).mean().log())
    torch.testing.assert_close(loss.total.double(), torch.stack(per_image).mean(), rtol=1e-5, atol=1e-5)
    assert loss.terms["cross_entropy/0"] == loss.total == -loss.terms["elbo"]


@torch.no_grad()
def test_ssn_sample_covariance(model):
    image, _ = batch(model.config, (2, 3), 1)
    number = 40000
    samples = model.sample(image, number, generator=seeded_generator(1))[0].flatten(1).double()
    mean, std, factor = (tensor[0].double() for tensor in model.encode(image).features)
    columns = factor.reshape(RANK, -1).T  # (K * H * W, Q)
    expected = LowRankMultivariateNormal(mean.flatten(), columns, std.flatten().square())
    covariance = expected.covariance_matrix
    variances = covariance.diagonal()
    errors = ((variances[:, None] * variances + covariance.square()) / number).sqrt()
    assert ((samples.T.cov() - covariance).abs() < 5 * errors).all()
    assert ((samples.mean(0) - expected.mean).abs() < 5 * (variances / number).sqrt()).all()
    off_diagonal = covariance - variances.diag()
    assert (off_diagonal.abs() > 5 * errors).float().mean() > 0.3  # the off-diagonal part is significant


@torch.no_grad()
def test_ssn_std_is_at_least_min_std(model):
    image, _ = batch(model.config, SIZE, 2)
    _, std, _ = model.encode(image).features
    assert (std > 0.05).all()
    assert std.shape == (2, CLASSES, *SIZE)


@torch.no_grad()
def test_ssn_loss_bound_tightens_with_draws(model):
    """On average over the noise, the loss decreases with the number of draws."""
    image, labels = batch(model.config, (3, 3), 1)
    samples = model.sample(image, 8192, generator=seeded_generator(2))[0].double()
    log_probs = Categorical(logits=samples.movedim(1, -1)).log_prob(labels).sum((1, 2))
    log_p = log_probs.logsumexp(0) - math.log(len(log_probs))
    many = 512
    images, targets = image.expand(many, -1, -1, -1), labels.expand(many, -1, -1)
    losses = []
    for number in (2, 20):
        model.config = model.config.model_copy(update={"monte_carlo": number})
        losses.append(model(images, targets, generator=seeded_generator(3)).total.double())
    model.config = model.config.model_copy(update={"monte_carlo": NUM_DRAWS})
    assert losses[0] > losses[1] > -log_p


@torch.no_grad()
def test_ssn_gaussian_is_float32_under_bfloat16(model):
    image, _ = batch(model.config, SIZE, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        encoding = model.encode(image)
        noise = draw_noise(model.noise_shapes(SIZE), 2, 2, seeded_generator(0))
        logits = model.decode_samples(encoding, noise, 2)
    assert {tensor.dtype for tensor in (*encoding.features, logits)} == {torch.float32}
    assert torch.equal(logits, model.decode_samples(encoding, noise, 2))


@pytest.mark.parametrize("number", [0, 1, 5])
def test_ssn_rejects_odd_monte_carlo(number):
    with pytest.raises(ValidationError, match="monte_carlo"):
        SSNConfig(monte_carlo=number)


def test_ssn_takes_its_mean_from_a_unet(model):
    network = {"channels": (4, 5, 6), "blocks_per_level": 1, "num_classes": CLASSES}
    unet = trained(UNetConfig(**network))
    torch.manual_seed(1)
    started = build_model(model.config).eval()
    factor = started.factor.weight.clone()
    load_weights(started, started.weights_from(unet), where="the test")
    image, _ = batch(model.config, SIZE, 2)
    torch.testing.assert_close(started.encode(image).features[0], unet.encode(image).features[0])
    assert torch.equal(started.factor.weight, factor)
    load_weights(started, started.weights_from(model), where="the test")
    assert torch.equal(started.factor.weight, model.factor.weight)
    weights = started.weights_from(trained(UNetConfig(**network | {"channels": (4, 5, 7)})))
    with pytest.raises(ModelError, match="weights of another model"):
        load_weights(started, weights, where="the test")
