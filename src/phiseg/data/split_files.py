"""Split files: the patients of each split under a name, so that a split can be published and cited.

    {"format": "phiseg-split", "version": 1, "name": "...", "source": "...",
     "splits": {"train": [patients], "val": [...], "test": [...]}}

The file has no images, so it applies to every dataset with the same patient identifiers.
"""

import json
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field, StringConstraints

from phiseg.core.config import StrictConfig
from phiseg.core.errors import ConfigError, DataError
from phiseg.core.files import check_new_file, write_json
from phiseg.core.formats import SPLIT
from phiseg.data.splits import FILE_NAME, FILE_SOURCE, check_splits, write_splits
from phiseg.data.store import Dataset

_NUM_NAMED = 3
"""Number of patients in an error message."""


class SplitFile(StrictConfig):
    """The content of a split file."""

    format: str = SPLIT.name
    version: int = SPLIT.version
    name: Annotated[str, StringConstraints(pattern=FILE_NAME)]
    """Name to cite the split by, such as `lidc-slices-2026`; without spaces."""
    source: Annotated[str, StringConstraints(pattern=FILE_SOURCE)] = ""
    """Origin of the split: a citation, an address, or how it was drawn."""
    splits: dict[str, list[str]] = Field(min_length=1)
    """Patients of each split."""


class AppliedSplit(NamedTuple):
    """A dataset with the splits of a file."""

    dataset: Dataset
    absent: list[str]
    """Patients of the file that the dataset does not have."""
    unassigned: list[str]
    """Patients of the dataset that are in no split of the file."""


def read_split_file(path: Path) -> SplitFile:
    """Read and check a split file.

    Raises:
        DataError: the file is missing, damaged or of another format, or a patient is in two splits.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"cannot read {path} ({getattr(error, 'strerror', None) or error})") from None
    if not SPLIT.is_readable(values):
        raise DataError(f"{path} is not a split file of version {SPLIT.version}; write one with phiseg data split")
    try:
        found = SplitFile.parse(values, where=str(path))
    except ConfigError as error:
        raise DataError(str(error)) from None
    check_splits(found.splits, {patient for part in found.splits.values() for patient in part}, where=str(path))
    return found


def write_split_file(
    dataset: Dataset, path: Path, *, name: str, source: str = "", overwrite: bool = False
) -> SplitFile:
    """Write the current splits of a dataset as a split file.

    Raises:
        ConfigError: the name or the source is invalid.
        OutputError: the file exists and `overwrite` is false, or it cannot be written.
    """
    check_new_file(path, overwrite=overwrite)
    splits = {part: sorted(members) for part, members in dataset.splits.items()}
    made = SplitFile.parse({"name": name, "source": source, "splits": splits}, where="the split file")
    write_json(path, made.model_dump(mode="json"))
    return made


def apply_split_file(dataset: Dataset, path: Path, *, partial: bool = False) -> AppliedSplit:
    """Replace the splits of a dataset by those of a file.

    Patients of the dataset that are not in the file are in no split afterwards.

    Args:
        dataset: dataset whose splits.json is replaced.
        path: split file.
        partial: accept a dataset without some of the patients of the file.

    Raises:
        DataError: the file is invalid, or the dataset lacks patients of it and `partial` is false, or it has none.
    """
    file = read_split_file(path)
    patients = {case["patient"] for case in dataset.cases}
    listed = [patient for members in file.splits.values() for patient in members]
    absent = [patient for patient in listed if patient not in patients]
    if absent and (not partial or len(absent) == len(listed)):
        names = ", ".join(f"'{patient}'" for patient in absent[:_NUM_NAMED])
        fix = "use the dataset of the split" if len(absent) == len(listed) else "pass --partial to omit them"
        number = f"{len(absent)} of the {len(listed)} patients in {path}"
        raise DataError(f"{dataset.path} has no cases of {number}, such as {names}; {fix}")
    splits = {name: [patient for patient in part if patient in patients] for name, part in file.splits.items()}
    write_splits(dataset.path / "splits.json", splits, name=file.name, source=file.source)
    return AppliedSplit(Dataset.open(dataset.path), absent, sorted(patients - set(listed)))
