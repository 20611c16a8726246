"""Flow-SSN: the path from the base to the labels, and the Euler integration."""

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError

from helpers.tiny_models import batch, trained
from phiseg.models.flow_ssn import FlowSSNConfig
from phiseg.models.noise import draw_noise, seeded_generator

SIZE = (5, 7)  # not multiples of the stride 4
CLASSES = 3


@pytest.fixture
def model():
    config = FlowSSNConfig(
        channels=(4, 5, 6),
        blocks_per_level=1,
        num_classes=CLASSES,
        rank=2,
        monte_carlo=4,
        flow_channels=(4, 6),
        flow_blocks=1,
        num_steps=8,
    )
    return trained(config)


@torch.no_grad()
def test_flow_reaches_the_end_of_a_known_path(model, monkeypatch):
    """A network that knows the labels gives a straight path, which Euler steps follow without error."""
    image, labels = batch(model.config, SIZE, 2)
    visited = []

    def knows(features, position, time, size):
        visited.append((position, time))
        repeated = labels.repeat_interleave(len(position) // len(labels), dim=0)
        return 1e4 * F.one_hot(repeated, CLASSES).movedim(-1, 1).float()

    monkeypatch.setattr(model, "_predict", knows)
    noise = draw_noise(model.noise_shapes(SIZE), 2, 3, seeded_generator(0))
    logits = model.decode_samples(model.encode(image), noise, 3)
    assert (logits.argmax(2) == labels[:, None]).all()
    start, end = visited[0][0], 2 * F.one_hot(labels.repeat_interleave(3, dim=0), CLASSES).movedim(-1, 1) - 1
    for position, time in visited:
        t = time[:, None, None, None]
        torch.testing.assert_close(position, (1 - t) * start + t * end, atol=1e-5, rtol=1e-5)
    assert [float(time[0]) for _, time in visited] == [number / 8 for number in range(8)]


@torch.no_grad()
def test_flow_of_two_gaussians_matches_the_exact_solution(model, monkeypatch):
    """For two equally likely labels and a normal start, E[y | eta_t] = tanh(t eta / (1 - t)^2) is known."""
    model.config = model.config.model_copy(update={"num_steps": 400})

    def exact(features, position, time, size):
        t = time[:, None, None, None]
        advantage = t * (position[:, 1] - position[:, 0])[:, None] / (1 - t) ** 2
        return torch.cat([-advantage, advantage, torch.full_like(advantage, -1e9)], dim=1)

    image, _ = batch(model.config, SIZE, 1)
    monkeypatch.setattr(model, "_predict", exact)
    monkeypatch.setattr(
        model,
        "draw_logits",
        lambda encoding, noise, more_std: torch.cat(
            [-noise[1][:, :, :1], noise[1][:, :, :1], -torch.ones_like(noise[1][:, :, :1])], dim=2
        ),
    )
    noise = draw_noise(model.noise_shapes(SIZE), 1, 200, seeded_generator(1))
    labels = model.decode_samples(model.encode(image), noise, 200).argmax(2)
    assert set(labels.unique().tolist()) == {0, 1}
    # The flow is monotone and symmetric, so the sign of the start decides.
    assert (labels == (noise[1][:, :, 0] > 0)).float().mean() > 0.99


@torch.no_grad()
def test_base_has_noise_in_addition_to_the_gaussian(model):
    image, _ = batch(model.config, SIZE, 1)
    encoding = model.encode(image)
    mean, std, factor, _ = encoding.features
    noise = draw_noise(model.noise_shapes(SIZE), 1, 4000, seeded_generator(0))
    start = model.draw_logits(encoding, noise, more_std=model.config.base_std)[0]
    expected = (factor.square().sum(1) + std.square() + model.config.base_std**2).sqrt()
    torch.testing.assert_close(start.std(0), expected[0], rtol=0.1, atol=0)
    torch.testing.assert_close(start.mean(0), mean[0], rtol=0, atol=6 * float(expected.max()) / 4000**0.5)


def test_flow_does_not_train_the_base(model):
    """Only the likelihood of the SSN trains the spread of the base; through the flow, it would vanish."""
    image, labels = batch(model.config, SIZE, 2)
    model.zero_grad()
    model(image, labels, generator=seeded_generator(0)).total.backward()
    together = model.marginal.raw_std.weight.grad.clone()
    model.zero_grad()
    model.likelihood_loss(model.encode(image), labels, seeded_generator(0)).total.backward()
    torch.testing.assert_close(model.marginal.raw_std.weight.grad, together, rtol=1e-4, atol=1e-6)


def test_flow_network_with_more_levels_than_the_base_is_refused():
    with pytest.raises(ValidationError, match="more than channels"):
        FlowSSNConfig(channels=(4, 4), flow_channels=(4, 4, 4))
