"""Ensemble of independent U-Nets."""

import pytest
import torch

from helpers.tiny_models import batch, members_alone, naive_pick, trained
from phiseg.models.ensemble import EnsembleConfig
from phiseg.models.noise import draw_noise, seeded_generator
from phiseg.models.registry import build_model
from phiseg.models.unet import UNetConfig

SIZE = (6, 9)
WIDTHS = {"channels": (4, 5, 6), "blocks_per_level": 1, "num_classes": 3}
CONFIG = EnsembleConfig(**WIDTHS, members=4)


@pytest.fixture(scope="module")
def model():
    return trained(CONFIG)


@torch.no_grad()
def test_ensemble_sample_is_output_of_selected_member(model):
    image, _ = batch(CONFIG, SIZE, 2)
    outputs = [
        unet.sample(image, 1, generator=seeded_generator(9))[:, 0]
        for unet in members_alone(model, UNetConfig(**WIDTHS))
    ]
    samples = model.sample(image, 40, generator=seeded_generator(0))
    (noise,) = draw_noise([()], 2, 40, seeded_generator(0))
    picked = [[naive_pick(value, 4) for value in row] for row in noise.tolist()]
    for row in range(2):
        assert set(picked[row]) == {0, 1, 2, 3}
        for number, member in enumerate(picked[row]):
            torch.testing.assert_close(samples[row, number], outputs[member][row])


@torch.no_grad()
def test_ensemble_members_are_equally_likely(model):
    image, _ = batch(CONFIG, SIZE, 1)
    samples = model.sample(image, 4000, generator=seeded_generator(0))[0]
    different, counts = samples.unique(dim=0, return_counts=True)
    assert len(different) == 4
    assert (counts - 1000).abs().max() < 4 * (4000 * 0.25 * 0.75) ** 0.5


@pytest.mark.parametrize("training", [True, False])
def test_ensemble_loss_is_mean_of_member_losses(training):
    model = build_model(CONFIG).train(training)
    image, labels = batch(CONFIG, SIZE)
    losses = [
        unet(image, labels, generator=seeded_generator(0)).total
        for unet in members_alone(model, UNetConfig(**WIDTHS))
    ]
    loss = model(image, labels, generator=seeded_generator(0))
    torch.testing.assert_close(loss.total, sum(losses) / 4)
    assert loss.terms == {"cross_entropy/0": loss.total.detach(), "elbo": -loss.total.detach()}


def test_ensemble_member_is_trained_as_alone():
    torch.manual_seed(0)
    model = build_model(CONFIG).train()
    alone = members_alone(model, UNetConfig(**WIDTHS))
    for network in (model, *alone):
        optimizer = torch.optim.Adam(network.parameters(), 1e-3)
        for step in range(5):
            optimizer.zero_grad()
            network(*batch(CONFIG, SIZE, seed=step), generator=seeded_generator(step)).total.backward()
            optimizer.step()
    for unet, member in zip(alone, model.members, strict=True):
        for name, weight in unet.state_dict().items():
            torch.testing.assert_close(member.state_dict()[name], weight, rtol=1e-3, atol=1e-5)


def test_ensemble_members_have_different_initial_weights():
    kernels = [member.state_dict()["output.weight"] for member in build_model(CONFIG).members]
    assert not any(torch.equal(a, b) for i, a in enumerate(kernels) for b in kernels[:i])


@torch.no_grad()
def test_ensemble_elbo_is_lower_bound_of_log_likelihood(model):
    image, labels = batch(CONFIG, SIZE)
    log_probs = [
        unet.sample(image, 1, generator=seeded_generator(0))[:, 0]
        .log_softmax(1)
        .gather(1, labels[:, None])
        .sum((1, 2, 3))
        for unet in members_alone(model, UNetConfig(**WIDTHS))
    ]
    likelihood = torch.stack(log_probs).logsumexp(0) - torch.tensor(4.0).log()
    elbo = model(image, labels, generator=seeded_generator(0)).terms["elbo"]
    assert elbo < likelihood.mean()
    torch.testing.assert_close(elbo, torch.stack(log_probs).mean())


def test_ensemble_parameter_count():
    def count(config):
        return sum(parameter.numel() for parameter in build_model(config).parameters())

    assert count(CONFIG) == 4 * count(UNetConfig(**WIDTHS))
