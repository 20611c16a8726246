"""Fit temperatures on validation data: the spread of samples at each latent level, and their confidence.

The spread of samples is learned by the prior on the training images. On other images, samples can be too similar or
too different. A factor on the noise of each level corrects this as far as a factor can. The objectives of both
temperatures do not depend on the number of samples. The margin gives all pixels of a sample the same confidence, if
gamma then shows better where samples are wrong. `temperature_search` keeps a temperature only if it helps on
held-out patients.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from phiseg.compute.devices import usable_device
from phiseg.core.bundled import bundled_models, find_model
from phiseg.core.errors import ConfigError, ModelError
from phiseg.core.files import AnyPath
from phiseg.core.hub import is_in_cache
from phiseg.core.precision import SamplingPrecision
from phiseg.core.random import derive_seed
from phiseg.data.store import Dataset
from phiseg.evaluation.model_evaluation import warn_of_leak
from phiseg.evaluation.temperature_search import (
    LOGITS,
    chosen_margin,
    cross_validated,
    logit_temperature,
    search_noise,
)
from phiseg.inference.class_map import match_classes
from phiseg.inference.sample_summary import SampleSummary, summarise_samples
from phiseg.inference.sampling import case_image, check_fits, samples_at_once
from phiseg.metrics import (
    brier_score,
    energy_distance,
    expected_calibration_error,
    most_probable,
    reliability,
    s_ncc,
)
from phiseg.metrics.case import score_case
from phiseg.models import Segmenter, load_model, save_calibration
from phiseg.models.noise import seeded_generator
from phiseg.models.temperatures import Calibration
from phiseg.training.card import patient_tokens

MIN_PATIENTS = 5
"""Minimum number of patients to distinguish a gain from chance."""
MARGIN = 9.0
"""Margin of a calibrated model with equal confidence in all pixels; with two classes, a probability of 0.9999."""
NUM_CASES = 200
"""Default number of cases to fit on."""
SHOWN = (
    *("ged", "ged_unbiased", "ged_floor", "s_ncc", "dice"),
    *("diversity", "diversity_annotators", "area_coverage", "volume_coverage"),
)
"""Scores before and after. Not a group of the registry: temperatures change distances, spread and coverage."""


class Fit(NamedTuple):
    """Fitted temperatures, and the scores on the fitted cases without and with them."""

    calibration: Calibration
    num_cases: int
    num_patients: int
    """Number of patients; with fewer than `MIN_PATIENTS` all temperatures stay 1."""
    before: dict[str, float]
    after: dict[str, float]
    held_out: dict[str, float]
    """Decrease of `ged_unbiased`, `brier` and `gamma_loss` on held-out patients with temperatures fitted on the
    other folds; 0 if the fit to all patients changes nothing."""


def calibrate(
    model_folder: AnyPath,
    data: AnyPath,
    *,
    split: str = "val",
    num_samples: int = 16,
    seed: int = 0,
    num_cases: int = NUM_CASES,
    device: str = "auto",
    precision: SamplingPrecision = "float32",
    class_map: Mapping[str, str] | None = None,
    progress: bool = True,
) -> Fit:
    """Fit temperatures for a model and store them in its folder, where later calls of `load` find them.

    The returned scores are those of the fitted cases. `class_map` maps classes of the dataset to classes of the
    model by name (`match_classes`).

    Raises:
        ConfigError, DataError, ModelError, OutputError: an input is invalid, or the result cannot be written.
    """
    model_folder = Path(model_folder)
    found = find_model(model_folder)
    if found.resolve() in [bundled.resolve() for bundled in bundled_models().values()]:
        raise ModelError(f"{found} is part of phiseg and cannot be changed; calibrate a copy of this folder")
    if is_in_cache(found):
        raise ModelError(f"{model_folder} is in the cache of the Hub; calibrate a copy of {found}, and push it")
    place = usable_device(device, precision)
    model = load_model(model_folder, device=place, calibrated=False, precision=precision)
    dataset = match_classes(model, Dataset.open(data), class_map)
    warn_of_leak(model, dataset, split)
    fit = fit_calibration(
        model, dataset, split=split, num_samples=num_samples, seed=seed, num_cases=num_cases, progress=progress
    )
    save_calibration(
        model_folder,
        fit.calibration,
        fit={
            "dataset": {"name": dataset.info.name, "fingerprint": dataset.fingerprint},
            "split": split,
            "patients": patient_tokens(dataset, split, salt=model.provenance.get("patient_salt")),
            "num_cases": fit.num_cases,
            "num_patients": fit.num_patients,
            "num_samples": num_samples,
            "seed": seed,
            "precision": precision,
            "before": fit.before,
            "after": fit.after,
            "held_out": fit.held_out,
        },
    )
    return fit


def fit_calibration(
    model: Segmenter,
    dataset: Dataset,
    *,
    split: str,
    num_samples: int,
    seed: int,
    num_cases: int = NUM_CASES,
    progress: bool = False,
) -> Fit:
    """Return temperatures for `model`, which is not changed.

    The noise temperatures minimise the unbiased GED. The temperature of the logits minimises the Brier score of the
    mean prediction, corrected for the finite number of samples (`brier_score`). The cross entropy of the mean of S
    samples would not be suitable: it is lower for smoother samples because S is finite, so its optimum depends on
    S.

    If the temperature of the logits stays 1, the margin is tried. It is chosen by `gamma_loss`, whose target does
    not depend on the confidence of the samples, and only if the Brier score does not get worse.

    The noise temperatures, and then that of the logits or the margin, are kept only if they help in a
    cross-validation: fitted on the patients of the other folds, they must lower the score of the held-out patients
    by more than chance. Each step of the search for the noise temperatures must also be significant. With fewer
    than `MIN_PATIENTS` patients, all temperatures stay 1.

    All logit temperatures are scored on the same samples. Noise temperatures need new samples, so the search
    rejects one after the first patients if it does not help there.

    Args:
        model: model in evaluation mode; its calibration is not used.
        dataset: dataset with several annotators per case.
        split: split to fit on, neither the training split nor the one to report.
        num_samples: S, the number of samples per case.
        seed: seed of the samples, the folds and the choice of cases.
        num_cases: maximum number of cases, chosen from as many patients as possible.
        progress: show a progress bar.

    Raises:
        ConfigError: no case has two annotators, or there are fewer than two samples.
        ModelError: the model does not match the dataset.
    """
    check_fits(model, dataset)
    rows = [row for row in dataset.rows(split).tolist() if dataset.valid[row].sum() > 1]
    if len(rows) < 2 or num_samples < 2 or num_cases < 2:
        raise ConfigError(
            "calibration needs at least 2 samples, and at least 2 cases with 2 annotators; there are "
            f"{num_samples} samples and {len(rows)} such cases in split '{split}', of which {num_cases} are used"
        )
    rows = _choose_cases(dataset, rows, num_cases, seed)
    dataset.check_labels(np.array(rows))
    bar: tqdm[Any] = tqdm(desc="calibrating", unit="case", disable=not progress, dynamic_ncols=True)
    cases = _Cases(model, dataset, rows, num_samples=num_samples, seed=seed, bar=bar)
    levels = [level for level, takes in enumerate(model.takes_temperature) if takes]
    everyone, neutral = np.arange(cases.num_patients), cases.neutral

    def search(among: NDArray[np.int64]) -> tuple[float, ...]:
        return search_noise(cases.distances, among, levels, neutral)

    with bar:
        try:
            before, losses, confidence = cases.measure(Calibration())
            fitted, held_out = Calibration(), dict[str, float]()
            if cases.num_patients >= MIN_PATIENTS:
                noise, held_out["ged_unbiased"] = cross_validated(search, cases.distances, neutral, everyone, seed)
                if noise != neutral:
                    _, losses, confidence = cases.measure(Calibration(noise=noise))
                logits, held_out["brier"] = logit_temperature(losses, seed=seed)
                margin = None
                if logits == 1 and not _worse(*confidence.brier.T):
                    margin, held_out["gamma_loss"] = chosen_margin(confidence.gamma, seed=seed, margin=MARGIN)
                fitted = Calibration(noise=() if noise == neutral else noise, logits=logits, margin=margin)
            after = before if fitted == Calibration() else cases.measure(fitted)[0]
        finally:
            model.calibration = Calibration()
    return Fit(fitted, len(rows), cases.num_patients, before, after, held_out)


def _choose_cases(dataset: Dataset, rows: list[int], number: int, seed: int) -> list[int]:
    """Return at most `number` rows in ascending order, from as many patients as possible."""
    rng, taken = np.random.default_rng(derive_seed(seed, "calibration cases")), Counter[str]()
    places: list[tuple[int, int, int]] = []
    for row in rng.permutation(rows).tolist():
        patient = dataset.cases[row]["patient"]
        places.append((taken[patient], len(places), row))
        taken[patient] += 1
    return sorted(row for _, _, row in sorted(places)[:number])


class _Confidence(NamedTuple):
    """Losses (patients, 2), without and with the margin."""

    brier: NDArray[np.float64]
    gamma: NDArray[np.float64]


def _worse(before: NDArray[np.float64], after: NDArray[np.float64]) -> bool:
    """Return whether the losses of patients rise by more than chance."""
    rise = after - before
    return bool(rise.mean() > 2 * rise.std(ddof=1) / np.sqrt(len(rise)))


def gamma_loss(logits: Tensor, annotations: Tensor) -> float:
    """Return 1 minus the correlation of gamma with the share of samples that differ from an annotator.

    This is 1 - S_NCC with another target, which depends on the labels of the samples and not on their confidence.

    Args:
        logits: samples (S, K, *size).
        annotations: (A, *size).
    """
    (summary,) = summarise_samples([logits[None]])
    differs = (summary.labels != annotations[:, None]).float().mean(1)  # (A, *size)
    return 1 - s_ncc(summary.gamma, differs).value


class _Cases:
    """The cases to fit on, and their scores for given temperatures with the same noise for all temperatures."""

    def __init__(
        self,
        model: Segmenter,
        dataset: Dataset,
        rows: Sequence[int],
        *,
        num_samples: int,
        seed: int,
        bar: "tqdm[Any]",
    ) -> None:
        self.model, self.dataset, self.num_samples, self.seed, self.bar = model, dataset, num_samples, seed, bar
        self.rows: dict[str, list[int]] = {}
        for row in rows:
            self.rows.setdefault(dataset.cases[row]["patient"], []).append(row)
        self.neutral = (1.0,) * len(model.noise_shapes(dataset.size(rows[0])))
        self.known: dict[tuple[tuple[float, ...], int], float] = {}

    @property
    def num_patients(self) -> int:
        return len(self.rows)

    def distances(self, noise: tuple[float, ...], patients: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the unbiased GED of the patients with the given numbers; known values are reused."""
        rows = list(self.rows.values())
        for patient in patients.tolist():
            if (noise, patient) not in self.known:
                self.model.calibration = Calibration(noise=noise)
                self.known[noise, patient] = float(np.mean([self._distance(row) for row in rows[patient]]))
        return np.array([self.known[noise, patient] for patient in patients.tolist()])

    def measure(self, calibration: Calibration) -> tuple[dict[str, float], NDArray[np.float64], "_Confidence"]:
        """Return the mean scores, the Brier score by patient and temperature of `LOGITS`, and losses with `MARGIN`.

        The last two do not depend on the temperature and the margin of `calibration`.
        """
        self.model.calibration = Calibration(noise=calibration.noise)
        scores: list[dict[str, float | None]] = []
        losses, confidence, bins = [], [], torch.zeros(())
        candidates = Calibration(), Calibration(margin=MARGIN)
        for patient, rows in enumerate(self.rows.values()):
            table, distances, effects = [], [], []
            for row in rows:
                logits, annotations = self._logits(row), torch.from_numpy(self.dataset.annotations(row))
                on_device = annotations.long().to(logits.device)
                table.append([brier_score((logits / factor).softmax(1), on_device) for factor in LOGITS])
                drawn = [candidate.apply(logits, dim=1) for candidate in candidates]
                briers = [brier_score(samples.softmax(1), on_device) for samples in drawn]
                effects.append((briers, [gamma_loss(samples, on_device) for samples in drawn]))
                (summary,) = summarise_samples([calibration.apply(logits, dim=1)[None]])
                summary = SampleSummary(*(tensor.cpu() for tensor in summary))
                scores.append(score_case(*summary, annotations))
                distances.append(scores[-1]["ged_unbiased"] or 0.0)
                bins = bins + reliability(summary.mean_probs, annotations)
            self.known[calibration.noise or self.neutral, patient] = float(np.mean(distances))
            losses.append(np.mean(table, axis=0))
            confidence.append(np.mean(effects, axis=0))
        columns = {name: [value for row in scores if (value := row.get(name)) is not None] for name in SHOWN}
        means = {name: float(np.mean(values)) for name, values in columns.items() if values}
        brier, gamma = np.stack(confidence, axis=1)
        return {**means, "ece": expected_calibration_error(bins)}, np.stack(losses), _Confidence(brier, gamma)

    def _distance(self, row: int) -> float:
        labels = most_probable(self._logits(row).softmax(1), dim=1).cpu()
        annotations = torch.from_numpy(self.dataset.annotations(row))
        found = energy_distance(labels, annotations, num_classes=len(self.dataset.info.classes)).ged_unbiased
        assert found is not None
        return found

    def _logits(self, row: int) -> Tensor:
        """Draw the samples of one case as `sample_cases` does, (S, K, *size)."""
        seen = case_image(self.model, self.dataset, row)
        generators = [seeded_generator(self.seed, "sample", self.dataset.cases[row]["case"])]
        device = next(self.model.parameters()).device
        chunk_size = samples_at_once(seen.image, batch_size=1, chunk_size=16)
        logits = self.model.sample(
            seen.image[None].to(device), self.num_samples, generator=generators, chunk_size=chunk_size
        )
        self.bar.update()
        return seen.crop(logits[0]).float()
