"""Compare the volumes of samples with those of readers, on nodules whose stacks go beyond the last outline.

    python experiments/lidc_volumes/score.py MODEL VOLUMES.npz --noise-length 5 10 inf --noise-shared 0 0.5
    python experiments/lidc_volumes/score.py MODEL VOLUMES.npz --noise-length 5 --store --out NODULES.csv
    python experiments/lidc_volumes/score.py MODEL3D VOLUMES.npz --out NODULES.csv

A 3-D model has learned how slices belong together, so it takes no coupling, and `--store` has no effect. Samples
are drawn at the middle of each nodule, as `phiseg predict` draws them. For each nodule, the readers' volumes in ml
are compared with the samples' 90 % interval. A reader who did not outline the nodule counts as 0 ml.
The floor of the CRPS is that of samples from the readers' own distribution, if readers are independent given the
scan: half the mean difference between two readers.
"""

import argparse
import csv
from itertools import product
from math import inf, isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch

import phiseg
from phiseg.core.bundled import find_model
from phiseg.core.files import write_json
from phiseg.imaging.volume import Volume
from phiseg.inference.measures import measure
from phiseg.inference.preprocessing import Preprocessing, SliceCoupling, VolumeCheck
from phiseg.inference.sampling_options import Sampling
from phiseg.inference.scan_prediction import predict_volume
from phiseg.metrics.area import area_scores_from
from phiseg.models import Segmenter, load_model

READERS = 4


def main() -> None:
    """Score every coupling of the slices, print a table, and write a line for each nodule."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("volumes", type=Path)
    parser.add_argument("--noise-length", type=float, nargs="+", default=[inf])
    parser.add_argument("--noise-shared", type=float, nargs="+", default=[0.0])
    parser.add_argument("--num-samples", type=int, default=64)
    parser.add_argument("--patients", nargs="*", help="only these patients")
    parser.add_argument("--out", type=Path, help="CSV file with a line for each nodule")
    parser.add_argument(
        "--store", action="store_true", help="store the last coupling and its coverage in the model"
    )
    options = parser.parse_args()
    model = phiseg.load(options.model).network
    file = np.load(options.volumes)
    chosen = [
        i for i, patient in enumerate(file["case_ids"]) if not options.patients or patient in options.patients
    ]
    rows: list[dict[str, Any]] = []
    measured = ("inside 90 %", "width / mean volume", "volume ratio", "CRPS (ml)", "its floor", "presence off")
    print(f"| noise length | shared | nodules | {' | '.join(measured)} |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    couplings = product(options.noise_length, options.noise_shared) if model.config.dims == 2 else [(None, None)]
    for length, shared in couplings:
        sampling = Sampling(
            num_samples=options.num_samples, noise_length_mm=length, noise_shared=shared, level_draws=0
        )
        scored = [score_nodule(model, file, index, sampling) for index in chosen]
        rows += [{"noise_length_mm": length, "noise_shared": shared, **row} for row in scored]
        coupling = "learned |" if length is None else f"{length:g} mm | {shared:g}"
        print(f"| {coupling} | {len(scored)} | {summary(scored)} |", flush=True)
    if options.out:
        with options.out.open("w", newline="", encoding="utf-8") as table:
            writer = csv.DictWriter(table, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    if options.store and length is not None:
        coupling = SliceCoupling(length_mm=length if isfinite(length) else None, shared=shared)
        store(find_model(Path(options.model)), coupling, scored, name=options.volumes.stem)


def score_nodule(model: Segmenter, file: Any, index: int, sampling: Sampling) -> dict[str, Any]:
    """Sample one nodule and compare the volumes with the readers'."""
    volume, point, readers = nodule(file, index)
    prediction = predict_volume(model, volume, point=point, sampling=sampling, name=f"nodule {index}")
    found = measure(prediction).classes["nodule"]
    spread = found.volume_ml
    scores = area_scores_from(torch.tensor(spread.samples)[:, None], torch.from_numpy(readers)[:, None])
    inside = (readers >= spread.low - 1e-9) & (readers <= spread.high + 1e-9)
    return {
        "patient": str(file["case_ids"][index]),
        "nodule": int(file["nodule"][index]),
        "readers_ml": " ".join(f"{value:.4g}" for value in readers),
        "median_ml": round(spread.median, 5),
        "low_ml": round(spread.low, 5),
        "high_ml": round(spread.high, 5),
        "inside": round(float(inside.mean()), 4),
        "width": round((spread.high - spread.low) / readers.mean(), 4),
        "ratio": round(float(np.mean(spread.samples)) / readers.mean(), 4),
        "crps_ml": round(scores.crps or 0.0, 5),
        "crps_floor_ml": round(float(np.abs(readers[:, None] - readers).sum()) / (READERS * (READERS - 1)) / 2, 5),
        "present": found.present,
        "readers_present": float((readers > 0).mean()),
    }


def summary(rows: list[dict[str, Any]]) -> str:
    """Return the cells of the table: means over nodules; medians of width and ratio."""
    off = np.mean([abs(row["present"] - row["readers_present"]) for row in rows])
    inside, crps, floor = (np.mean([row[key] for row in rows]) for key in ("inside", "crps_ml", "crps_floor_ml"))
    width, ratio = (np.median([row[key] for row in rows]) for key in ("width", "ratio"))
    return f"{inside:.2f} | {width:.2f} | {ratio:.2f} | {crps:.3f} | {floor:.3f} | {off:.2f}"


def nodule(file: Any, index: int) -> tuple[Volume, tuple[int, int, int], np.ndarray]:
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


def store(folder: Path, coupling: SliceCoupling, rows: list[dict[str, Any]], *, name: str) -> None:
    """Write the coupling of slices and what was measured with it into a model folder."""
    coverage = round(float(np.mean([row["inside"] for row in rows])), 3)
    model = load_model(folder)
    check = VolumeCheck(
        dataset=name,
        num_lesions=len(rows),
        num_annotators=READERS,
        coverage=coverage,
        noise=model.calibration.noise,
    )
    before = Preprocessing.of(model)
    after = before.model_copy(update={"slice_coupling": coupling, "volume_check": check})
    write_json(folder / "preprocessing.json", after.to_json())


if __name__ == "__main__":
    main()
