"""Fit temperatures on validation data: how far samples spread at each latent level, and how sure they are.

Training on one annotator at a time leaves the spread to the prior, which has seen the training images. On other
images its samples can be too alike or too different; a factor on the noise of each level fixes what a factor can.
Neither objective depends on the number of samples, and a temperature is kept only if it helps on held-out patients.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from math import sqrt
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import t as student
from tqdm import tqdm

from phiseg.core.errors import ConfigError, ModelError
from phiseg.core.random import derive_seed
from phiseg.data.store import Dataset
from phiseg.evaluation.scores import warn_of_leak
from phiseg.inference.sampling import sample_cases, usable_device
from phiseg.metrics import brier_score, energy_distance, expected_calibration_error, reliability
from phiseg.metrics.case import score_case
from phiseg.models import Segmenter, load_model, save_calibration
from phiseg.models.noise import seeded_generator
from phiseg.models.pretrained import find_model
from phiseg.models.temperatures import Calibration
from phiseg.training.card import patient_tokens

FACTOR = 1.15
"""One step of the search multiplies or divides a temperature by this."""
MAX_STEPS = 6
"""How many steps one temperature may go."""
LOGITS = tuple(FACTOR**step for step in range(-MAX_STEPS, MAX_STEPS + 1))
"""The temperatures that are tried on the logits."""
CHANCE = 0.05
"""How likely any temperature may move where all should stay."""
MIN_PATIENTS = 5
"""With fewer there is no telling what chance does, and nothing moves."""
NUM_FOLDS = 5
"""Of the patient-wise cross-validation."""
SHOWN = ("ged", "ged_unbiased", "ged_floor", "s_ncc", "dice", "diversity", "diversity_annotators", "area_coverage")

T = TypeVar("T")
Better = Callable[[NDArray[np.float64]], bool]
"""Tells whether gains, one a patient, are more than chance."""


class Fit(NamedTuple):
    """Temperatures, and the scores on the cases they were fitted on without and with them."""

    calibration: Calibration
    num_patients: int
    """With fewer than `MIN_PATIENTS` nothing moved."""
    before: dict[str, float]
    after: dict[str, float]
    held_out: dict[str, float]
    """By how much temperatures fitted on the other folds lower `ged_unbiased` and `brier` on held-out patients."""


def calibrate(
    model_folder: Path,
    data: Path,
    *,
    split: str = "val",
    num_samples: int = 16,
    seed: int = 0,
    device: str = "auto",
    progress: bool = True,
) -> Fit:
    """Fit temperatures for a model and store them in its folder, where every later `load` finds them.

    The scores of the answer are those of the cases that were fitted on.

    Raises:
        ConfigError, DataError, ModelError, OutputError: see their messages.
    """
    if not model_folder.is_dir():
        raise ModelError(
            f"{find_model(model_folder)} comes with phiseg and stays as it is; calibrate a copy of that folder"
        )
    model = load_model(model_folder, device=usable_device(device), calibrated=False)
    dataset = Dataset.open(data)
    warn_of_leak(model, dataset, split)
    salt = model.provenance.get("patient_salt")
    fit = fit_calibration(model, dataset, split=split, num_samples=num_samples, seed=seed, progress=progress)
    save_calibration(
        model_folder,
        fit.calibration,
        fit={
            "dataset": {"name": dataset.info.name, "fingerprint": dataset.fingerprint},
            "split": split,
            "patients": patient_tokens(dataset, split, salt=salt) if salt else [],
            "num_cases": len(dataset.rows(split)),
            "num_patients": fit.num_patients,
            "num_samples": num_samples,
            "seed": seed,
            "before": fit.before,
            "after": fit.after,
            "held_out": fit.held_out,
        },
    )
    return fit


def fit_calibration(
    model: Segmenter, dataset: Dataset, *, split: str, num_samples: int, seed: int, progress: bool = False
) -> Fit:
    """Return temperatures for `model`, which is left without any.

    The noise temperatures minimise the unbiased GED, the one on the logits the Brier score of the mean prediction
    without the error of a finite number of samples (`brier_score`). The cross entropy of the mean of S samples
    is lower for smoother samples just because S is finite, so its best temperature falls with S.

    The noise temperatures, and then the one on the logits, are kept only if they help in a cross-validation:
    fitted on the patients of the other folds, they must lower the score of the held-out patients by more than
    chance does. A step of the search for the noise temperatures must also be clear of chance by itself. With fewer
    than `MIN_PATIENTS` patients nothing moves.

    Args:
        model: in evaluation mode; its own calibration is not used.
        dataset: with several annotators a case.
        split: the cases to fit on; not those of the training, nor those to be reported.
        num_samples: S for each case.
        seed: of the samples.
        progress: show what is going on.

    Raises:
        ConfigError: no case has two annotators, or there are fewer than two samples.
    """
    rows = [row for row in dataset.rows(split).tolist() if dataset.valid[row].sum() > 1]
    if len(rows) < 2 or num_samples < 2:
        raise ConfigError(
            f"calibration compares at least 2 samples with at least 2 annotators on at least 2 cases; "
            f"{num_samples} samples were asked for, and {len(rows)} cases of split '{split}' have the annotators"
        )
    dataset.check_labels(np.array(rows))
    patients = [dataset.cases[row]["patient"] for row in rows]
    num_patients, shapes = len(set(patients)), model.noise_shapes(dataset.info.size)
    levels = [level for level, takes in enumerate(model.takes_temperature) if takes]
    trials = 2 * (len(levels) + 1)  # every temperature, that of the logits as well, may go up or down
    bar: tqdm[Any] = tqdm(desc="calibrating", unit="case", disable=not progress, dynamic_ncols=True)

    @cache  # folds ask for the same candidates
    def distances(noise: tuple[float, ...]) -> NDArray[np.float64]:
        """Return the unbiased GED of every patient."""
        model.calibration = Calibration(noise=noise)
        values = []
        for case in sample_cases(model, dataset, rows, num_samples=num_samples, seed=seed):
            annotations = torch.from_numpy(dataset.annotations(case.row))
            distance = energy_distance(case.summary.labels, annotations, num_classes=len(dataset.info.classes))
            values.append(distance.ged_unbiased)
            bar.update()
        return _patient_means(values, patients)

    def search(among: NDArray[np.int64]) -> tuple[float, ...]:
        better = partial(_better, num_errors=float(student.ppf(1 - CHANCE / trials, len(among) - 1)))
        return _search(lambda noise: distances(noise)[among], levels, neutral, better)

    neutral = (1.0,) * len(shapes)
    with bar:
        try:
            fitted, held_out = Calibration(), dict[str, float]()
            if num_patients >= MIN_PATIENTS:
                noise, held_out["ged_unbiased"] = _cross_validated(search, distances, neutral, num_patients, seed)
                model.calibration = Calibration(noise=noise)
                found = _losses_by_temperature(model, dataset, rows, num_samples=num_samples, seed=seed, bar=bar)
                logits, held_out["brier"] = _logit_temperature(_patient_means(found, patients), seed=seed)
                fitted = Calibration(noise=() if noise == neutral else noise, logits=logits)
            scores = []
            for calibration in (Calibration(), fitted):
                model.calibration = calibration
                scores.append(_scores(model, dataset, rows, num_samples=num_samples, seed=seed, bar=bar))
        finally:
            model.calibration = Calibration()
    before, after = scores
    return Fit(fitted, num_patients, before, after, held_out)


def _cross_validated(
    fit: Callable[[NDArray[np.int64]], T],
    losses: Callable[[T], NDArray[np.float64]],
    neutral: T,
    num_patients: int,
    seed: int,
) -> tuple[T, float]:
    """Return the fit on all patients, or `neutral` if fits do not help on held-out ones, and their mean gain.

    Args:
        fit: returns the best temperature on some patients, given by their numbers.
        losses: returns the loss of every patient with a temperature.
        neutral: the temperature that changes nothing.
        num_patients: how many there are.
        seed: of the folds.
    """
    order = np.random.default_rng(derive_seed(seed, "calibration folds")).permutation(num_patients)
    gains = np.zeros(num_patients)
    for held_out in np.array_split(order, NUM_FOLDS):
        chosen = fit(np.setdiff1d(order, held_out))
        gains[held_out] = (losses(neutral) - losses(chosen))[held_out]
    clear = _better(gains, num_errors=float(student.ppf(1 - CHANCE / 2, num_patients - 1)))  # noise and logits: 2
    return fit(order) if clear else neutral, float(gains.mean())


def _search(
    distances: Callable[[tuple[float, ...]], NDArray[np.float64]],
    levels: Sequence[int],
    best: tuple[float, ...],
    better: Better,
) -> tuple[float, ...]:
    """Walk from `best` to better noise temperatures, one of the levels after another, coarse to fine."""
    current = distances(best)
    for level in reversed(levels):
        for factor in (FACTOR, 1 / FACTOR):
            start = best
            for _ in range(MAX_STEPS):
                candidate = (*best[:level], best[level] * factor, *best[level + 1 :])
                found = distances(candidate)
                if not better(current - found):
                    break
                best, current = candidate, found
            if best != start:
                break
    return tuple(round(temperature, 4) for temperature in best)


def _logit_temperature(table: NDArray[np.float64], *, seed: int) -> tuple[float, float]:
    """Return the best of `LOGITS` and its gain on held-out patients, from losses (patients, temperatures)."""
    losses = dict(zip(LOGITS, table.T, strict=True))
    best, gain = _cross_validated(
        lambda among: min(LOGITS, key=lambda temperature: float(losses[temperature][among].mean())),
        losses.__getitem__,
        1.0,
        len(table),
        seed,
    )
    return round(best, 4), gain


def _losses_by_temperature(
    model: Segmenter, dataset: Dataset, rows: list[int], *, num_samples: int, seed: int, bar: "tqdm[Any]"
) -> list[list[float]]:
    """Return the Brier score of the mean prediction, (cases, temperatures)."""
    device = next(model.parameters()).device
    losses = []
    for row in rows:
        image = torch.from_numpy(dataset.image(row, context=model.config.context))[None].to(device)
        generators = [seeded_generator(seed, "sample", dataset.cases[row]["case"])]
        logits = model.sample(image, num_samples, generator=generators, chunk_size=16)[0].float()  # (S, K, H, W)
        annotations = torch.from_numpy(dataset.annotations(row)).long().to(device)  # (A, H, W)
        losses.append([brier_score((logits / temperature).softmax(1), annotations) for temperature in LOGITS])
        bar.update()
    return losses


def _patient_means(values: Sequence[Any], patients: Sequence[str]) -> NDArray[np.float64]:
    """Average values (cases, ...) to (patients, ...): slices of one patient are no independent witnesses."""
    table, owner = np.array(values, dtype=np.float64), np.array(patients)
    return np.stack([table[owner == patient].mean(0) for patient in np.unique(owner)])


def _better(gains: NDArray[np.float64], *, num_errors: float) -> bool:
    """Tell whether the mean gain (of patients) exceeds so many of its standard errors."""
    return bool(gains.mean() > num_errors * gains.std(ddof=1) / sqrt(len(gains)))


def _scores(
    model: Segmenter, dataset: Dataset, rows: list[int], *, num_samples: int, seed: int, bar: "tqdm[Any]"
) -> dict[str, float]:
    """Return the mean scores, and the expected calibration error."""
    table, bins = [], torch.zeros(())
    for case in sample_cases(model, dataset, rows, num_samples=num_samples, seed=seed):
        annotations = torch.from_numpy(dataset.annotations(case.row))
        table.append(score_case(*case.summary, annotations))
        bins = bins + reliability(case.summary.mean_probs, annotations)
        bar.update()
    columns = {name: [value for row in table if (value := row[name]) is not None] for name in SHOWN}
    means = {name: float(np.mean(values)) for name, values in columns.items() if values}
    return {**means, "ece": expected_calibration_error(bins)}
