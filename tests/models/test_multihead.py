"""Multi-head U-Net and the relaxed oracle loss."""

from math import exp, log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.tiny_models import batch, naive_pick, record, trained
from phiseg.core.errors import ConfigError
from phiseg.models.multihead import MultiHeadConfig, oracle_loss
from phiseg.models.noise import draw_noise, seeded_generator

SIZE = (6, 9)
CONFIG = MultiHeadConfig(channels=(4, 5, 6), blocks_per_level=1, num_classes=3, heads=4)


@pytest.fixture(scope="module")
def model():
    return trained(CONFIG)


def naive_posterior(losses, relaxation):
    """Return q of each head of one image."""
    best = min(range(len(losses)), key=losses.__getitem__)
    return [1 - relaxation if m == best else relaxation / (len(losses) - 1) for m in range(len(losses))]


def naive_oracle_loss(losses, relaxation):
    """Return the relaxed loss and the KL, both averaged over the images."""
    loss = divergence = 0.0
    for image in losses:
        posterior = naive_posterior(image, relaxation)
        for q, value in zip(posterior, image, strict=True):
            loss += q * value / len(losses)
            divergence += q * log(q * len(image)) / len(losses) if q else 0.0
    return loss, divergence


tables = st.integers(2, 6).flatmap(
    lambda heads: st.lists(
        st.lists(st.floats(0, 1000, width=32), min_size=heads, max_size=heads, unique=True), min_size=1, max_size=4
    )
)


@given(losses=tables, relaxation=st.sampled_from([0.0, 0.05, 0.3, 0.5]))
def test_oracle_loss_matches_reference(losses, relaxation):
    expected, divergence = naive_oracle_loss(losses, relaxation)
    total, terms = oracle_loss(torch.tensor(losses), relaxation)
    assert terms["cross_entropy/0"].item() == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert terms["kl/0"].item() == pytest.approx(divergence, abs=1e-5)
    assert total.item() == pytest.approx(expected + divergence, rel=1e-5, abs=1e-5)
    assert terms["elbo"].item() == -total.item()


@given(losses=tables)
def test_oracle_loss_without_relaxation_uses_best_head(losses):
    best = sum(map(min, losses)) / len(losses)
    assert oracle_loss(torch.tensor(losses), 0.0).terms["cross_entropy/0"].item() == pytest.approx(best, rel=1e-5)


@given(losses=tables, relaxation=st.sampled_from([0.0, 0.05, 0.3]))
def test_oracle_elbo_is_lower_bound_of_log_likelihood(losses, relaxation):
    likelihood = 0.0
    for image in losses:
        best = min(image)
        mixture = sum(exp(best - value) for value in image) / len(image)
        likelihood += (log(mixture) - best) / len(losses)
    assert oracle_loss(torch.tensor(losses), relaxation).terms["elbo"].item() <= likelihood + 1e-3


def test_oracle_loss_gradient_is_posterior_weight():
    values = [[3.0, 1.0, 2.0], [5.0, 6.0, 4.0]]
    losses = torch.tensor(values, requires_grad=True)
    oracle_loss(losses, 0.1).total.backward()
    torch.testing.assert_close(losses.grad, torch.tensor([[0.05, 0.9, 0.05], [0.05, 0.05, 0.9]]) / 2)


@pytest.mark.parametrize("training", [True, False])
def test_multihead_loss_is_oracle_loss_of_heads(model, training):
    model.train(training)
    image, labels = batch(CONFIG, (8, 12))
    with record(**{str(m): head for m, head in enumerate(model.heads)}) as recorded, torch.no_grad():
        loss = model(image, labels, generator=seeded_generator(0))
    model.eval()
    logits = [recorded.calls[str(m)][0][1] for m in range(4)]
    losses = [
        [
            -sum(head[b].log_softmax(0)[labels[b, y, x], y, x].item() for y in range(8) for x in range(12))
            for head in logits
        ]
        for b in range(3)
    ]
    expected, divergence = naive_oracle_loss(losses, 0.05)
    assert loss.terms["cross_entropy/0"].item() == pytest.approx(expected, rel=1e-5)
    assert loss.total.item() == pytest.approx(expected + divergence, rel=1e-5)


@torch.no_grad()
def test_multihead_sample_is_output_of_selected_head(model):
    image, _ = batch(CONFIG, SIZE, 2)
    with record(body=model.body) as recorded:
        samples = model.sample(image, 40, generator=seeded_generator(0))
    ((_, features),) = recorded.calls["body"]
    outputs = [head(features)[..., : SIZE[0], : SIZE[1]] for head in model.heads]
    (noise,) = draw_noise([()], 2, 40, seeded_generator(0))
    for row in range(2):
        picked = [naive_pick(value, 4) for value in noise[row].tolist()]
        assert set(picked) == {0, 1, 2, 3}
        for number, head in enumerate(picked):
            torch.testing.assert_close(samples[row, number], outputs[head][row])
    assert not any(torch.allclose(a, b) for i, a in enumerate(outputs) for b in outputs[:i])


def test_multihead_learns_two_modes():
    """One image is labelled all 0 in half of the steps and all 1 otherwise; heads specialise."""
    torch.manual_seed(0)
    config = CONFIG.model_copy(update={"num_classes": 2})
    model = trained(config, steps=0).train()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    image, _ = batch(config, (8, 8), 4)
    for step in range(40):
        optimizer.zero_grad()
        labels = torch.full((4, 8, 8), step % 2)
        model(image, labels, generator=seeded_generator(step)).total.backward()
        optimizer.step()
    (logits,), _ = model.encode(image)
    shares = logits.argmax(2).float().mean((0, 2, 3))  # fraction of class 1 per head
    assert shares.min() < 0.1
    assert shares.max() > 0.9


def test_multihead_rejects_single_head():
    with pytest.raises(ConfigError, match="'heads' = 1: Input should be greater than or equal to 2"):
        MultiHeadConfig.parse({"heads": 1}, where="recipe.yaml")
