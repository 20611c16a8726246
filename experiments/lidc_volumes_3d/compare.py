"""Compare nodules scored by `experiments/lidc_volumes/score.py` with two models.

    python experiments/lidc_volumes_3d/compare.py DATA 2D.csv 3D.csv

DATA is the training dataset, whose val split has the patients not trained on.
"""

import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from phiseg.metrics.significance import patient_t_test

SMALL_ML = 2.0


def main(data: Path, *tables: Path) -> None:
    """Print a table of both models for each group of nodules, and test the difference of their CRPS."""
    unseen = set(json.loads((data / "splits.json").read_text())["val"])
    models = {path.stem: read(path) for path in tables}
    groups = {
        "of patients not trained on": lambda row: row["patient"] in unseen,
        "of training patients": lambda row: row["patient"] not in unseen,
        "all": bool,
        f"below {SMALL_ML:g} ml for every reader": lambda row: largest_ml(row) < SMALL_ML,
    }
    print(
        "| nodules | model | number | inside 90 % | width / mean volume (median) | CRPS (ml): mean, median "
        "| floor: mean, median | error of presence | p |"
    )
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|")
    for group, belongs in groups.items():
        chosen = {name: [row for row in rows if belongs(row)] for name, rows in models.items()}
        first, second = ([float(row["crps_ml"]) for row in rows] for rows in chosen.values())
        patients = [row["patient"] for row in next(iter(chosen.values()))]
        p = patient_t_test(first, second, patients).p_value
        for name, rows in chosen.items():
            print(f"| {group} | {name} | {summary(rows)} | {'' if p is None else f'{p:.2f}'} |")


def read(table: Path) -> list[dict[str, Any]]:
    """Return the nodules of a table in the order of patients and numbers."""
    with table.open(newline="", encoding="utf-8") as file:
        return sorted(csv.DictReader(file), key=lambda row: (row["patient"], int(row["nodule"])))


def largest_ml(row: dict[str, Any]) -> float:
    """Return the largest volume of a reader."""
    return max(map(float, row["readers_ml"].split()))


def summary(rows: list[dict[str, Any]]) -> str:
    """Return the cells of a table."""
    names = ("inside", "width", "crps_ml", "crps_floor_ml", "present", "readers_present")
    inside, width, crps, floor, present, drawn = (np.array([float(row[name]) for row in rows]) for name in names)
    return (
        f"{len(rows)} | {inside.mean():.2f} | {np.median(width):.2f} | {crps.mean():.3f}, {np.median(crps):.3f} | "
        f"{floor.mean():.3f}, {np.median(floor):.3f} | {np.abs(present - drawn).mean():.2f}"
    )


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
