"""The search for temperatures, on synthetic gains of patients."""

import numpy as np
import pytest

from phiseg.evaluation.temperature_search import FIRST_LOOK, cross_validated, improves


def compared(gains, num_errors=2.5):
    """Return whether a candidate with these gains is taken, and how many patients were drawn with it."""
    drawn, among = set(), np.arange(len(gains))

    def distances(noise, patients):
        if noise == (2.0,):
            drawn.update(patients.tolist())
        return -gains[patients] if noise == (2.0,) else np.zeros(len(patients))

    return improves(distances, among, (1.0,), (2.0,), num_errors), len(drawn)


def test_hopeless_temperature_is_given_up_early():
    rng = np.random.default_rng(0)
    assert compared(rng.normal(-0.5, 1, 200)) == (False, FIRST_LOOK)
    assert compared(rng.normal(0.5, 1, 200)) == (True, 200)


def test_giving_up_early_takes_no_more_useless_temperatures():
    rng = np.random.default_rng(1)
    found = [compared(rng.normal(0, 1, 160), num_errors=1.65) for _ in range(1000)]
    taken, drawn = np.mean(found, axis=0)
    assert taken < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 1000)
    assert drawn < 0.6 * 160
    found = [compared(rng.normal(0.5, 1, 160), num_errors=1.65)[0] for _ in range(100)]
    assert np.mean(found) > 0.9


def test_temperature_without_held_out_gain_is_not_kept():
    rng = np.random.default_rng(0)
    losses = dict(enumerate(rng.normal(size=(20, 30))))  # no temperature is better: only chance differs

    def fit_to(among):
        return min(losses, key=lambda temperature: losses[temperature][among].mean())

    everyone = np.arange(30)
    assert losses[fit_to(everyone)].mean() < losses[0].mean() - 0.1  # it looks better where it was chosen

    def losses_of(temperature, among):
        return losses[temperature][among]

    assert cross_validated(fit_to, losses_of, 0, everyone, seed=0)[0] == 0
    losses[7] -= 2
    chosen, gain = cross_validated(fit_to, losses_of, 0, everyone, seed=0)
    assert chosen == 7
    assert gain == pytest.approx((losses[0] - losses[7]).mean())
