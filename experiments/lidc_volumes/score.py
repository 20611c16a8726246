"""Compare the volumes of samples with those of readers, on nodules whose stacks go beyond the last outline.

    python experiments/lidc_volumes/score.py MODEL VOLUMES.npz --noise-length 5 10 inf --out scores.csv

Samples are drawn at the middle of each nodule, as `phiseg predict` draws them. For each nodule, the readers'
volumes in ml are compared with the samples' 90 % interval. A reader who did not outline the nodule counts as 0 ml.
"""

import argparse
import csv
from itertools import product
from math import inf
from pathlib import Path

import numpy as np
import torch

import phiseg
from phiseg.imaging.volume import Volume
from phiseg.inference.measures import measure
from phiseg.inference.volumes import Sampling, predict_volume
from phiseg.metrics.area import area_scores_from

FIELDS = (
    "noise_length_mm",
    "noise_shared",
    "patient",
    "nodule",
    "readers_ml",
    "median_ml",
    "low_ml",
    "high_ml",
    "present",
    "readers_present",
)


def main() -> None:
    """Score every noise length, print a table, and write a line for each nodule."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("volumes", type=Path)
    parser.add_argument("--noise-length", type=float, nargs="+", default=[inf])
    parser.add_argument("--noise-shared", type=float, nargs="+", default=[0.0])
    parser.add_argument("--num-samples", type=int, default=64)
    parser.add_argument("--patients", nargs="*", help="only these")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    model = phiseg.load(options.model)
    file = np.load(options.volumes)
    rows = []
    headings = ("noise length", "shared", "nodules", "inside 90 %", "median width / mean volume", "median ratio")
    print(f"| {' | '.join(headings)} | CRPS (ml) | presence off by |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|")
    for length, shared in product(options.noise_length, options.noise_shared):
        scores = []
        for index, patient in enumerate(file["case_ids"].tolist()):
            if options.patients and patient not in options.patients:
                continue
            volume, point, readers = nodule(file, index)
            sampling = Sampling(
                num_samples=options.num_samples, noise_length_mm=length, noise_shared=shared, level_draws=0
            )
            prediction = predict_volume(model, volume, point=point, sampling=sampling, name=f"nodule {index}")
            found = measure(prediction).classes["nodule"]
            spread = found.volume_ml
            drawn = torch.tensor(spread.samples)[:, None]
            crps = area_scores_from(drawn, torch.from_numpy(readers)[:, None]).crps
            inside = np.mean((readers >= spread.low - 1e-9) & (readers <= spread.high + 1e-9))
            off = abs(found.present - np.mean(readers > 0))
            ratio = spread.median / np.median(readers[readers > 0])
            scores.append((inside, (spread.high - spread.low) / readers.mean(), ratio, crps, off))
            listed = " ".join(f"{value:.4g}" for value in readers)
            values = (
                length,
                shared,
                patient,
                int(file["nodule"][index]),
                listed,
                spread.median,
                spread.low,
                spread.high,
            )
            rows.append(dict(zip(FIELDS, (*values, found.present, np.mean(readers > 0)), strict=True)))
        inside, width, ratio, crps, off = np.array(scores).T
        cells = (
            f"{inside.mean():.2f}",
            f"{np.median(width):.2f}",
            f"{np.median(ratio):.2f}",
            f"{crps.mean():.3f}",
            f"{off.mean():.2f}",
        )
        print(f"| {length:g} mm | {shared:g} | {len(scores)} | {' | '.join(cells)} |", flush=True)
    if options.out:
        with options.out.open("w", newline="", encoding="utf-8") as table:
            writer = csv.DictWriter(table, FIELDS)
            writer.writeheader()
            writer.writerows(rows)


def nodule(file: np.lib.npyio.NpzFile, index: int) -> tuple[Volume, tuple[int, int, int], np.ndarray]:
    """Return a nodule's stack in Hounsfield units, a voxel in its middle, and the readers' volumes in ml."""
    pixels = file[f"image_{index:03d}"].astype(np.float32) * (1400 / 255) - 1000  # (D, H, W)
    masks = file[f"masks_{index:03d}"] > 0  # (4, D, H, W)
    pixel, distance = float(file["pixel_spacing_mm"][index]), float(file["slice_spacing_mm"][index])
    affine = np.diag([-pixel, -pixel, distance, 1.0])
    drawn = masks.sum(0)  # (D, H, W)
    most = drawn.sum((1, 2)).argmax()  # the slice with the largest area
    places = np.argwhere(drawn[most] == drawn[most].max())
    row, column = places[((places - places.mean(0)) ** 2).sum(1).argmin()]
    readers = masks.sum((1, 2, 3)) * (pixel * pixel * distance / 1000)
    return Volume(pixels.transpose(2, 1, 0), affine), (int(column), int(row), int(most)), readers


if __name__ == "__main__":
    main()
