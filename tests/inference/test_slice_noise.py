"""Noise along the slices: standard normal, equal at equal depths, and as smooth as requested."""

from itertools import product
from math import cos, inf, pi, sin

import pytest
import torch

from phiseg.core.errors import ConfigError
from phiseg.inference.slice_noise import Level, SliceNoise

LENGTHS = [0, 2.5, 10, inf]
DEPTHS = [0, 1, 2.5, 4, 5, 7.25, 12.5, 30]


def source(length, *, shapes=((2, 3), (5,)), num_samples=4, seed=3, keys=("case",)):
    return SliceNoise(shapes, num_samples, seed=seed, keys=keys, length_mm=length)


def equal(first, second):
    return all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def correlation(noise, first, second):
    (one,), (other,) = noise.at(first), noise.at(second)
    return float((one * other).mean())


@pytest.mark.parametrize("length", LENGTHS)
def test_noise_has_one_tensor_per_shape(length):
    assert [level.shape for level in source(length).at(7)] == [(1, 4, 2, 3), (1, 4, 5)]
    assert source(length, shapes=()).at(7) == []


@pytest.mark.parametrize(("length", "depth"), list(product(LENGTHS, DEPTHS)))
def test_noise_is_standard_normal_at_every_depth(length, depth):
    (noise,) = source(length, shapes=((40_000,),), num_samples=1).at(depth)
    assert abs(float(noise.mean())) < 0.025
    assert abs(float(noise.var()) - 1) < 0.04
    assert abs(float((noise.abs() < 1).float().mean()) - 0.6827) < 0.015


@pytest.mark.parametrize("length", LENGTHS)
def test_noise_depends_only_on_depth(length):
    first = source(length)
    forwards = {depth: first.at(depth) for depth in DEPTHS}
    for depth in (30, 0, 12.5, 1, 7.25, 30, 2.5):
        assert equal(first.at(depth), forwards[depth])
        assert equal(source(length).at(depth), forwards[depth])


def test_noise_is_constant_or_independent_at_extreme_lengths():
    constant = source(inf, shapes=((20_000,),), num_samples=1)
    independent = source(0, shapes=((20_000,),), num_samples=1)
    for first, second in ((0, 0.1), (1, 2.5), (0, 30)):
        assert equal(constant.at(first), constant.at(second))
        assert abs(correlation(independent, first, second)) < 0.03


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.75, 1])
def test_noise_changes_smoothly_over_the_length(share):
    """From a knot on, the correlation falls as a cosine; within a gap, as that of the distance."""
    noise = source(8.0, shapes=((20_000,),), num_samples=1)
    angle = share * pi / 2
    assert abs(correlation(noise, 16, 16 + 8 * share) - cos(angle)) < 0.03
    assert abs(correlation(noise, 17, 16 + 8 * share) - cos(angle - pi / 16)) < 0.03
    assert abs(correlation(noise, 16, 16 + 8 * (1 + share))) < 0.03
    assert abs(correlation(noise, 20, 24 + 8 * share) - sin(pi / 4) * cos(angle)) < 0.03


def test_it_is_continuous():
    noise = source(5.0)
    for depth in (3.0, 5.0, 9.999, 10.0):
        for level, close in zip(noise.at(depth), noise.at(depth + 1e-5), strict=True):
            torch.testing.assert_close(level, close, rtol=0, atol=1e-4)


@pytest.mark.parametrize("length", LENGTHS)
def test_first_samples_are_independent_of_number(length):
    few, many = source(length, num_samples=2), source(length, num_samples=9)
    for depth in (0, 4, 7.25):
        assert equal(few.at(depth), [level[:, :2] for level in many.at(depth)])


@pytest.mark.parametrize("length", LENGTHS)
def test_noise_depends_on_seed_and_case(length):
    for other in (source(length, seed=4), source(length, keys=("other",)), source(length, keys=("case", "more"))):
        assert not equal(source(length).at(4), other.at(4))


@pytest.mark.parametrize("length", [-1, float("nan")])
def test_negative_length_is_rejected(length):
    with pytest.raises(ConfigError, match="0 or more, or inf"):
        source(length)


@pytest.mark.parametrize("length", [inf, 5.0])
def test_levels_are_redrawn_held_and_tempered_separately(length):
    def noise(*levels):
        source = SliceNoise([(3,), (2, 2)], 4, seed=0, keys=("case",), length_mm=length, levels=levels)
        return source.at(7.0)

    plain = noise()
    for changed, kept in ((0, 1), (1, 0)):
        levels = [Level(), Level()]
        levels[changed] = Level(seed=1)
        redrawn = noise(*levels)
        assert torch.equal(redrawn[kept], plain[kept])
        assert not (redrawn[changed] == plain[changed]).any()
    held = noise(Level(hold=True), Level(temperature=0.5))
    assert torch.equal(held[0], plain[0][:, :1].expand(-1, 4, -1))
    assert torch.allclose(held[1], 0.5 * plain[1])


def test_wrong_number_of_levels_is_rejected():
    with pytest.raises(ConfigError, match="settings of 1 levels, but the model has 2"):
        SliceNoise([(3,), (2,)], 4, seed=0, keys=("case",), levels=[Level()])
