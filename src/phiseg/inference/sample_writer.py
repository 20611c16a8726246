"""Write samples as NumPy arrays.

OUT/  labels.npy (cases, S, H, W) uint8   mean_probs.npy, mean_log_probs.npy (cases, K, H, W)
      gamma.npy (cases, H, W)             [probs.npy (cases, S, K, H, W)]
      cases.csv in the row order of the arrays

As in a dataset, the slices of volumes are stored one after the other: the first axis has the slices of all cases,
and the column `depth` of cases.csv has their numbers.
"""

import csv
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from tqdm import tqdm

from phiseg.core.files import atomic_folder
from phiseg.data.npy import NpyStream
from phiseg.data.store import Dataset
from phiseg.inference.sampling import CaseSamples

MARKER = "gamma.npy"
"""The file that identifies a folder of samples."""


def write_samples(
    out: Path,
    samples: Iterable[CaseSamples],
    dataset: Dataset,
    rows: Iterable[int],
    *,
    num_samples: int,
    with_probs: bool = False,
    overwrite: bool = False,
    progress: bool = False,
) -> None:
    """Write the samples of `rows` as they are drawn; the folder appears when it is complete.

    Raises:
        OutputError: the folder exists and `overwrite` is false, or it cannot be written.
    """
    rows = [int(row) for row in rows]
    num_classes = len(dataset.info.classes)
    shapes: dict[str, tuple[type, tuple[int, ...]]] = {
        "labels": (np.uint8, (num_samples,)),
        "mean_probs": (np.float32, (num_classes,)),
        "mean_log_probs": (np.float32, (num_classes,)),
        "gamma": (np.float32, ()),
    }
    if with_probs:
        shapes["probs"] = (np.float32, (num_samples, num_classes))
    with atomic_folder(out, overwrite=overwrite, marker=MARKER) as folder:
        with ExitStack() as stack:
            arrays = {
                name: stack.enter_context(
                    NpyStream(folder / f"{name}.npy", (*inner, *dataset.info.size), np.dtype(dtype))
                )
                for name, (dtype, inner) in shapes.items()
            }
            shown = tqdm(samples, "sampling", len(rows), unit="case", disable=not progress, dynamic_ncols=True)
            for row, case in zip(rows, shown, strict=True):
                assert case.row == row
                drawn = {**case.summary._asdict(), "gamma": case.summary.gamma, "probs": case.probs}
                for name, stream in arrays.items():
                    for part in drawn[name].movedim(-3, 0) if dataset.dims == 3 else drawn[name][None]:
                        stream.append(part.numpy())
        with (folder / "cases.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(dataset.cases[rows[0]]))
            writer.writeheader()
            writer.writerows(dataset.cases[row] for row in rows)
