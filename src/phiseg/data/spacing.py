"""Columns of cases.csv with the pixel spacing and the slice spacing of a case."""

from collections.abc import Mapping
from math import inf

SQUARE = "spacing_mm"
"""One number for both axes."""
VERTICAL, HORIZONTAL = "row_spacing_mm", "column_spacing_mm"
"""Distance between rows and between columns; written from NIfTI."""
AXES = ("spacing_mm_0", "spacing_mm_1")
"""The same two numbers; written from arrays."""
COLUMNS = ((SQUARE, SQUARE), (VERTICAL, HORIZONTAL), AXES)
"""All spellings that are read, vertical and horizontal; the first valid one counts."""
SLICES = "slice_spacing_mm"
"""Distance between the centres of adjacent slices of a volume."""
THICKNESS = "slice_thickness_mm"
"""Thickness of a slice, which may differ from the distance between slices."""


def case_spacing(case: Mapping[str, str]) -> tuple[float, float] | None:
    """Return the spacing (vertical, horizontal) in a row of cases.csv, or None if there is no valid one.

    >>> case_spacing({"row_spacing_mm": "0.5", "column_spacing_mm": "0.75"})
    (0.5, 0.75)
    """
    for vertical, horizontal in COLUMNS:
        try:
            spacing = float(case[vertical]), float(case[horizontal])
        except (KeyError, ValueError):
            continue
        if all(0 < mm < inf for mm in spacing):
            return spacing
    return None


def positive_number(case: Mapping[str, str], column: str) -> float | None:
    """Return a positive number in a row of cases.csv, or None if there is none.

    >>> positive_number({"slice_spacing_mm": "2.5"}, SLICES)
    2.5
    """
    try:
        number = float(case[column])
    except (KeyError, ValueError):
        return None
    return number if 0 < number < inf else None
