"""Names of cases chosen by the user: a table with the columns scan and case."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from phiseg.core.errors import ConfigError, DataError
from phiseg.inference.points import read_rows
from phiseg.inference.scans import ScanFile, file_name

COLUMNS = ("scan", "case")
RESERVED = ("cases.csv", "failed.csv", "report.html")
"""Files next to the folders of the cases. No case can have their names."""


def read_case_names(path: Path) -> dict[str, str]:
    """Read a CSV file with the columns scan and case.

    Returns:
        The name of the case of each scan. A scan is a path, a file or folder name, a series UID or a patient ID.

    Raises:
        DataError: the file cannot be read, has other columns, names a scan or a case twice, or has an invalid name.
    """
    names: dict[str, str] = {}
    for line, row in read_rows(path, COLUMNS, needs="scan,case", others=False):
        scan, case = ((row[column] or "").strip() for column in COLUMNS)
        if not scan or not case or None in row:  # None in row: more fields than columns
            raise DataError(f"{path}, line {line} is not a scan and the name of its case; give both")
        if case != file_name(case):
            raise DataError(
                f"{path}, line {line}: '{case}' is not a valid name; use at most 64 letters, digits and "
                "characters of '_-.', and start and end with a letter or digit"
            )
        if case.casefold() in RESERVED:
            raise DataError(f"{path}, line {line}: '{case}' is the name of a file in the results; use another name")
        if scan in names or case in names.values():
            twice = f"the scan '{scan}'" if scan in names else f"the case '{case}'"
            raise DataError(f"{path}, line {line}: {twice} is listed twice; remove one of the lines")
        if alike := [other for other in names.values() if other.casefold() == case.casefold()]:
            raise DataError(f"{path}, line {line}: {only_case_differs(alike[0], case)}; rename one of them")
        names[scan] = case
    if not names:
        raise DataError(f"{path} has no names; give one scan and its case per line")
    return names


def only_case_differs(first: str, second: str) -> str:
    """Return the problem of two names of folders that are one on some disks."""
    return f"the names '{first}' and '{second}' differ only in case, which some disks ignore"


def name_scans(scans: Sequence[ScanFile], names: Mapping[str, str]) -> list[ScanFile]:
    """Return the scans with the names of a table, sorted by name. Other entries of the table are ignored.

    Raises:
        ConfigError: a scan is not in the table, or listed twice in different ways; or an entry is ambiguous.
    """
    entries = {scan: [entry for entry in names if scan.is_called(entry)] for scan in scans}
    for entry, number in Counter(entry for found in entries.values() for entry in found).items():
        if number > 1:
            raise ConfigError(f"the table of names lists '{entry}', but {number} scans match it; use their paths")
    for scan, found in entries.items():
        if not found:
            raise ConfigError(f"the table of names does not list {scan.path}; add a line with its path and a name")
        if len(found) > 1:
            raise ConfigError(f"the table of names lists {scan.path} as '{found[0]}' and as '{found[1]}'; keep one")
    renamed = [replace(scan, name=names[found[0]], is_named=True) for scan, found in entries.items()]
    return sorted(renamed, key=lambda scan: scan.name)
