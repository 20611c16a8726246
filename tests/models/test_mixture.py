"""Uniform mixtures: selection of components."""

from math import inf, sqrt

import pytest
import torch

from helpers.tiny_models import naive_pick
from phiseg.models.mixture import pick
from phiseg.models.noise import draw_noise, seeded_generator


@pytest.mark.parametrize("number", [1, 2, 5, 16])
def test_pick_uses_normal_cdf(number):
    (noise,) = draw_noise([()], 3, 50, seeded_generator(0))
    expected = [[naive_pick(value, number) for value in row] for row in noise.tolist()]
    assert pick(noise, number).tolist() == expected


@pytest.mark.parametrize("number", [2, 5, 16])
def test_pick_is_uniform(number):
    """Chi-squared statistic of 64000 draws: mean M - 1, variance 2 (M - 1)."""
    (noise,) = draw_noise([()], 4, 16000, seeded_generator(1))
    counts = torch.bincount(pick(noise, number).flatten(), minlength=number).double()
    expected = 64000 / number
    statistic = ((counts - expected) ** 2 / expected).sum().item()
    assert len(counts) == number
    assert statistic < number - 1 + 4 * sqrt(2 * (number - 1))


def test_pick_handles_extreme_noise():
    assert pick(torch.tensor([-inf, -40.0, -6.0, 6.0, 40.0, inf]), 5).tolist() == [0, 0, 0, 4, 4, 4]
