"""Measure how S_NCC depends on the confidence of the samples: the same samples at several temperatures.

    python experiments/lidc_slices/confidence.py MODEL DATA --split val --num-cases 120 --out CASES.csv.gz

The logits of every sample are divided by a temperature. A temperature near 0 gives every pixel the same confidence:
only the labels of the samples remain. The table lists S_NCC, the correlation of the gamma map with the share of
samples that differ from an annotator, which does not depend on the temperature, and the Brier score of the mean
prediction. CASES.csv.gz receives the scores of every case.
"""

import argparse
import csv
import gzip
import io
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from phiseg.data.store import Dataset
from phiseg.inference.sampling import sample_cases
from phiseg.metrics import error_maps, gamma_map, s_ncc
from phiseg.models import load_model

TEMPERATURES = (4.0, 2.0, 1.0, 0.5, 0.25, 0.1, 0.01)
SCORES = ("s_ncc", "disagreement", "brier")


def main() -> None:
    """Print a table with one row per temperature."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--split", default="val")
    parser.add_argument("--num-cases", type=int, default=120, help="cases, drawn at random with seed 0")
    parser.add_argument("--num-samples", type=int, default=100)
    parser.add_argument("--out", type=Path, help="CSV file (.csv.gz) for the scores of every case")
    options = parser.parse_args()
    dataset = Dataset.open(options.data)
    rows = dataset.rows(options.split)
    chosen = np.random.default_rng(0).permutation(rows)[: options.num_cases].tolist()
    model = load_model(options.model, calibrated=False)
    found: list[dict[str, str | float]] = []
    drawn = sample_cases(model, dataset, chosen, num_samples=options.num_samples, seed=0, keep_probs=True)
    for case in tqdm(drawn, total=len(chosen), unit="case"):
        assert case.probs is not None
        annotations = torch.from_numpy(dataset.annotations(case.row)).long()
        names = {name: dataset.cases[case.row][name] for name in ("case", "patient")}
        for temperature in TEMPERATURES:
            probs = (case.probs.double().clamp_min(1e-30).log() / temperature).softmax(1)
            scores = dict(zip(SCORES, score(probs, annotations), strict=True))
            found.append({**names, "temperature": temperature, **scores})
    if options.out:
        write_cases(options.out, found)
    print(f"{len(chosen)} cases of {options.split}, {options.num_samples} samples")
    print("| temperature | S_NCC | gamma against disagreement | Brier score |\n|---:|---:|---:|---:|")
    for temperature in TEMPERATURES:
        cases = [row for row in found if row["temperature"] == temperature]
        correlation, disagreement, brier = (np.mean([row[name] for row in cases]) for name in SCORES)
        print(f"| {temperature:g} | {correlation:.3f} | {disagreement:.3f} | {brier:.4f} |")


def score(probs: Tensor, annotations: Tensor) -> tuple[float, float, float]:
    """Return the scores of samples (S, K, H, W) for annotations (A, H, W)."""
    gamma, mean = gamma_map(probs), probs.mean(0)
    differs = (probs.argmax(1)[:, None] != annotations).double().mean(0)  # (A, H, W)
    hit = torch.nn.functional.one_hot(annotations, len(mean)).movedim(-1, 1)  # (A, K, H, W)
    brier = float((mean - hit).square().sum(1).mean())
    return s_ncc(gamma, error_maps(probs, annotations)).value, s_ncc(gamma, differs).value, brier


def write_cases(path: Path, rows: list[dict[str, str | float]]) -> None:
    """Write the scores of every case."""
    table = io.StringIO()
    writer = csv.DictWriter(table, rows[0], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: f"{value:.6g}" if isinstance(value, float) else value for key, value in row.items()})
    path.write_bytes(gzip.compress(table.getvalue().encode(), mtime=0))


if __name__ == "__main__":
    main()
