"""Search for temperatures that are better than none, on held-out patients and beyond chance.

The functions know scores of patients, but neither model nor images.
"""

from collections.abc import Callable, Sequence
from math import sqrt
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from phiseg.core.random import derive_seed

FACTOR = 1.15
"""Factor by which one step of the search multiplies or divides a temperature."""
MAX_STEPS = 6
"""Maximum number of steps of one temperature."""
LOGITS = tuple(FACTOR**step for step in range(-MAX_STEPS, MAX_STEPS + 1))
"""Candidate temperatures of the logits."""
CHANCE = 0.05
"""Probability that any temperature changes although none should."""
NUM_KINDS = 3
"""Kinds of temperatures that are fitted: those of the noise, that of the logits, and the margin."""
NUM_FOLDS = 5
"""Number of folds of the cross-validation over patients."""
FIRST_LOOK = 20
"""Number of patients after which the search may reject a noise temperature that does not help."""

T = TypeVar("T")
Distances = Callable[[tuple[float, ...], NDArray[np.int64]], NDArray[np.float64]]
"""A function that returns the scores of patients, given by number, for noise temperatures; lower is better."""


def cross_validated(
    fit: Callable[[NDArray[np.int64]], T],
    losses: Callable[[T, NDArray[np.int64]], NDArray[np.float64]],
    neutral: T,
    patients: NDArray[np.int64],
    seed: int,
) -> tuple[T, float]:
    """Return the fit on all patients, or `neutral` if fits do not help on held-out patients, and the mean gain.

    Args:
        fit: function that returns the best temperature on the patients with the given numbers.
        losses: function that returns the losses of patients for a temperature.
        neutral: temperature without effect.
        patients: numbers of all patients, from 0.
        seed: seed of the folds.
    """
    order = np.random.default_rng(derive_seed(seed, "calibration folds")).permutation(patients)
    best = fit(order)
    if best == neutral:  # nothing to validate
        return neutral, 0.0
    gains = np.zeros(len(order))
    for number in range(NUM_FOLDS):
        held_out = order[number::NUM_FOLDS]
        chosen = fit(order[np.arange(len(order)) % NUM_FOLDS != number])
        if chosen != neutral:
            gains[held_out] = losses(neutral, held_out) - losses(chosen, held_out)
    clear = _better(gains, num_errors=float(student.ppf(1 - CHANCE / NUM_KINDS, len(order) - 1)))
    return best if clear else neutral, float(gains.mean())


def search_noise(
    distances: Distances, among: NDArray[np.int64], levels: Sequence[int], neutral: tuple[float, ...]
) -> tuple[float, ...]:
    """Search better noise temperatures by coordinate descent from `neutral`, coarse to fine levels.

    Args:
        distances: function that returns the unbiased GED of patients for noise temperatures.
        among: numbers of the patients to fit on.
        levels: numbers of the levels that have a temperature, fine to coarse.
        neutral: temperatures of all levels without effect.
    """
    trials = 2 * (len(levels) + 1)  # every temperature, including that of the logits, may go up or down
    num_errors = float(student.ppf(1 - CHANCE / trials, len(among) - 1))
    best = neutral
    for level in reversed(levels):
        for factor in (FACTOR, 1 / FACTOR):
            start = best
            for _ in range(MAX_STEPS):
                changed = round(best[level] * factor, 4)
                candidate = (*best[:level], changed, *best[level + 1 :])
                if not improves(distances, among, best, candidate, num_errors):
                    break
                best = candidate
            if best != start:
                break
    return best


def improves(
    distances: Distances,
    among: NDArray[np.int64],
    best: tuple[float, ...],
    candidate: tuple[float, ...],
    num_errors: float,
) -> bool:
    """Return whether the candidate is better than chance on the patients.

    A candidate that reaches `num_errors` standard errors on N patients is at about sqrt(n / N) of them after n. One
    that is more than one standard error behind is given up. This can only keep a temperature from moving, so the
    rate of false moves does not rise.
    """
    looked = FIRST_LOOK
    while looked < len(among):
        some, needed = among[:looked], num_errors * sqrt(looked / len(among)) - 1
        if not _better(distances(best, some) - distances(candidate, some), num_errors=needed):
            return False
        looked *= 2
    return _better(distances(best, among) - distances(candidate, among), num_errors=num_errors)


def logit_temperature(table: NDArray[np.float64], *, seed: int) -> tuple[float, float]:
    """Return the best of `LOGITS` and its gain on held-out patients, from losses (patients, temperatures)."""
    losses = dict(zip(LOGITS, table.T, strict=True))
    best, gain = cross_validated(
        lambda among: min(LOGITS, key=lambda temperature: float(losses[temperature][among].mean())),
        lambda temperature, among: losses[temperature][among],
        1.0,
        np.arange(len(table)),
        seed,
    )
    return round(best, 4), gain


def chosen_margin(table: NDArray[np.float64], *, seed: int, margin: float) -> tuple[float | None, float]:
    """Return `margin` if it helps on held-out patients, otherwise None, and its gain there.

    Args:
        table: losses (patients, 2), without and with the margin.
        seed: seed of the folds.
        margin: the margin.
    """
    losses: dict[float | None, NDArray[np.float64]] = {None: table[:, 0], margin: table[:, 1]}
    return cross_validated(
        lambda among: min(losses, key=lambda candidate: float(losses[candidate][among].mean())),
        lambda candidate, among: losses[candidate][among],
        None,
        np.arange(len(table)),
        seed,
    )


def _better(gains: NDArray[np.float64], *, num_errors: float) -> bool:
    """Return whether the mean gain over patients exceeds `num_errors` standard errors."""
    return bool(gains.mean() > num_errors * gains.std(ddof=1) / sqrt(len(gains)))
