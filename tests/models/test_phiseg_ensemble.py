"""Ensemble of PHiSeg models: each sample comes from one member with the same noise."""

import pytest
import torch

from helpers.tiny_models import batch, members_alone, naive_pick, trained
from phiseg.models.noise import draw_noise, seeded_generator
from phiseg.models.phiseg import PHiSegConfig
from phiseg.models.phiseg_ensemble import PHiSegEnsembleConfig
from phiseg.models.registry import build_model

SIZE = (6, 9)
SETTINGS = {"channels": (4, 5, 6), "blocks_per_level": 1, "num_classes": 3, "num_levels": 2, "head_init": 0.3}
CONFIG = PHiSegEnsembleConfig(**SETTINGS, members=3)


@pytest.fixture(scope="module")
def model():
    return trained(CONFIG)


@torch.no_grad()
def test_phiseg_ensemble_sample_comes_from_selected_member(model):
    image, _ = batch(CONFIG, SIZE, 2)
    *latent_noise, choice = draw_noise(model.noise_shapes(SIZE), 2, 30, seeded_generator(0))
    levels = model.sample_levels(model.encode(image), [*latent_noise, choice], 30)
    by_member = [
        alone.sample_levels(alone.encode(image), latent_noise, 30)
        for alone in members_alone(model, PHiSegConfig(**SETTINGS))
    ]
    picked = [[naive_pick(value, 3) for value in row] for row in choice.tolist()]
    assert len(levels) == 2
    for row in range(2):
        assert set(picked[row]) == {0, 1, 2}
        for number, member in enumerate(picked[row]):
            for level, expected in zip(levels, by_member[member], strict=True):
                torch.testing.assert_close(level[row, number], expected[row, number], rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_phiseg_ensemble_samples_are_finest_level(model):
    image, _ = batch(CONFIG, SIZE, 2)
    noise = draw_noise(model.noise_shapes(SIZE), 2, 5, seeded_generator(0))
    expected = model.sample_levels(model.encode(image), noise, 5)[0]
    assert torch.equal(model.sample(image, 5, generator=seeded_generator(0)), expected)


def test_phiseg_ensemble_loss_is_mean_of_members():
    model = build_model(CONFIG).train()
    image, labels = batch(CONFIG, SIZE)
    generator = seeded_generator(0)  # shared by the members in order
    losses = [alone(image, labels, generator=generator) for alone in members_alone(model, PHiSegConfig(**SETTINGS))]
    loss = model(image, labels, generator=seeded_generator(0))
    torch.testing.assert_close(loss.total, sum(alone.total for alone in losses) / 3)
    assert loss.terms.keys() == losses[0].terms.keys()
    for name, value in loss.terms.items():
        torch.testing.assert_close(value, sum(alone.terms[name] for alone in losses) / 3)


@torch.no_grad()
def test_phiseg_ensemble_batch_norm_sees_whole_batch():
    """In training mode, each member sees the whole batch, not only its selected samples."""
    model, image = build_model(CONFIG).train(), batch(CONFIG, SIZE, 4)[0]
    alone = members_alone(model, PHiSegConfig(**SETTINGS))
    *latent, choice = draw_noise(model.noise_shapes(SIZE), 4, 1, seeded_generator(0))
    model.sample_levels(
        model.encode(image), [*latent, torch.full_like(choice, -9.0)], 1
    )  # all select the first member
    for own, member in zip(model.members, alone, strict=True):
        member.train().sample_levels(member.encode(image), latent, 1)
        for (name, found), expected in zip(own.named_buffers(), member.buffers(), strict=True):
            torch.testing.assert_close(found, expected, msg=name)
