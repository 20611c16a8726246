"""Evaluations of methods that do not exist: blobs for images, thresholds for annotators, plausible numbers."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.ndimage import gaussian_filter

from phiseg.evaluation.evaluation_folder import REQUIRED_COLUMNS, Evaluation, write_evaluation
from phiseg.evaluation.example_cases import Examples
from phiseg.evaluation.summary import DatasetRef, ModelRef, Summary
from phiseg.metrics import expected_calibration_error
from phiseg.metrics.score_registry import case_scores

NUM_CASES, NUM_SAMPLES = 40, 100
PROVENANCE: dict[str, Any] = {
    "num_samples": NUM_SAMPLES,
    "num_parameters": 1_234_567,
    "seed": 0,
    "split": "test",
    "dice_annotator": "all",
    "dataset": DatasetRef(name="phantom-lesion", fingerprint="9f86d081884c7d65"),
    "model": ModelRef(recipe="phiseg-small", step=4000),
}


def make_cases(quality: float, *, num_cases: int = NUM_CASES, seed: int = 1) -> dict[str, list[Any]]:
    """Return plausible scores; `quality` in [0, 1] moves all of them, `seed` the difficulty of the cases."""
    rng = np.random.default_rng(seed)
    delta = rng.uniform(0.1, 0.6, num_cases)
    own = np.random.default_rng(int(quality * 1000))
    floor = delta * (1 / 4 + 1 / NUM_SAMPLES)
    unbiased = (1.1 - quality) * delta * 0.4 + own.normal(0, 0.02, num_cases)
    within_samples, within_annotations = delta * (0.4 + 0.5 * quality), delta * 0.75
    dice = np.clip(0.6 + 0.25 * quality - 0.3 * delta + own.normal(0, 0.03, num_cases), 0, 1)
    columns = {
        "ged": unbiased + floor,
        "ged_unbiased": unbiased - 0.01 * delta,
        "ged_floor": floor,
        "s_ncc": np.clip(0.5 + 0.4 * quality + own.normal(0, 0.05, num_cases), -1, 1),
        "dice": dice,
        "ged_cross": (unbiased + floor + within_samples + within_annotations) / 2,
        "ged_within_samples": within_samples,
        "ged_within_annotations": within_annotations,
        "hm_iou": np.clip(0.9 - 0.6 * delta + 0.1 * quality, 0, 1),
        "best_dice": np.clip(dice + 0.15, 0, 1),
        "diversity": delta * (0.5 + 0.5 * quality),
        "diversity_annotators": delta,
        "area_crps": 60 * (1.1 - quality) * delta,
        "area_coverage": np.clip(own.integers(0, 5, num_cases) / 4 + 0.5 * quality, 0, 1),
        "area_width": 80 * delta,
        "num_annotators": np.full(num_cases, 4.0),
        "s_ncc_constant": np.zeros(num_cases),
    }
    cases: dict[str, list[Any]] = {
        "case": [f"case-{index:04d}" for index in range(num_cases)],
        "patient": [f"patient-{index:04d}" for index in range(num_cases)],
    }
    others = {score.name: [None] * num_cases for score in case_scores(2) if score.name not in columns}
    return cases | {name: column.tolist() for name, column in columns.items()} | others


def make_examples(
    quality: float, *, num_classes: int = 2, num_levels: int = 0, num_examples: int = 2, size: int = 64
) -> Examples:
    """Return example cases whose samples spread as the annotators do, the better `quality` is."""
    rows = [_example(quality, num_classes, num_levels, size, index) for index in range(num_examples)]
    arrays = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    return Examples(cases=np.array([f"case-{index:04d}" for index in range(num_examples)]), **arrays)


def _example(quality: float, num_classes: int, num_levels: int, size: int, index: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(index)
    y, x = np.mgrid[:size, :size] / size - 0.5
    lumps = gaussian_filter(rng.normal(size=(size, size)), size / 14) * size / 16
    height = 1 - np.hypot(x - 0.05, 1.2 * y + 0.04) / 0.24 + 0.6 * lumps  # positive inside the structure
    image = np.clip(0.5 / (1 + np.exp(-4 * height)) - 0.3 + rng.normal(0, 0.035, height.shape), -0.5, 0.5)

    def labels(shift: float, bumps: float | np.ndarray = 0.0) -> np.ndarray:
        levels = [height + bumps > shift + 0.4 * k for k in range(num_classes - 1)]  # class 2 lies inside class 1
        return np.sum(levels, axis=0).astype(np.uint8)

    annotations = np.stack([labels(shift) for shift in (-0.35, -0.1, 0.2, 0.2)])
    valid = np.array([True, True, True, index != 1])
    annotations[~valid] = 255
    own = np.random.default_rng(int(1000 * quality) + index)
    shifts = own.normal(0, 0.05 + 0.2 * quality, 32)
    bumps = [gaussian_filter(own.normal(size=(size, size)), size / 20) * size / 20 for _ in shifts]
    many = np.stack([labels(shift, 0.4 * bump) for shift, bump in zip(shifts, bumps, strict=True)])
    onehot = np.eye(num_classes)[many].transpose(0, 3, 1, 2)  # (S, K, H, W)
    soft = gaussian_filter(onehot, (0, 0, 1, 1)) * 0.96 + 0.04 / num_classes
    mean_probs = soft.mean(0)
    gamma = -(soft * np.log(mean_probs)).sum(1).mean(0)
    truth = np.eye(num_classes)[annotations[valid]].transpose(0, 3, 1, 2)
    error = -(truth.mean(0) * np.log(soft).mean(0)).sum(0)
    arrays: dict[str, np.ndarray] = {
        "image": image.astype(np.float32),
        "annotations": annotations,
        "valid": valid,
        "samples": many[:8],
        "error": error.astype(np.float32),
        "gamma": gamma.astype(np.float32),
        "mean_probs": mean_probs.astype(np.float32),
    }
    if num_levels:
        logits = np.stack(
            [gaussian_filter(6 * soft[0] - 3, (0, 2.0**level, 2.0**level)) for level in range(num_levels)]
        )
        exponentials = np.exp(logits)
        arrays["level_probs"] = (exponentials / exponentials.sum(1, keepdims=True)).astype(np.float16)
        arrays["level_residuals"] = (logits - np.append(logits[1:], 0 * logits[:1], axis=0)).astype(np.float16)
    return arrays


def make_training(num_levels: int, *, num_steps: int = 4000, seed: int = 0) -> list[dict[str, Any]]:
    """Return the metrics of a training run that went well."""
    rng = np.random.default_rng(seed)
    records: list[dict[str, Any]] = []
    for step in range(20, num_steps + 1, 20):
        decay = np.exp(-step / 800)
        entropy = {
            f"cross_entropy/{level}": (900 * decay + 150 * (1 + level)) * rng.lognormal(0, 0.15)
            for level in range(max(num_levels, 1))
        }
        kl = {
            f"kl/{level}": (40 / (1 + level)) * (0.4 + decay) * rng.lognormal(0, 0.2) for level in range(num_levels)
        }
        records.append(
            {"step": step, "kind": "train", "loss": sum(entropy.values()) + sum(kl.values()), **entropy, **kl}
        )
        if step % 200 == 0:
            loss = (900 * decay + 400) * rng.lognormal(0, 0.05)
            ged = 0.25 + 0.5 * decay + rng.normal(0, 0.01)
            records.append(
                {"step": step, "kind": "val", "loss": loss, "elbo": -loss, "ged": ged, "s_ncc": 0.8 - decay / 2}
            )
    return records


def make_evaluation(
    path: Path,
    method: str = "phiseg",
    quality: float = 0.8,
    *,
    num_cases: int = NUM_CASES,
    num_classes: int = 2,
    num_levels: int = 0,
    size: int = 64,
    training: bool = False,
    residual_correlation: float | None = None,
    cases: dict[str, list[Any]] | None = None,
    **provenance: Any,
) -> Evaluation:
    """Return an evaluation in memory that says it came from `path`; `write` puts it there."""
    cases = cases or make_cases(quality, num_cases=num_cases)
    reliability = make_reliability(quality, num_classes=num_classes)
    ece = expected_calibration_error(torch.from_numpy(reliability))
    pixel_scores = {"ece": ece, "residual_correlation": residual_correlation}
    summary = Summary.of(cases, pixel_scores=pixel_scores, method=method, **PROVENANCE | provenance)
    examples = make_examples(
        quality, num_classes=num_classes, num_levels=num_levels, num_examples=min(2, num_cases), size=size
    )
    records = make_training(num_levels, seed=int(quality * 1000)) if training else []
    return Evaluation(path, summary, cases, examples, records, reliability)


def make_reliability(quality: float, *, num_classes: int = 2) -> np.ndarray:
    """Return a table (K-1, 10, 3) of a method that is the more overconfident, the worse `quality` is."""
    pixels = np.array([40_000, 900, 400, 300, 0, 250, 300, 400, 900, 3_000.0])
    probs = (np.arange(10) + 0.5) / 10
    votes = 0.5 + (probs - 0.5) * (0.5 + 0.5 * quality)
    return np.stack([np.stack([pixels, pixels * probs, pixels * votes], axis=1)] * (num_classes - 1))


def forget_further_scores(folder: Path) -> None:
    """Make of `folder` an evaluation as it was written before there were scores beyond the paper's."""
    summary = json.loads((folder / "summary.json").read_text())
    later = [score.name for score in case_scores(2) if score.name not in REQUIRED_COLUMNS]
    for name in (*later, "ece"):
        del summary[name]
        summary["intervals"].pop(name, None)
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "reliability.csv").unlink()
    _drop_columns(folder / "cases.csv", later)


def forget_patients(folder: Path) -> None:
    """Make of `folder` an evaluation as it was written before its table named the patients."""
    _drop_columns(folder / "cases.csv", ("patient", "nodule", "slice"))


def _drop_columns(path: Path, names: Sequence[str]) -> None:
    with path.open(newline="") as file:
        columns = list(zip(*csv.reader(file), strict=True))
    kept = [column for column in columns if column[0] not in names]
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(zip(*kept, strict=True))


def write(evaluation: Evaluation) -> Path:
    """Write `evaluation` to its path and return the path."""
    write_evaluation(
        evaluation.path,
        summary=evaluation.summary,
        cases=evaluation.cases,
        examples=evaluation.examples,
        reliability=evaluation.reliability,
        classes=[f"class {k + 1}" for k in range(len(evaluation.reliability))],
        training=evaluation.training or None,
    )
    return evaluation.path
