"""Noise: standard normal, and independent of batch, number of samples and global state."""

import pytest
import torch

from phiseg.core.errors import ModelError
from phiseg.models.noise import draw_noise, seeded_generator

SHAPES = [(2, 4, 6), (2, 2, 3), (5,)]


def generators(*names):
    return [seeded_generator(0, name) for name in names]


def test_draw_noise_returns_one_tensor_per_shape():
    noise = draw_noise(SHAPES, 3, 2, seeded_generator(0))
    assert [tensor.shape for tensor in noise] == [(3, 2, *shape) for shape in SHAPES]
    assert all(tensor.dtype == torch.float32 for tensor in noise)
    assert draw_noise([], 3, 2, seeded_generator(0)) == []


def test_draw_noise_is_standard_normal_without_repeats():
    noise = torch.cat([tensor.flatten() for tensor in draw_noise(SHAPES, 40, 40, seeded_generator(0))])
    num = len(noise)  # 104,000: the bounds are five standard errors
    assert noise.mean().abs() < 5 / num**0.5
    assert (noise.var() - 1).abs() < 5 * (2 / num) ** 0.5
    assert (noise.pow(4).mean() - 3).abs() < 5 * (96 / num) ** 0.5
    assert len(noise.unique()) > 0.99 * num  # equal floats are rare unless tensors were copied


def test_draw_noise_depends_on_seed():
    first, again = (draw_noise(SHAPES, 2, 2, seeded_generator(7, "sample", 3)) for _ in range(2))
    other = draw_noise(SHAPES, 2, 2, seeded_generator(7, "sample", 4))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_draw_noise_prefix_does_not_depend_on_num_samples():
    few, many = (draw_noise(SHAPES, 2, number, generators("a", "b")) for number in (2, 5))
    assert all(torch.equal(a, b[:, :2]) for a, b in zip(few, many, strict=True))


def test_draw_noise_does_not_depend_on_other_images():
    together = draw_noise(SHAPES, 3, 2, generators("a", "b", "c"))
    alone = draw_noise(SHAPES, 1, 2, generators("b"))
    turned = draw_noise(SHAPES, 3, 2, generators("c", "b", "a"))
    for here, single, reverse in zip(together, alone, turned, strict=True):
        assert torch.equal(here[1:2], single)
        assert torch.equal(here, reverse.flip(0))


def test_draw_noise_keeps_global_state():
    before = torch.get_rng_state()
    draw_noise(SHAPES, 2, 2, seeded_generator(0))
    assert torch.equal(before, torch.get_rng_state())


def test_draw_noise_rejects_wrong_number_of_generators():
    with pytest.raises(ModelError, match="2 generators for 3 images; pass one generator, or one per image"):
        draw_noise(SHAPES, 3, 1, generators("a", "b"))
