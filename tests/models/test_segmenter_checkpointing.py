"""Activation checkpointing saves memory without changing results, including batch-norm statistics."""

from copy import deepcopy

import pytest
import torch

from helpers.tiny_models import batch
from phiseg.models import build_model
from phiseg.models.noise import seeded_generator
from phiseg.models.phiseg import PHiSegConfig
from phiseg.models.probunet import ProbUNetConfig

CONFIGS = [
    PHiSegConfig(channels=(4, 5, 6, 7), num_levels=3, blocks_per_level=2),
    PHiSegConfig(channels=(4, 4, 4), num_levels=2, blocks_per_level=1, residual=True, latents_at="finest"),
    PHiSegConfig(channels=(8, 8, 8), num_levels=2, blocks_per_level=1, norm="group"),
    ProbUNetConfig(channels=(4, 6, 8), blocks_per_level=2),
]


def step(model, *, forgetting):
    """Run a training step and return the loss; count the tensors saved for the backward pass."""
    model.checkpoint_activations(forgetting)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, fused=True)
    kept = {}

    def keep(tensor):
        kept[tensor.data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(*batch(model.config, (16, 16)), generator=seeded_generator(0)).total
    loss.backward()
    optimizer.step()
    return loss.item(), sum(kept.values())


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: f"{config.name}-{config.norm}")
def test_checkpointed_step_gives_same_weights_and_statistics(config):
    torch.manual_seed(0)
    keeping = build_model(config).train()
    forgetting = deepcopy(keeping)
    (loss, kept), (same_loss, still_kept) = step(keeping, forgetting=False), step(forgetting, forgetting=True)
    assert loss == same_loss
    assert still_kept < 0.7 * kept
    for (name, ours), theirs in zip(forgetting.state_dict().items(), keeping.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs), name


def test_evaluation_does_not_checkpoint():
    model = build_model(CONFIGS[0]).eval()
    model.checkpoint_activations(True)
    calls = []
    model.likelihood.merge[0][0].register_forward_hook(lambda *_: calls.append(1))
    model(*batch(model.config, (16, 16)), generator=seeded_generator(0)).total.backward()
    assert len(calls) == 1
