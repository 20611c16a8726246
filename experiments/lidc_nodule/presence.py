"""Measure how much of the unbiased GED is about whether an annotator marks the nodule at all.

    python experiments/lidc_nodule/presence.py MODEL DATA train val test --out CASES.csv.gz

Two masks of which exactly one is empty have a distance of 1. A share p of the samples and a share q of the n
annotations are not empty, so the energy distance between "marked or not" is 2 (p - q)^2. Of this, 2 q (1 - q) /
(n - 1) is expected because there are few annotators, and likewise for the samples. Without these terms, it is the
part of the unbiased GED that is due to presence. The rest is about the border. CASES.csv.gz receives both for
every case.
"""

import argparse
import csv
import gzip
import io
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from phiseg.data.store import Dataset
from phiseg.inference.sampling import sample_cases
from phiseg.metrics import energy_distance
from phiseg.metrics.significance import patient_interval
from phiseg.models import load_model

SCORES = ("ged_unbiased", "presence")


def main() -> None:
    """Print a table with one row per split."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("splits", nargs="+", choices=("train", "val", "test"))
    parser.add_argument("--num-cases", type=int, default=600, help="cases per split, drawn at random with seed 0")
    parser.add_argument("--num-samples", type=int, default=16)
    parser.add_argument("--out", type=Path, required=True, help="CSV file (.csv.gz) for the scores of every case")
    options = parser.parse_args()
    dataset, model = Dataset.open(options.data), load_model(options.model)
    found = []
    print("| split | cases | patients | unbiased GED | of it presence |\n|---|---:|---:|---:|---:|")
    for split in options.splits:
        rows = np.random.default_rng(0).permutation(dataset.rows(split))[: options.num_cases].tolist()
        cases = []
        drawn = sample_cases(model, dataset, rows, num_samples=options.num_samples, seed=0)
        for case in tqdm(drawn, total=len(rows), unit="case", desc=split):
            labels, annotations = case.summary.labels, torch.from_numpy(dataset.annotations(case.row))
            ged = energy_distance(labels, annotations, num_classes=2).ged_unbiased
            p, q = (masks.flatten(1).any(1).double().mean().item() for masks in (labels, annotations))
            few = q * (1 - q) / (len(annotations) - 1) + p * (1 - p) / (len(labels) - 1)
            names = {name: dataset.cases[case.row][name] for name in ("case", "patient")}
            scores = {"ged_unbiased": ged, "presence": 2 * ((p - q) ** 2 - few)}
            shares = {"samples_present": p, "annotators_present": q}
            numbers = {name: f"{value:.6g}" for name, value in (scores | shares).items()}
            cases.append({"split": split, **names, **numbers})
        patients = [case["patient"] for case in cases]
        columns = [[float(case[name]) for case in cases] for name in SCORES]
        means = []
        for column in columns:
            low, high = patient_interval([column], patients)
            means.append(f"{np.mean(column):.3f} ({low:.3f} to {high:.3f})")
        print(f"| {split} | {len(rows)} | {len(set(patients))} | " + " | ".join(means) + " |", flush=True)
        found += cases
    table = io.StringIO()
    writer = csv.DictWriter(table, found[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    options.out.write_bytes(gzip.compress(table.getvalue().encode(), mtime=0))


if __name__ == "__main__":
    main()
