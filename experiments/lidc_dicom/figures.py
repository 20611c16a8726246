"""Pictures of predicted nodules with their readers.

figures.py DATA POINTS.csv SCANS PRED OUT   write OUT/volumes.png and OUT/slices.png

volumes.png: histogram of the sampled volumes of each nodule, with the volume of every reader.
slices.png: the slices below, at, inside and above each nodule, with the readers' outlines and the share of samples.
"""

import csv
import json
import sys
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import nibabel
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from nodules import case_folder, nodules_of, readers_on_grid

from phiseg.data.store import Dataset
from phiseg.imaging.series import read_series
from phiseg.plotting.primitives import outline_mask, style, to_png

HALF = 32
"""Half the side of a picture in pixels."""
READER_COLOURS = ("#ffb000", "#00d5ff", "#ff4fa3", "#7dff5a")


def main(data: Path, points: Path, scans: Path, predicted: Path, out: Path) -> None:
    """Write both pictures."""
    dataset = Dataset.open(data)
    nodules = nodules_of(dataset)
    listed = list(csv.DictReader(points.open()))
    with style():
        volumes = Figure(figsize=(9, 1.5 * len(listed) / 2), layout="constrained")
        slices = Figure(figsize=(7.5, 1.6 * len(listed)), layout="constrained")
        histograms = volumes.subplots(-(-len(listed) // 2), 2, squeeze=False).ravel()
        pictures = slices.subplots(len(listed), 5)
        number: Counter[str] = Counter()
        for row, histogram, panels in zip(listed, histograms, pictures, strict=False):
            uid = row["case"]
            number[uid] += 1
            rows = nodules[uid, row["nodule"]]
            patient = dataset.cases[rows[0]]["patient"]
            folder = case_folder(predicted, patient, number[uid])
            image = nibabel.load(folder / "samples.nii.gz")
            samples = np.moveaxis(np.asanyarray(image.dataobj).astype(bool), 3, 0)  # (S, columns, rows, slices)
            readers = readers_on_grid(dataset, rows, samples.shape[1:]) > 0
            voxel_ml = abs(np.linalg.det(image.affine[:3, :3])) / 1000
            name = f"{patient[-4:]} n{row['nodule']}"
            interval = json.loads((folder / "summary.json").read_text())["classes"]["nodule"]["volume_ml"]
            sampled, outlined = (masks.sum((1, 2, 3)) * voxel_ml for masks in (samples, readers))
            draw_volumes(histogram, sampled, outlined, (interval["low"], interval["high"]), name)
            draw_slices(panels, read_values(scans / uid), samples, readers, (int(row["x"]), int(row["y"])), name)
        for unused in histograms[len(listed) :]:
            unused.axis("off")
    out.mkdir(parents=True, exist_ok=True)
    (out / "volumes.png").write_bytes(to_png(volumes))
    (out / "slices.png").write_bytes(to_png(slices))


@cache
def read_values(folder: Path) -> np.ndarray:
    """Return the CT values (columns, rows, slices) of a series."""
    return read_series(folder).volume.values


def draw_volumes(
    axes: Axes, samples: np.ndarray, readers: np.ndarray, interval: tuple[float, float], name: str
) -> None:
    """Draw the histogram of the sampled volumes, their 90 % interval, and a line at the volume of each reader."""
    limit = 1.1 * max(np.quantile(samples, 0.99), readers.max())
    axes.hist(np.minimum(samples, limit), bins=30, range=(0, limit), color="#9ab7d3")
    heights = Counter(readers.round(4).tolist())
    for reader, colour in zip(readers, READER_COLOURS, strict=True):
        axes.axvline(reader, color=colour, linewidth=1.4, alpha=1 / min(heights[round(float(reader), 4)], 2))
    axes.axvspan(*interval, color="#000000", alpha=0.06)
    drew = f"{(readers > 0).sum()} of {len(readers)} readers"
    axes.set_title(f"{name}: {drew}; in {np.mean(samples > 0):.0%} of the samples", loc="left")
    axes.set_xlabel("volume (ml)")
    axes.set_yticks([])


def draw_slices(
    panels: Sequence[Axes],
    scan: np.ndarray,
    samples: np.ndarray,
    readers: np.ndarray,
    point: tuple[int, int],
    name: str,
) -> None:
    """Draw five slices: beyond the first outline, the first, the middle, the last, and beyond the last."""
    drawn = np.flatnonzero(readers.any((0, 1, 2)))
    low, high = drawn[0], drawn[-1]
    shown = [
        ("2 below", low - 2),
        ("first", low),
        ("middle", (low + high) // 2),
        ("last", high),
        ("2 above", high + 2),
    ]
    window = tuple(slice(max(0, centre - HALF), centre + HALF) for centre in point)
    for axes, (title, number) in zip(panels, shown, strict=True):
        axes.set_xticks([])
        axes.set_yticks([])
        if not 0 <= number < scan.shape[2]:
            axes.axis("off")
            continue
        axes.imshow(scan[*window, number].T, cmap="gray", vmin=-1000, vmax=400)
        share = samples[:, *window, number].mean(0).T
        axes.imshow(np.ma.masked_less(share, 0.05), cmap="viridis", vmin=0, vmax=1, alpha=0.55)
        for reader, colour in zip(readers, READER_COLOURS, strict=True):
            outline_mask(axes, reader[*window, number].T, colour)
        found = samples[:, :, :, number].any((1, 2)).mean()
        drew = readers[:, :, :, number].any((1, 2)).sum()
        axes.set_title(f"{title}: {drew} of 4, {found:.0%}")
    panels[0].set_ylabel(name)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
