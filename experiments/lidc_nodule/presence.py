"""How much of the excess GED is about whether a reader marks the nodule at all: presence.py MODEL DATA SPLIT...

Two masks of which exactly one is empty have a distance of 1, so the energy distance between "marked or not" of the
samples (a share p of them is not empty) and of n readers (a share q) is 2 (p - q)^2, of which 2 q (1 - q) / (n - 1)
is there because readers are few, and likewise for the samples. What remains is about where the border runs.
"""

import sys
from pathlib import Path

import numpy as np
import torch

from phiseg.data.store import Dataset
from phiseg.inference.sampling import sample_cases
from phiseg.metrics import energy_distance
from phiseg.models import load_model

CASES = 250
SAMPLES = 50


def excesses(model: str, data: str, split: str) -> tuple[float, float, int]:
    """Return the mean unbiased GED, its part that is about presence, and the number of cases."""
    dataset = Dataset.open(Path(data))
    rows = dataset.rows(split).tolist()
    rows = rows[:: max(1, len(rows) // CASES)]
    found = []
    for case in sample_cases(load_model(Path(model)), dataset, rows, num_samples=SAMPLES, seed=0):
        annotations = torch.from_numpy(dataset.annotations(case.row))
        ged = energy_distance(case.summary.labels, annotations, num_classes=2).ged_unbiased
        p, q = (masks.flatten(1).any(1).double().mean().item() for masks in (case.summary.labels, annotations))
        few = q * (1 - q) / (len(annotations) - 1) + p * (1 - p) / (SAMPLES - 1)
        found.append((ged, 2 * ((p - q) ** 2 - few)))
    total, presence = np.mean(found, axis=0)
    return total, presence, len(rows)


if __name__ == "__main__":
    print("| split | cases | unbiased GED | of it presence |\n|---|---:|---:|---:|")
    for split in sys.argv[3:]:
        total, presence, cases = excesses(*sys.argv[1:3], split)
        print(f"| {split} | {cases} | {total:.4f} | {presence:.4f} |", flush=True)
