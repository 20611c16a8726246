"""Score a perfect sampler on a phantom: 100 further annotators of every test case, against those of the dataset.

Usage: perfect.py KIND DATA [CASES.csv.gz], with a file for the scores of every case
"""

import csv
import gzip
import io
import sys
from pathlib import Path

import numpy as np
import torch

from phiseg.core.random import derive_seed
from phiseg.data.prepare.phantom import draw_scene
from phiseg.data.store import Dataset
from phiseg.metrics import energy_distance

kind, dataset = sys.argv[1], Dataset.open(Path(sys.argv[2]))
scores = []
for row in dataset.rows("test").tolist():
    scene = draw_scene(kind, seed=dataset.info.seed, index=row, size=dataset.info.size[0])
    assert np.allclose(scene.image, dataset.images[row][0], atol=1e-3), "another version of the phantom made this"
    drawn = scene.annotate(100, np.random.default_rng(derive_seed(0, "perfect", row)))
    annotations = torch.from_numpy(dataset.annotations(row))
    scores.append(energy_distance(torch.from_numpy(drawn), annotations, num_classes=len(dataset.info.classes)))
if len(sys.argv) > 3:
    terms = ("cross", "within_samples", "within_annotations")
    names = ("ged", "ged_unbiased", "ged_floor", *terms)
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["case", "patient", *names[:3], *(f"ged_{term}" for term in terms)])
    for row, score in zip(dataset.rows("test").tolist(), scores, strict=True):
        case = dataset.cases[row]
        writer.writerow([case["case"], case["patient"], *(getattr(score, name) for name in names)])
    Path(sys.argv[3]).write_bytes(gzip.compress(table.getvalue().encode(), mtime=0))
ged, unbiased = (np.array([getattr(score, name) for score in scores]) for name in ("ged", "ged_unbiased"))
error = unbiased.std(ddof=1) / np.sqrt(len(unbiased))
print(f"{kind}: GED {ged.mean():.4f}, unbiased {unbiased.mean():.4f} +- {error:.4f} ({len(ged)} cases)")
