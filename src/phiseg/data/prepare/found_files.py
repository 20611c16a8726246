"""Image files with the label files of their annotators, as found in a folder or listed in a table."""

import csv
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from phiseg.core.errors import DataError
from phiseg.data.splits import SPLIT_NAMES

_SPLITS = {"training": "train", "validation": "val", "valid": "val", "testing": "test"}
"""Common spellings of the names of splits."""


@dataclass(frozen=True)
class AnnotatedImage:
    """The files of one case.

    Raises:
        DataError: a name is not printable, as that of a file from a system with another encoding.
    """

    case: str
    patient: str
    images: tuple[Path, ...]
    """One file, or one per channel."""
    labels: dict[str, Path]
    """Label file of each annotator of this case."""
    split: str | None = None
    """Split in the source, if it has splits."""

    def __post_init__(self) -> None:
        for name in (self.case, self.patient, *self.labels):
            if not name.isprintable():
                raise DataError(f"the name {name!r} has unprintable characters; rename the file or folder")


@dataclass(frozen=True)
class FoundFiles:
    """Cases and annotators of a source."""

    layout: str
    cases: list[AnnotatedImage]
    num_cases: int
    """Number of cases found, including incomplete ones."""
    annotators: list[str]
    """Sorted names of all annotators; the position is the index of the annotator."""

    @property
    def has_splits(self) -> bool:
        """Whether the source assigns cases to splits."""
        return any(case.split for case in self.cases)


def annotators_of(cases: Iterable[AnnotatedImage]) -> list[str]:
    """Return the names of all annotators; numbers in names are sorted by value.

    >>> annotators_of([AnnotatedImage("c", "p", (), {"r10": Path(), "r2": Path()})])
    ['r2', 'r10']
    """
    return sorted({annotator for case in cases for annotator in case.labels}, key=by_numbers)


def by_numbers(name: str) -> list[tuple[int, int, str]]:
    """Return a key that sorts names with numbers in them by the values of these numbers."""
    parts = re.split(r"(\d+)", name)
    return [(0, int(part), part) if part.isdecimal() else (1, 0, part) for part in parts if part]


def split_name(name: str | None) -> str | None:
    """Return the usual name of a split, such as train for Training; other names are unchanged.

    >>> split_name("Training"), split_name("fold1"), split_name("")
    ('train', 'fold1', None)
    """
    if not name:
        return None
    lower = name.lower()
    return lower if lower in SPLIT_NAMES else _SPLITS.get(lower, name)


def unique_names(paths: Sequence[Path]) -> list[str]:
    """Return a short unique name for each file: the file name, the folder or the whole path, without suffixes.

    >>> unique_names([Path("a/image.nii.gz"), Path("b/image.nii.gz")])
    ['a', 'b']
    """
    for names in (list(map(stem_of, paths)), [path.parent.name for path in paths]):
        if len(set(names)) == len(names) and all(names):
            return names
    return [(path.parent / stem_of(path)).as_posix() for path in paths]


def stem_of(path: Path) -> str:
    """Return the name of a file without its suffix; .nii.gz is one suffix."""
    return path.name[:-7] if path.name.lower().endswith(".nii.gz") else path.stem


def read_patients(path: Path, cases: set[str]) -> dict[str, str]:
    """Read the patient of each case from a table `case,patient`; a missing file has none.

    Raises:
        DataError: the table is invalid, or names an unknown case.
    """
    patients: dict[str, str] = {}
    for line, row in read_rows(path) if path.exists() else ():
        case, patient = row.get("case", ""), row.get("patient", "")
        if not case or not patient:
            raise DataError(f"{path}, line {line}: no case or no patient; the first line must be 'case,patient'")
        if case not in cases:
            raise DataError(f"{path}, line {line}: unknown case '{case}'; fix the name or remove the line")
        if case in patients:
            raise DataError(f"{path}, line {line}: case '{case}' occurs twice; remove one of the lines")
        patients[case] = patient
    return patients


def read_rows(path: Path) -> list[tuple[int, dict[str, str]]]:
    """Return the rows of a CSV file with their line numbers; missing values are empty.

    The separator is a comma or, if the first line has none, a semicolon or a tab, as spreadsheets write them. Names
    of columns become lowercase.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            first = file.readline()
            file.seek(0)
            separator = next((mark for mark in ",;\t" if mark in first), ",")
            rows = csv.DictReader(file, delimiter=separator, strict=True, restkey="", restval="")
            rows.fieldnames = [name.strip().lower() for name in rows.fieldnames or ()]
            texts = [{name: text.strip() for name, text in row.items() if name} for row in rows]
            return list(enumerate(texts, start=2))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"cannot read {path} ({getattr(error, 'strerror', None) or error}); save it as CSV"
        ) from None
