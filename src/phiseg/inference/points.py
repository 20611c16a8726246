"""Points in a scan, in voxels or in millimetres of world coordinates. Importing this module is fast."""

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

import numpy as np

from phiseg.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from phiseg.imaging.volume import Volume

Unit = Literal["voxel", "mm", "lps"]
COLUMNS = ("case", "x", "y", "z")


@dataclass(frozen=True)
class Point:
    """A point inside a lesion.

    `voxel`: indices from 0 along the axes of the file (DICOM series: column, row, slice by ascending depth).
    `mm`: world coordinates of NIfTI (right, anterior, superior). `lps`: patient coordinates of DICOM (left,
    posterior, superior).
    """

    x: float
    y: float
    z: float
    unit: Unit = "voxel"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `x,y,z`, `mm:x,y,z` or `lps:x,y,z`.

        Raises:
            ConfigError: the text has another form.
        """
        unit, colon, numbers = text.rpartition(":")
        try:
            x, y, z = (float(number) for number in numbers.split(","))
            if (colon and unit not in ("mm", "lps")) or not np.isfinite([x, y, z]).all():
                raise ValueError
        except ValueError:
            raise ConfigError(
                f"'{text}' is not a point; write x,y,z in voxels, such as 120,88,40, or mm:x,y,z or lps:x,y,z"
            ) from None
        return cls(x, y, z, "mm" if unit == "mm" else "lps" if unit == "lps" else "voxel")

    def in_voxels(self, volume: "Volume") -> tuple[float, float, float]:
        """Return (i, j, k) along the axes of the volume."""
        if self.unit == "voxel":
            return self.x, self.y, self.z
        sign = -1 if self.unit == "lps" else 1
        i, j, k = (np.linalg.inv(volume.affine) @ [sign * self.x, sign * self.y, self.z, 1])[:3]
        return float(i), float(j), float(k)


def read_points(path: Path) -> dict[str, list[Point]]:
    """Read a CSV file with the columns case, x, y, z and, unless in voxels, unit.

    Returns:
        The points of each case in the order of the file.

    Raises:
        DataError: the file cannot be read, or a line is invalid.
    """
    points: dict[str, list[Point]] = {}
    for line, row in read_rows(path, COLUMNS, needs="case,x,y,z and optionally unit"):
        unit = (row.get("unit") or "").strip() or "voxel"
        try:
            x, y, z = (float(row[axis]) for axis in "xyz")
            case = row["case"]
            if case is None or unit not in get_args(Unit) or None in row or not np.isfinite([x, y, z]).all():
                raise ValueError  # None in row: more fields than columns, as with a decimal comma
        except (TypeError, ValueError):
            raise DataError(
                f"{path}, line {line} is not a point; give a case, three numbers and the unit (voxel, mm or lps)"
            ) from None
        points.setdefault(case.strip(), []).append(Point(x, y, z, unit))  # type: ignore[arg-type]
    if not points:
        raise DataError(f"{path} has no points; give one point per line")
    return points


def read_rows(
    path: Path, columns: Sequence[str], *, needs: str, others: bool = True
) -> Iterator[tuple[int, dict[str | Any, Any]]]:
    """Yield the line number and the fields of each row of a CSV file.

    Args:
        path: file in UTF-8 with a header, in any case.
        columns: columns that the file must have.
        needs: these columns, for error messages.
        others: accept further columns.

    Raises:
        DataError: the file cannot be read, or has other columns.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            table = csv.DictReader(file)
            table.fieldnames = found = [name.strip().lower() for name in table.fieldnames or ()]
            missing = [column for column in columns if column not in found]
            unknown = [column for column in found if column not in columns and not others]
            if missing:
                raise DataError(f"{path} has no column {', '.join(missing)}; it needs {needs}")
            if unknown:
                raise DataError(f"{path} has the unknown column {', '.join(unknown)}; it needs {needs}")
            for row in table:
                yield table.line_num, row
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; check the name") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is not a CSV file in UTF-8 ({error}); save it again") from None


def read_point_annotations(path: Path) -> list[Point]:
    """Read a JSON file of type "Point" or "Multiple points" of grand-challenge.org, in patient coordinates (LPS).

    Raises:
        DataError: the file cannot be read, or contains no points.
    """
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        points = []
        for entry in stored.get("points", [stored]):
            x, y, z = map(float, entry["point"])
            points.append(Point(x, y, z, "lps"))
        if not points or not all(np.isfinite([point.x, point.y, point.z]).all() for point in points):
            raise ValueError
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; check the name") from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise DataError(
            f'{path} has no valid points; it needs {{"points": [{{"point": [x, y, z]}}]}} with coordinates in mm '
            "(left, posterior, superior)"
        ) from None
    return points
