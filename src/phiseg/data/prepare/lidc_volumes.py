"""Join the crops of a nodule, slice by slice, to a volume.

A annotation slots, D slices, H x W pixels.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby

import numpy as np

from phiseg.core.errors import DataError
from phiseg.data.prepare.skipped import SkippedCases
from phiseg.data.spacing import SLICES
from phiseg.data.writer import Case

_OF_SLICES = ("slice", "slice_z_mm", "sop_uid", "outlined")
"""Columns that differ between the slices of a nodule."""


def volumes_of(crops: Iterable[Case], name: str, skipped: SkippedCases) -> Iterator[Case]:
    """Yield one volume for each nodule of a series.

    Args:
        crops: slices of the series, ordered by nodule and slice.
        name: name of the series, with which the names of its volumes begin.
        skipped: receives the nodules whose slices are not at equal distances.
    """
    for nodule, slices in groupby(crops, key=lambda crop: crop.columns["nodule"]):
        case = f"{name}-n{nodule}"
        volumes: list[Case] = []
        with skipped.unless_good(case):
            volumes.append(_join(case, list(slices)))
        yield from volumes


def _join(name: str, slices: list[Case]) -> Case:
    """Return the slices of a nodule as one case.

    Raises:
        DataError: a slice is missing.
    """
    first = slices[0].columns
    numbers = [int(crop.columns["slice"]) for crop in slices]
    distances = np.abs(np.diff([float(crop.columns["slice_z_mm"]) for crop in slices]))
    if (np.diff(numbers) != 1).any() or not np.allclose(distances, float(first[SLICES]), rtol=0.05):
        raise DataError("a slice is missing, so it cannot be a volume; download the series again")
    columns = {key: value for key, value in first.items() if key not in _OF_SLICES}
    columns |= {"first_slice": numbers[0], "first_slice_z_mm": first["slice_z_mm"]}
    return Case(
        case=name,
        patient=slices[0].patient,
        image=np.stack([crop.image for crop in slices], axis=1),  # (1, D, H, W)
        labels=np.stack([crop.labels for crop in slices], axis=1),  # (A, D, H, W)
        valid=slices[0].valid,
        columns=columns,
    )
