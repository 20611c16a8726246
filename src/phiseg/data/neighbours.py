"""Neighbouring slices: rows of a dataset that are adjacent in the body.

Rows of cases.csv with the same patient, scan, series and lesion form a stack, ordered by the integer `slice`.

N cases, c slices of context on each side.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

STACK_COLUMNS = ("patient", "scan", "plane", "series", "series_uid", "nodule")
"""Columns of cases.csv, if present, that are equal for all slices of a stack."""
MISSING_ROW = -1
"""Row number of a neighbour that is not in the dataset."""


def neighbour_offsets(context: int) -> list[int]:
    """Return the offsets of the slices in the order of the network's input channels.

    >>> neighbour_offsets(2)
    [0, -1, 1, -2, 2]
    """
    return [0, *(side * distance for distance in range(1, context + 1) for side in (-1, 1))]


def with_neighbours(slices: NDArray[np.int64], num_slices: int, context: int) -> NDArray[np.int64]:
    """Return the numbers of slices and of their neighbours, (n, 1 + 2c), in the order of `neighbour_offsets`.

    If a neighbour is outside the volume, the slice itself stands in for all of them, as in training.

    >>> with_neighbours(np.arange(3), 3, context=1).tolist()
    [[0, 0, 0], [1, 0, 2], [2, 2, 2]]
    """
    stacks: NDArray[np.int64] = slices[:, None] + np.array(neighbour_offsets(context))
    outside = ((stacks < 0) | (stacks >= num_slices)).any(1)
    stacks[outside] = slices[outside, None]
    return stacks


def find_neighbours(cases: Sequence[Mapping[str, str]], context: int) -> NDArray[np.int64]:
    """Return the rows of each case and its neighbours, (N, 1 + 2c), in the order of `neighbour_offsets`.

    Neighbours that are not in the dataset are `MISSING_ROW`. Without a column `slice`, all are missing, and so are
    those of a stack with a repeated number, whose slices come from several scans.

    Args:
        cases: rows of cases.csv.
        context: c, the number of neighbours on each side.
    """
    places = [_place(case) for case in cases]
    mixed = {place[0] for place in repeated_places(cases)}
    rows = {place: row for row, place in enumerate(places) if place is not None and place[0] not in mixed}
    offsets = neighbour_offsets(context)
    found = np.full((len(cases), len(offsets)), MISSING_ROW, dtype=np.int64)
    found[:, 0] = np.arange(len(cases))
    for row, place in enumerate(places):
        if place is not None:
            stack, number = place
            found[row, 1:] = [rows.get((stack, number + offset), MISSING_ROW) for offset in offsets[1:]]
    return found


def repeated_places(cases: Sequence[Mapping[str, str]]) -> set[tuple[tuple[str, ...], int]]:
    """Return the places of several cases: stack and number, see `STACK_COLUMNS`."""
    return {place for place, number in Counter(map(_place, cases)).items() if place is not None and number > 1}


def _place(case: Mapping[str, str]) -> tuple[tuple[str, ...], int] | None:
    """Return the stack of a case and its number in the stack, or None if cases.csv has no slice number."""
    try:
        number = int(case["slice"])
    except (KeyError, ValueError):
        return None
    return tuple(case.get(column, "") for column in STACK_COLUMNS), number
