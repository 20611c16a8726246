"""Noise of volumes: one field, from which patches take their part."""

import numpy as np
import pytest
import torch

from helpers.tiny_models import trained
from phiseg.core.errors import ConfigError
from phiseg.inference.slice_noise import Level
from phiseg.inference.volume_noise import VolumeNoise
from phiseg.models.phiseg import PHiSegConfig
from phiseg.models.probunet import ProbUNetConfig
from phiseg.models.ssn import SSNConfig

STRIDES = ((1, 2, 2), (2, 2, 2), (2, 1, 2))
STEP = (4, 4, 8)


@pytest.fixture(scope="module")
def model():
    config = PHiSegConfig(
        dims=3, strides=STRIDES, channels=(4, 4, 4, 4), num_levels=3, blocks_per_level=1, presence=True
    )
    return trained(config, steps=0)


def test_patches_take_their_part_of_one_field(model):
    noise = VolumeNoise(model, seed=0, keys=("case",))
    whole = noise.patch((-8, 0, 0), (24, 16, 32), range(2))
    part = noise.patch((-4, 4, 8), (8, 12, 16), range(2))
    assert [level.shape[2:] for level in whole] == model.noise_shapes((24, 16, 32))
    for number, (all_cells, cells) in enumerate(zip(whole[:3], part[:3], strict=True)):
        scale = model.config.pyramid.scale(model.offset + number)
        start = [4 // scale[0], 4 // scale[1], 8 // scale[2]]
        inside = tuple(slice(s, s + n) for s, n in zip(start, cells.shape[3:], strict=True))
        assert torch.equal(all_cells[(..., *inside)], cells)
    assert torch.equal(whole[3], part[3])  # the presence has no place


def test_noise_is_standard_normal_and_independent(model):
    fine, *_ = VolumeNoise(model, seed=0, keys=("case",)).patch((0, 0, 0), (16, 32, 32), range(8))
    samples = fine[0].flatten(1).double()
    assert samples.mean().abs() < 0.01
    assert (samples.std() - 1).abs() < 0.01
    correlation = np.corrcoef(samples.numpy()) - np.eye(8)
    assert np.abs(correlation).max() < 0.03
    shifted = fine[0, 0, 0].numpy()
    blocks = [shifted[:8, :8, :8], shifted[8:, :8, :8], shifted[:8, 8:16, :8], shifted[:8, :8, 8:16]]
    assert np.abs(np.corrcoef([block.ravel() for block in blocks]) - np.eye(4)).max() < 0.2


def test_sample_does_not_depend_on_other_samples(model):
    noise = VolumeNoise(model, seed=0, keys=("case",))
    every = noise.patch((0, 0, 0), STEP, range(5))
    for one, other in zip(every, noise.patch((0, 0, 0), STEP, range(3, 5)), strict=True):
        assert torch.equal(one[:, 3:], other)


@pytest.mark.parametrize("changes", [{"seed": 1}, {"keys": ("other",)}])
def test_seed_and_key_change_the_noise(model, changes):
    settings = {"seed": 0, "keys": ("case",)}
    found = [VolumeNoise(model, **(settings | more)).patch((0, 0, 0), STEP, range(1)) for more in ({}, changes)]
    assert all((one != other).all() for one, other in zip(*found, strict=True))


def test_level_settings_change_single_levels(model):
    levels = (Level(), Level(seed=3), Level(hold=True), Level(hold=True))
    plain, changed = (
        VolumeNoise(model, seed=0, keys=("case",), levels=some).patch((0, 0, 0), STEP, range(3))
        for some in ((), levels)
    )
    assert torch.equal(plain[0], changed[0])
    assert (plain[1] != changed[1]).all()
    for number in (2, 3):
        assert torch.equal(changed[number], plain[number][:, :1].expand_as(plain[number]))
    warm = VolumeNoise(model, seed=0, keys=("case",), levels=[Level(temperature=0.5)] * 4)
    assert torch.equal(warm.patch((0, 0, 0), STEP, range(3))[0], plain[0] / 2)


def test_wrong_number_of_levels_is_refused(model):
    with pytest.raises(ConfigError, match="settings of 2 levels, but the model has 4"):
        VolumeNoise(model, seed=0, keys=("case",), levels=[Level()] * 2)


@pytest.mark.parametrize(
    "config",
    [
        ProbUNetConfig(dims=3, channels=(4, 4), blocks_per_level=1),
        SSNConfig(dims=3, channels=(4, 4), blocks_per_level=1, rank=2),
    ],
)
def test_noise_has_the_shapes_of_the_model(config):
    """A size that is not a multiple of the strides: SSN has noise for the voxels without padding."""
    model = trained(config, steps=0)
    noise = VolumeNoise(model, seed=0, keys=("case",))
    found = noise.patch((2, 0, 4), (5, 6, 3), range(2))
    assert [level.shape for level in found] == [(1, 2, *shape) for shape in model.noise_shapes((5, 6, 3))]
    whole = noise.patch((0, 0, 0), (16, 16, 16), range(2))
    for part, field in zip(found, whole, strict=True):
        inside = field[..., 2:7, 0:6, 4:7] if part.ndim == 6 else field
        assert torch.equal(part, inside)
