"""Prepare arrays from an .npz file with images and masks.

    phiseg prepare arrays FILE.npz DATA

| key | shape | content |
|---|---|---|
| `images` | (N, H, W) or (N, H, W, C) | numbers |
| `masks` | (N, A, H, W), or (N, H, W) for one annotator | class indices |
| `valid` | (N, A) | false where the annotation is missing; by default none is |
| `case_ids` | (N,) | patient; by default each row is a separate patient |
| `split` | (N,) | name of the split; by default patients are split at random |
| `pixel_spacing_mm` | a number, (N,) or (N, 2) | vertical and horizontal spacing |

Other arrays (N,), or (N, M) with a small M, become columns of cases.csv. The columns `nodule` and `slice` are also
used in the names of cases: PATIENT-nodule-N-slice-M. `arrays_volumes` describes files with volumes.
"""

import hashlib
from pathlib import Path

from phiseg.core.errors import DataError
from phiseg.core.files import AnyPath, check_replaceable
from phiseg.data.prepare.arrays_npz import Npz
from phiseg.data.prepare.arrays_slices import ArraysSource
from phiseg.data.prepare.arrays_volumes import listed_numbers, volumes_in
from phiseg.data.prepare.fixed_size import write_fixed_size
from phiseg.data.prepare.fixed_size_source import FixedSizeOptions
from phiseg.data.store import Dataset


def prepare_arrays(
    path: AnyPath,
    out: AnyPath,
    options: FixedSizeOptions | None = None,
    *,
    volumes: bool = False,
    overwrite: bool = False,
    command: str = "",
    progress: bool = True,
) -> Dataset:
    """Convert an .npz file to a prepared dataset, row by row.

    Args:
        path: .npz file; nothing in it is unpickled.
        out: folder of the dataset to write.
        options: options chosen by the user.
        volumes: write a dataset of volumes, see `arrays_volumes`.
        overwrite: replace an existing dataset.
        command: command line to store in the dataset.
        progress: show progress bars.

    Raises:
        DataError: the file is damaged, or the shapes of its arrays do not match.
        OutputError: `out` exists and `overwrite` is false, or it cannot be written.
    """
    path, out = Path(path), Path(out)
    check_replaceable(out, overwrite=overwrite, marker="dataset.json")
    with Npz(path) as npz:
        if not volumes and "images" not in npz.headers and listed_numbers(npz):
            raise DataError(f"{path} contains volumes (image_000, ...); pass --volumes (in Python: volumes=True)")
        return write_fixed_size(
            out,
            volumes_in(npz) if volumes else ArraysSource(npz),
            options or FixedSizeOptions(),
            provenance={"kind": "arrays", "file": path.name, "sha256": sha256_of(path)},
            dims=3 if volumes else 2,
            overwrite=overwrite,
            command=command,
            progress=progress,
        )


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
