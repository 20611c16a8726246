"""Print the best divisor of the logits for several numbers of samples S, by Brier score and by NLL.

    python experiments/lidc_nodule/divisors.py MODEL DATA --split val --out CASES.csv.gz

All S use the same samples, in groups of S. The candidates are those of `phiseg calibrate`. The gain is the relative
decrease of the Brier score or of the NLL (the negative log-likelihood of the mean of S samples) compared with 1.
CASES.csv.gz receives both scores of every case.
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
from phiseg.evaluation.temperature_search import LOGITS
from phiseg.metrics import brier_score
from phiseg.models import load_model
from phiseg.models.noise import seeded_generator

NUMBERS = (4, 8, 16, 32, 64, 128)


def main() -> None:
    """Print a table with one row per number of samples."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--split", default="val")
    parser.add_argument("--num-cases", type=int, default=60, help="cases, drawn at random with seed 0")
    parser.add_argument("--out", type=Path, required=True, help="CSV file (.csv.gz) for the scores of every case")
    options = parser.parse_args()
    dataset, model = Dataset.open(options.data), load_model(options.model, calibrated=False)
    rows = np.random.default_rng(0).permutation(dataset.rows(options.split))[: options.num_cases].tolist()
    losses = np.zeros((len(NUMBERS), 2, len(LOGITS)))
    found = []
    for row in tqdm(rows, unit="case"):
        image = torch.from_numpy(dataset.image(row, context=model.config.context))[None]
        generators = [seeded_generator(0, "sample", dataset.cases[row]["case"])]
        logits = model.sample(image, max(NUMBERS), generator=generators, chunk_size=8)[0]
        annotations = torch.from_numpy(dataset.annotations(row)).long()
        for place, divisor in enumerate(LOGITS):
            probs = (logits / divisor).softmax(1)
            for number, table in zip(NUMBERS, losses, strict=True):
                brier, nll = np.mean([scores(group, annotations) for group in probs.split(number)], axis=0)
                table[:, place] += brier, nll
                names = {name: dataset.cases[row][name] for name in ("case", "patient")}
                numbers = {"divisor": f"{divisor:.4f}", "brier": f"{brier:.7g}", "nll": f"{nll:.7g}"}
                found.append({**names, "num_samples": number, **numbers})
    write_cases(options.out, found)
    print(f"{len(rows)} cases of {len({dataset.cases[row]['patient'] for row in rows})} patients")
    print("| S | divisor, Brier | gain | divisor, NLL | gain |\n|---:|---:|---:|---:|---:|")
    for number, table in zip(NUMBERS, losses, strict=True):
        found = [(LOGITS[curve.argmin()], 1 - curve.min() / curve[LOGITS.index(1.0)]) for curve in table]
        print(f"| {number} | " + " | ".join(f"{best:.2f} | {gain:.2%}" for best, gain in found) + " |")


def scores(probs: Tensor, annotations: Tensor) -> tuple[float, float]:
    """Return the Brier score and the NLL of samples (S, K, *size) for annotations (A, *size)."""
    likelihood = probs.mean(0).gather(0, annotations)
    return brier_score(probs, annotations), -float(likelihood.clamp_min(1e-12).log().mean())


def write_cases(path: Path, rows: list[dict[str, str | int]]) -> None:
    """Write the scores of every case."""
    table = io.StringIO()
    writer = csv.DictWriter(table, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path.write_bytes(gzip.compress(table.getvalue().encode(), mtime=0))


if __name__ == "__main__":
    main()
