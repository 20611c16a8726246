"""The ELBO is a lower bound of log p(s|x), which two other estimates agree on.

The model has five latent numbers, so that importance sampling from the posterior and plain Monte Carlo over the
prior both converge. Standard errors are stated; every comparison allows for four of them.
"""

import itertools
import math

import pytest
import torch
from torch.distributions import Normal

from helpers.tiny_models import trained
from phiseg.models.noise import draw_noise, seeded_generator
from phiseg.models.phiseg import PHiSegConfig
from phiseg.models.segmenter import with_labels

NUM_DRAWS = 32768


@pytest.fixture(scope="module")
def model():
    """Return a model with z_1 of 2x2 and z_2 of 1x1, whose posterior is neither the prior nor exact.

    It is made wider than the prior, and moved: importance weights are then bounded, and no KL is near zero.
    """
    config = PHiSegConfig(channels=(4, 4, 4), num_levels=2, latent_channels=1, blocks_per_level=1, head_init=0.1)
    model = trained(config, steps=60, size=(4, 4))
    with torch.no_grad():
        for head in (model.posterior.coarsest, *(level.head for level in model.posterior.levels)):
            head.mean.bias += 0.3
            head.raw_std.bias += 0.5
    return model


@pytest.fixture(scope="module")
def case():
    image = torch.randn(1, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    labels = torch.zeros(1, 4, 4, dtype=torch.long)
    labels[:, 1:, :2] = 1
    return image, labels


def log_density(distributions, latents):
    """Return log N(z | mean, std^2) per item in float64, summed over levels and elements."""
    return sum(
        Normal(d.mean.double(), d.std.double()).log_prob(z.double()).flatten(1).sum(1)
        for d, z in zip(distributions, latents, strict=True)
    )


def log_likelihood(logits, labels):
    """Return log p(s | z) per item in float64 for logits (N, K, H, W) and labels (H, W)."""
    return -torch.nn.functional.cross_entropy(
        logits.double(), labels.expand(len(logits), -1, -1), reduction="none"
    ).sum((1, 2))


@torch.no_grad()
def log_weights(model, image, labels, *, seed, number=NUM_DRAWS):
    """Return log [p(s|z) p(z|x) / q(z|s,x)] for z drawn from the posterior, network by network."""
    size = tuple(image.shape[-2:])
    noise = [level[0] for level in draw_noise(model.noise_shapes(size), 1, number, seeded_generator(seed))]
    x = model.pad(with_labels(image, labels, 2))
    posteriors, latents = model.posterior.draw(model.posterior.encode(x), noise)
    priors, _ = model.prior.draw(model.encode(image).features, None, given=dict(enumerate(latents)))
    return (
        log_likelihood(model.decode([latent[None] for latent in latents], size)[0][0], labels[0])
        + log_density(priors, latents)
        - log_density(posteriors, latents)
    )


def log_mean_exp(values):
    """Return the logarithm of the mean of exp(values), and its standard error by the delta method."""
    weights = (values - values.max()).exp()
    effective_number = weights.sum().square() / weights.square().sum()
    assert effective_number > len(weights) / 10  # otherwise the standard error is unreliable
    error = weights.std() / weights.mean() / math.sqrt(len(weights))
    return (values.max() + weights.mean().log()).item(), error.item()


@torch.no_grad()
def average_elbo(model, image, labels):
    """Return the mean `elbo` of the model over many draws, and its standard error."""
    many = 256
    elbos = torch.stack(
        [
            model(
                image.expand(many, -1, -1, -1), labels.expand(many, -1, -1), generator=seeded_generator(0, i)
            ).terms["elbo"]
            for i in range(32)
        ]
    ).double()
    return elbos.mean().item(), (elbos.std() / math.sqrt(len(elbos))).item()


@pytest.fixture(scope="module")
def importance(model, case):
    return log_weights(model, *case, seed=1)


def test_elbo_is_mean_log_importance_weight(model, case, importance):
    """The closed-form KL of `forward` must agree with the densities of the same latents."""
    elbo, elbo_error = average_elbo(model, *case)
    error = math.hypot(elbo_error, importance.std().item() / math.sqrt(NUM_DRAWS))
    assert error < 0.02
    assert elbo == pytest.approx(importance.mean().item(), abs=4 * error)


def test_elbo_is_below_log_p(model, case, importance):
    elbo, elbo_error = average_elbo(model, *case)
    log_p, error = log_mean_exp(importance)
    assert error < 0.02
    assert elbo + 4 * math.hypot(elbo_error, error) < log_p  # strictly, because this posterior is not exact


def test_importance_weighted_bound_increases_with_samples(importance):
    bounds = []
    for size in (1, 4, 16, 64, 256):
        groups = importance.view(-1, size)
        estimates = groups.logsumexp(1) - math.log(size)
        bounds.append(estimates.mean().item())
    assert all(low < high for low, high in itertools.pairwise(bounds))
    log_p, error = log_mean_exp(importance)
    assert bounds[-1] == pytest.approx(log_p, abs=4 * error)


def test_importance_sampling_agrees_with_prior_monte_carlo(model, case, importance):
    image, labels = case
    with torch.no_grad():
        samples = model.sample(image, NUM_DRAWS, generator=seeded_generator(2), chunk_size=4096)[0]
    brute, brute_error = log_mean_exp(log_likelihood(samples, labels[0]))
    log_p, error = log_mean_exp(importance)
    assert math.hypot(brute_error, error) < 0.02
    assert brute == pytest.approx(log_p, abs=4 * math.hypot(brute_error, error))


def test_probabilities_of_all_segmentations_sum_to_one(model):
    """A 2x2 image has 16 segmentations; each probability is estimated with its own posterior."""
    image = torch.randn(1, 1, 2, 2, generator=torch.Generator().manual_seed(3))
    total, variance = 0.0, 0.0
    for index, labels in enumerate(itertools.product((0, 1), repeat=4)):
        weights = log_weights(model, image, torch.tensor(labels).view(1, 2, 2), seed=index, number=4096).exp()
        total += weights.mean().item()
        variance += weights.var().item() / len(weights)
    assert math.sqrt(variance) < 0.02
    assert total == pytest.approx(1.0, abs=4 * math.sqrt(variance))
