"""Checks of arguments before slow imports such as PyTorch, so that typing errors are reported at once.

The functions that do the work check their arguments again.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from phiseg.core.bundled import find_model
from phiseg.core.errors import DataError, OutputError
from phiseg.inference.input_checks import check_point


def check_exists(path: Path, *, advice: str = "check the path") -> None:
    """Raise a DataError if the path does not exist."""
    if not path.exists():
        raise DataError(f"{path} does not exist; {advice}")


def check_writable(folder: Path) -> None:
    """Raise an OutputError if results cannot be written into a folder, which need not exist."""
    try:
        place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    except OSError as error:  # such as a name that is too long
        raise OutputError(f"cannot write to {folder}: {error.strerror}; choose another folder") from None
    if not (place.is_dir() and os.access(place, os.W_OK)):
        raise OutputError(f"cannot write to {folder}: {place} is not a writable directory; choose another folder")


def check_points(points: Sequence[str], table: Path | None) -> None:
    """Raise an error if one of the points or the table of points is invalid."""
    if not (points or table):
        return
    from phiseg.inference.points import Point, read_points  # here, because it imports NumPy

    for point in points:
        Point.parse(point)
    if table:
        read_points(table)


def check_model_and_data(model: str | Path, data: Path) -> None:
    """Raise an error if there is no such model or no such dataset."""
    find_model(Path(model))
    check_is_dataset(data)


def check_is_dataset(data: Path) -> None:
    """Raise a DataError if the folder is not a dataset."""
    from phiseg.data.store import Dataset

    Dataset.open(data)


def check_needs_no_point(model: str, inputs: Sequence[Path], *, option: str) -> None:
    """Raise a ConfigError if the model needs a point.

    A damaged preprocessing.json is reported when the model is loaded.
    """
    try:
        stored = json.loads((find_model(Path(model)) / "preprocessing.json").read_text(encoding="utf-8"))
        centred_on = stored["centred_on"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return
    if isinstance(centred_on, str):
        check_point(centred_on, has_point=False, name=inputs[0].absolute().name, option=option)
