"""Compare sampled volumes with the true distribution of a phantom, which 1,000 further annotators give.

truth.py DATA SPLIT SAMPLES ... [--out VOLUMES.csv]
truth.py --best VOLUMES.csv    the noise length, the last part of a name of samples, with the lowest mean CRPS

SAMPLES is anything that `phiseg score` reads. Coverage is the share of annotators whose volume lies in the 90 %
interval of the samples: 0.90 for a perfect model. A perfect sampler, as many further annotators, is added.
"""

import argparse
import csv
import math
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from phiseg.data.prepare.phantom import true_volumes_ml
from phiseg.data.store import Dataset
from phiseg.evaluation.sample_files import open_samples
from phiseg.metrics.area import area_scores_from

NUM_TRUE = 1000
PERFECT = "a perfect sampler"
COLUMNS = {
    "coverage": "coverage",
    "width / mean volume (median)": "width",
    "CRPS (ml)": "crps",
    "error of presence": "presence",
    "error of the mean (ml)": "mean_error",
    "sd (ml)": "sd",
}
"""Headings of the printed table, and columns of VOLUMES.csv."""


def main() -> None:
    """Print a line for each set of samples, and write a line for each volume."""
    if sys.argv[1:2] == ["--best"]:
        print(best_length(Path(sys.argv[2])))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("split")
    parser.add_argument("samples", type=Path, nargs="+")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    dataset = Dataset.open(options.data)
    rows = dataset.rows(options.split)
    cases = [
        {"case": dataset.cases[row]["case"], "patient": dataset.cases[row]["patient"], "slices": dataset.depth(row)}
        for row in rows
    ]
    true = [true_volumes_ml(dataset, row, NUM_TRUE) for row in rows]
    lines = []
    for source in options.samples:
        reading = open_samples(source, dims=3).in_order([case["case"] for case in cases], where=str(dataset.path))
        drawn = [sampled_ml(read()["labels"], dataset, row) for read, row in zip(reading, rows, strict=True)]
        lines += scored(source.stem, cases, drawn, true)
    number = len(drawn[0])
    perfect = [true_volumes_ml(dataset, row, number, seed=1) for row in rows]
    lines += scored(PERFECT, cases, perfect, true)
    print(f"| samples | {' | '.join(COLUMNS)} |")
    print(f"|---|{'---:|' * len(COLUMNS)}")
    for name in dict.fromkeys(line["samples"] for line in lines):
        columns = {key: [line[key] for line in lines if line["samples"] == name] for key in COLUMNS.values()}
        means = {key: np.nanmean(values) for key, values in columns.items()} | {
            "width": np.median(columns["width"])
        }
        print(f"| {name} | {' | '.join(f'{value:.3f}' for value in means.values())} |")
    if options.out:
        with options.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, lines[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(lines)


def best_length(scores: Path) -> str:
    """Return the noise length of the samples with the lowest mean CRPS."""
    found = defaultdict(list)
    for line in csv.DictReader(scores.open()):
        if line["samples"] != PERFECT:
            found[line["samples"].rpartition("-")[2]].append(float(line["crps"]))
    return min(found, key=lambda length: np.mean(found[length]))


def sampled_ml(labels: np.ndarray, dataset: Dataset, row: int) -> np.ndarray:
    """Return the volumes of samples (S, D, H, W) in ml."""
    return (labels > 0).sum((1, 2, 3)) * float(np.prod(dataset.voxel_spacing_mm(row))) / 1000


def scored(
    name: str, cases: list[dict[str, Any]], drawn: list[np.ndarray], true: list[np.ndarray]
) -> list[dict[str, Any]]:
    """Return the scores of every volume.

    The error of presence is that of the share of empty samples. `mean_error` and `sd` describe the volumes that are
    not empty: the difference of their mean from the true mean, and their standard deviation, both in ml.
    """
    lines = []
    for case, samples, volumes in zip(cases, drawn, true, strict=True):
        scores = area_scores_from(torch.from_numpy(samples)[:, None], torch.from_numpy(volumes)[:, None])
        line = {
            "samples": name,
            **case,
            "coverage": scores.coverage,
            "width": scores.width / max(volumes.mean(), 1e-9),
            "crps": scores.crps,
            "presence": abs((samples > 0).mean() - (volumes > 0).mean()),
            "mean_error": abs(mean_present(samples) - mean_present(volumes)),
            "sd": float(samples[samples > 0].std()) if (samples > 0).any() else math.nan,
        }
        lines.append({key: round(value, 6) if isinstance(value, float) else value for key, value in line.items()})
    return lines


def mean_present(volumes: np.ndarray) -> float:
    """Return the mean of the volumes that are not empty, or NaN."""
    present = volumes[volumes > 0]
    return float(present.mean()) if len(present) else math.nan


if __name__ == "__main__":
    main()
