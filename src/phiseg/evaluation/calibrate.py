"""Fit temperatures on validation data: how far samples spread at each latent level, and how sure they are.

Training on one annotator at a time leaves the spread to the prior, which has seen the training images. On other
images its samples can be too alike or too different; a factor on the noise of each level mends what a factor can.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import t as student
from tqdm import tqdm

from phiseg.core.errors import ConfigError, ModelError
from phiseg.data.store import Dataset
from phiseg.evaluation.scores import warn_of_leak
from phiseg.inference.sampling import sample_cases, usable_device
from phiseg.metrics import EPSILON, energy_distance, expected_calibration_error, reliability
from phiseg.metrics.case import score_case
from phiseg.models import Segmenter, load_model, save_calibration
from phiseg.models.calibration import Calibration
from phiseg.models.noise import seeded_generator
from phiseg.models.pretrained import find_model

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
SHOWN = ("ged", "ged_unbiased", "ged_floor", "s_ncc", "dice", "diversity", "diversity_annotators", "area_coverage")

Better = Callable[[NDArray[np.float64]], bool]
"""Tells whether gains, one a patient, are more than chance."""


class Fit(NamedTuple):
    """Temperatures, and the scores on the cases they were fitted on without and with them."""

    calibration: Calibration
    num_patients: int
    """With fewer than `MIN_PATIENTS` nothing moved."""
    before: dict[str, float]
    after: dict[str, float]


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
    fit = fit_calibration(model, dataset, split=split, num_samples=num_samples, seed=seed, progress=progress)
    save_calibration(
        model_folder,
        fit.calibration,
        fit={
            "dataset": {"name": dataset.info.name, "fingerprint": dataset.fingerprint},
            "split": split,
            "num_cases": len(dataset.rows(split)),
            "num_patients": fit.num_patients,
            "num_samples": num_samples,
            "seed": seed,
            "before": fit.before,
            "after": fit.after,
        },
    )
    return fit


def fit_calibration(
    model: Segmenter, dataset: Dataset, *, split: str, num_samples: int, seed: int, progress: bool = False
) -> Fit:
    """Return temperatures for `model`, which is left without any.

    The noise temperatures minimise the unbiased GED, the one on the logits the cross entropy of the mean
    prediction. A temperature moves only where the gain, over patients and with the same noise, is clear of its
    standard error: two of them at the least, and more for few patients or many levels, since each is a trial that
    chance may win. What is within the noise of a small split is left at 1. So is everything with fewer than
    `MIN_PATIENTS` patients.

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
    levels = [level for level, shape in enumerate(shapes) if shape]  # a lone number picks a member: no temperature
    trials = 2 * (len(levels) + 1)  # every temperature, that of the logits as well, may go up or down
    better = partial(_better, num_errors=float(student.ppf(1 - CHANCE / trials, num_patients - 1)))
    bar: tqdm[Any] = tqdm(desc="calibrating", unit="case", disable=not progress, dynamic_ncols=True)

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

    with bar:
        try:
            fitted = Calibration()
            if num_patients >= MIN_PATIENTS:
                noise = _search(distances, levels, (1.0,) * len(shapes), better)
                model.calibration = Calibration(noise=noise)
                losses = _losses_by_temperature(model, dataset, rows, num_samples=num_samples, seed=seed, bar=bar)
                logits = _logit_temperature(_patient_means(losses, patients), better)
                fitted = Calibration(noise=noise if any(factor != 1 for factor in noise) else (), logits=logits)
            scores = []
            for calibration in (Calibration(), fitted):
                model.calibration = calibration
                scores.append(_scores(model, dataset, rows, num_samples=num_samples, seed=seed, bar=bar))
        finally:
            model.calibration = Calibration()
    return Fit(fitted, num_patients, *scores)


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


def _logit_temperature(losses: NDArray[np.float64], better: Better) -> float:
    """Return the temperature of `LOGITS` with the least of the losses (patients, temperatures)."""
    best, neutral = int(losses.mean(0).argmin()), LOGITS.index(1.0)
    return round(LOGITS[best], 4) if better(losses[:, neutral] - losses[:, best]) else 1.0


def _losses_by_temperature(
    model: Segmenter, dataset: Dataset, rows: list[int], *, num_samples: int, seed: int, bar: "tqdm[Any]"
) -> list[list[float]]:
    """Return how badly the mean of the samples predicts the annotations, (cases, temperatures)."""
    device = next(model.parameters()).device
    losses = []
    for row in rows:
        image = torch.from_numpy(dataset.image(row, context=model.config.context))[None].to(device)
        generators = [seeded_generator(seed, "sample", dataset.cases[row]["case"])]
        logits = model.sample(image, num_samples, generator=generators, chunk_size=16)[0].float()  # (S, K, H, W)
        annotations = torch.from_numpy(dataset.annotations(row)).long().to(device)  # (A, H, W)
        losses.append([_cross_entropy(logits / temperature, annotations) for temperature in LOGITS])
        bar.update()
    return losses


def _cross_entropy(logits: torch.Tensor, annotations: torch.Tensor) -> float:
    mean_probs = logits.softmax(1).mean(0)  # (K, H, W)
    return -float((mean_probs.gather(0, annotations) + EPSILON).log().mean())


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
