"""A sample of a mixture is one of its components, and every component is equally likely."""

from math import inf, sqrt

import pytest
import torch

from helpers.tiny_models import naive_pick
from phiseg.models.mixture import pick
from phiseg.models.noise import draw_noise, seeded_generator


@pytest.mark.parametrize("number", [1, 2, 5, 16])
def test_a_component_is_picked_by_the_share_of_the_normal_distribution_below_the_noise(number):
    (noise,) = draw_noise([()], 3, 50, seeded_generator(0))
    expected = [[naive_pick(value, number) for value in row] for row in noise.tolist()]
    assert pick(noise, number).tolist() == expected


@pytest.mark.parametrize("number", [2, 5, 16])
def test_every_component_is_equally_likely(number):
    """The chi-squared statistic of 64000 picks: its mean is M - 1, its variance 2 (M - 1)."""
    (noise,) = draw_noise([()], 4, 16000, seeded_generator(1))
    counts = torch.bincount(pick(noise, number).flatten(), minlength=number).double()
    expected = 64000 / number
    statistic = ((counts - expected) ** 2 / expected).sum().item()
    assert len(counts) == number
    assert statistic < number - 1 + 4 * sqrt(2 * (number - 1))


def test_the_ends_of_the_normal_distribution_pick_the_first_and_the_last():
    assert pick(torch.tensor([-inf, -40.0, -6.0, 6.0, 40.0, inf]), 5).tolist() == [0, 0, 0, 4, 4, 4]
