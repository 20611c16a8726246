"""Residual correlation of annotators on data with a known correlation."""

import numpy as np
import pytest
import torch
from scipy.stats import norm

from phiseg.core.errors import DataError
from phiseg.metrics import agreement_table, correlated_excess, energy_distance, residual_correlation
from phiseg.metrics.diversity import diversity

WIDTH, ANNOTATORS, SAMPLES = 24, 4, 8


def draw(rng, mean, number):
    """Return bars (number, 1, W) whose length is uniform over `mean` +- 6."""
    ends = mean + rng.uniform(-6, 6, number)
    return torch.from_numpy((np.arange(WIDTH) < ends[:, None])[:, None].astype(np.int64))


def simulate(correlation, *, num_cases=500, seed=0):
    """Return the mean unbiased GED of a perfect sampler, the estimated correlation and the predicted excess.

    Every annotator copies a draw that all share with probability sqrt(rho), so two of them do with rho.
    """
    rng = np.random.default_rng(seed)
    table, distances, spreads = torch.zeros(()), [], []
    for _ in range(num_cases):
        mean = rng.uniform(8, 16)
        chance = np.clip((mean + 6 - np.arange(WIDTH)) / 12, 0, 1)  # P(end > pixel), the true probabilities
        shared, own = draw(rng, mean, 1), draw(rng, mean, ANNOTATORS)
        copies = torch.from_numpy(rng.random(ANNOTATORS) < np.sqrt(correlation))[:, None, None]
        annotations = torch.where(copies, shared, own)
        probs = torch.from_numpy(np.stack([1 - chance, chance]))[:, None]
        table = table + agreement_table(probs, annotations)
        distances.append(energy_distance(draw(rng, mean, SAMPLES), annotations, num_classes=2).ged_unbiased)
        spreads.append(diversity(annotations, num_classes=2))
    found = residual_correlation(table)
    return np.mean(distances), found, correlated_excess(found, np.mean(spreads))


@pytest.mark.parametrize("correlation", [0.0, 0.1, 0.35])
def test_residual_correlation_explains_excess_of_perfect_sampler(correlation):
    excess, found, accounted = simulate(correlation)
    assert found == pytest.approx(correlation, abs=0.05)
    assert excess == pytest.approx(accounted, abs=0.02)
    if correlation > 0.3:
        assert excess > 0.06  # would be 0 for independent annotators


def test_residual_correlation_ignores_miscalibration():
    """Miscalibrated probabilities in the right order give no correlation for independent annotators."""
    rng = np.random.default_rng(1)
    chance = torch.from_numpy(rng.choice([0.1, 0.3, 0.6], size=(1, 60_000)))
    annotations = (torch.from_numpy(rng.random((3, 60_000))) < chance).long()
    wrong = chance**2
    table = agreement_table(torch.stack([1 - wrong[0], wrong[0]]), annotations)
    assert residual_correlation(table) == pytest.approx(0, abs=0.01)


def test_agreement_tables_are_additive_and_need_two_annotators():
    probs = torch.rand(2, 4, 5).softmax(0)
    one, two = torch.randint(2, (2, 3, 4, 5), generator=torch.Generator().manual_seed(0))
    together = agreement_table(torch.cat([probs, probs], 1), torch.cat([one, two], 1))
    torch.testing.assert_close(agreement_table(probs, one) + agreement_table(probs, two), together)
    assert residual_correlation(agreement_table(probs, one[:1])) is None
    with pytest.raises(DataError, match="do not match"):
        agreement_table(probs, one[:, :2])


def test_correlated_excess_of_annotators_with_a_shared_shift():
    rng, correlation, num_cases = np.random.default_rng(2), 0.5, 400
    table, distances, spreads = torch.zeros(()), [], []
    for _ in range(num_cases):
        mean, own, shared = rng.uniform(8, 16), rng.normal(size=ANNOTATORS), rng.normal()
        ends = mean + 3 * (np.sqrt(correlation) * shared + np.sqrt(1 - correlation) * own)
        sampled = mean + 3 * rng.normal(size=SAMPLES)
        annotations, samples = (
            torch.from_numpy((np.arange(WIDTH) < each[:, None])[:, None].astype(np.int64))
            for each in (ends, sampled)
        )
        chance = norm.sf((np.arange(WIDTH) - mean) / 3)
        table = table + agreement_table(torch.from_numpy(np.stack([1 - chance, chance]))[:, None], annotations)
        distances.append(energy_distance(samples, annotations, num_classes=2).ged_unbiased)
        spreads.append(diversity(annotations, num_classes=2))
    found = correlated_excess(residual_correlation(table), np.mean(spreads))
    assert np.mean(distances) > 0.03
    assert found == pytest.approx(np.mean(distances), abs=0.03)
