"""Nodules of a prepared LIDC dataset as points in their scans, and predictions there against the readers.

nodules.py points DATA SCANS POINTS.csv LIDC   link the series into SCANS, by UID; write a point for each nodule
nodules.py compare DATA POINTS.csv PRED        print a table: GED, Dice and volumes in three dimensions
"""

import csv
import json
import sys
from collections import defaultdict
from pathlib import Path

import nibabel
import numpy as np
import torch

from phiseg.data.store import Dataset
from phiseg.imaging.dicom import read_folder
from phiseg.metrics import dice, energy_distance

FIELDS = ("case", "x", "y", "z", "series_uid", "nodule")


def nodules_of(dataset: Dataset) -> dict[tuple[str, str], list[int]]:
    """Return the rows of every nodule, by series and number, from its lowest slice up."""
    rows = defaultdict(list)
    for row, case in enumerate(dataset.cases):
        rows[case["series_uid"], case["nodule"]].append(row)
    return {key: sorted(found, key=lambda row: int(dataset.cases[row]["slice"])) for key, found in rows.items()}


def write_points(data: Path, scans: Path, points: Path, lidc: Path) -> None:
    """Link the series that hold nodules, and write the middle of each nodule."""
    dataset = Dataset.open(data)
    nodules = nodules_of(dataset)
    wanted = {uid for uid, _ in nodules}
    scans.mkdir(exist_ok=True)
    for folder in sorted(path for path in lidc.rglob("*") if path.is_dir()):
        first = next(iter(sorted(folder.glob("*.dcm"))), None)
        uids = {series.uid for series in read_folder([first]).series} if first else set()
        for uid in uids & wanted:
            (scans / uid).unlink(missing_ok=True)
            (scans / uid).symlink_to(folder)
    with points.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        for (uid, nodule), rows in nodules.items():
            case = dataset.cases[rows[len(rows) // 2]]
            half = dataset.info.size[0] // 2
            x, y = int(case["origin_x"]) + half, int(case["origin_y"]) + half
            place = {"case": uid, "x": x, "y": y, "z": int(case["slice"])}
            writer.writerow({**place, "series_uid": uid, "nodule": nodule})


def case_folder(predicted: Path, patient: str, number: int) -> Path:
    """Return the folder that `phiseg predict` writes for the given point of a patient, counted from 1."""
    return predicted / (patient if number == 1 else f"{patient}-{number}")


def compare(data: Path, points: Path, predicted: Path) -> None:
    """Print how predictions and readers compare, one line a nodule."""
    dataset = Dataset.open(data)
    nodules = nodules_of(dataset)
    listed = list(csv.DictReader(points.open()))
    per_scan = {uid: [row for row in listed if row["case"] == uid] for uid in {row["case"] for row in listed}}
    heads = ("nodule", "readers", "reader volumes, ml", "samples, ml: median, 90 %", "present in")
    print(f"| {' | '.join((*heads, 'GED', 'floor', 'excess', 'Dice'))} |")
    print("|---|---|---|---|---|---|---|---|---|")
    scores, covered, volumes, ratios = [], 0, 0, []
    for uid, rows in sorted(per_scan.items()):
        for number, row in enumerate(rows, start=1):
            patient = dataset.cases[nodules[uid, row["nodule"]][0]]["patient"]
            folder = case_folder(predicted, patient, number)
            found = json.loads((folder / "summary.json").read_text())["classes"]["nodule"]
            image = nibabel.load(folder / "samples.nii.gz")
            samples = np.moveaxis(np.asanyarray(image.dataobj), 3, 0)  # (S, columns, rows, slices)
            readers = readers_on_grid(dataset, nodules[uid, row["nodule"]], samples.shape[1:])
            labels = np.asanyarray(nibabel.load(folder / "labels.nii.gz").dataobj)
            box = bounding_box(samples.any(0) | readers.any(0))
            drawn, true, consensus = (flattened(masks, box) for masks in (samples, readers, labels[None]))
            distance = energy_distance(drawn, true, num_classes=2)
            overlap = float(dice(consensus, true, num_classes=2).mean())
            voxel_ml = abs(np.linalg.det(image.affine[:3, :3])) / 1000
            millilitres = readers.sum((1, 2, 3)) * voxel_ml
            low, median, high = (found["volume_ml"][key] for key in ("low", "median", "high"))
            ratios.append(median / np.median(millilitres[millilitres > 0]))
            covered += int(((millilitres >= low) & (millilitres <= high)).sum())
            volumes += len(millilitres)
            scores.append((distance.ged, distance.ged_floor, overlap))
            name = f"{patient[-4:]} n{row['nodule']}"
            readers_text = ", ".join(f"{value:.2f}" for value in millilitres)
            print(
                f"| {name} | {int((millilitres > 0).sum())} of 4 | {readers_text} "
                f"| {median:.2f} ({low:.2f} to {high:.2f}) "
                f"| {found['present']:.0%} | {distance.ged:.3f} | {distance.ged_floor:.3f} "
                f"| {distance.ged - distance.ged_floor:.3f} | {overlap:.3f} |"
            )
    ged, floor, overlap = np.mean(scores, axis=0)
    shares = f"{ged:.3f} | {floor:.3f} | {ged - floor:.3f} | {overlap:.3f}"
    print(f"| **mean** | | in the interval: {covered} of {volumes} | | | {shares} |")
    told = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    print(f"\nMedian volume of the samples over that of the readers who drew the nodule: {told}")


def bounding_box(mask: np.ndarray) -> tuple[slice, ...]:
    """Return the smallest box that holds all of a mask (columns, rows, slices)."""
    places = [np.flatnonzero(mask.any(tuple({0, 1, 2} - {axis}))) for axis in range(3)]
    return tuple(slice(found[0], found[-1] + 1) for found in places)


def flattened(masks: np.ndarray, box: tuple[slice, ...]) -> torch.Tensor:
    """Return volumes (N, columns, rows, slices) as (N, 1, voxels of the box): scores are of the whole volume."""
    return torch.from_numpy(np.ascontiguousarray(masks[:, *box]).reshape(len(masks), 1, -1))


def readers_on_grid(dataset: Dataset, rows: list[int], grid: tuple[int, ...]) -> np.ndarray:
    """Return what the readers drew of one nodule, (A, columns, rows, slices)."""
    drawn = np.zeros((dataset.info.num_annotators, *grid), np.uint8)
    for row in rows:
        case, labels = dataset.cases[row], dataset.labels[row]
        x, y = int(case["origin_x"]), int(case["origin_y"])
        left, top = max(0, -x), max(0, -y)
        inside = labels[:, top : grid[1] - y, left : grid[0] - x]
        height, width = inside.shape[1:]
        drawn[:, x + left : x + left + width, y + top : y + top + height, int(case["slice"])] = inside.swapaxes(
            1, 2
        )
    return drawn


if __name__ == "__main__":
    {"points": write_points, "compare": compare}[sys.argv[1]](*map(Path, sys.argv[2:]))
