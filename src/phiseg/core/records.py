"""A small table that pandas, polars and a notebook can show, without depending on any of them."""

import csv
import html
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, overload

from phiseg.core.errors import ConfigError, nearest


class Records(Sequence[dict[str, Any]]):
    """A table with one dict per row; every row has the same keys, and None marks an undefined value.

    `pandas.DataFrame(table)` and `polars.DataFrame(table)` work as they are.

    >>> table = Records([{"case": "a", "ged": 0.25}, {"case": "b"}])
    >>> table[0]
    {'case': 'a', 'ged': 0.25}
    >>> table["ged"]
    [0.25, None]
    >>> print(table)
    case   ged
    a     0.25
    b        -
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]], *, columns: Iterable[str] = ()):
        given = [dict(row) for row in rows]
        first = rows.columns if isinstance(rows, Records) else columns  # a table without rows has columns, too
        self.columns: list[str] = list(dict.fromkeys([*first, *(name for row in given for name in row)]))
        """The names of the columns."""
        self._rows = [{name: row.get(name) for name in self.columns} for row in given]

    @classmethod
    def from_columns(cls, columns: Mapping[str, Sequence[Any]]) -> "Records":
        """Return a table from its columns, all of one length."""
        rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
        return Records(rows, columns=columns)

    @classmethod
    def from_csv(cls, text: str, *, text_columns: Iterable[str] = ()) -> "Records":
        r"""Return a CSV file as a table.

        >>> Records.from_csv("method,ged,best\n7,0.25,true\n8,,false\n", text_columns=["method"])[0]
        {'method': '7', 'ged': 0.25, 'best': True}

        Args:
            text: the file, with a header. A column becomes numbers or truth values if all its values are; an empty
                field becomes None.
            text_columns: columns that stay text.
        """
        header, *rows = csv.reader(io.StringIO(text))
        fields = map(list, zip(*rows, strict=True)) if rows else ([] for _ in header)
        columns = dict(zip(header, fields, strict=True))
        kept = set(text_columns)
        return cls.from_columns({k: _as_text(v) if k in kept else _converted(v) for k, v in columns.items()})

    @overload
    def __getitem__(self, key: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, key: slice) -> "Records": ...
    @overload
    def __getitem__(self, key: str) -> list[Any]: ...

    def __getitem__(self, key: int | slice | str) -> "dict[str, Any] | Records | list[Any]":
        """Return a row by its number, some rows by a slice, or a column by its name."""
        if isinstance(key, str):
            if key not in self.columns:
                raise ConfigError(f"the table has no column '{key}' ({nearest(key, self.columns)})")
            return [row[key] for row in self._rows]
        return Records(self._rows[key], columns=self.columns) if isinstance(key, slice) else self._rows[key]

    def __len__(self) -> int:
        return len(self._rows)

    def __str__(self) -> str:
        cells = [self.columns, *([_shown(value) for value in row.values()] for row in self._rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        numeric = [_is_numeric(self[name]) for name in self.columns]
        lines = [
            "  ".join(
                cell.rjust(width) if right else cell.ljust(width)
                for cell, width, right in zip(line, widths, numeric, strict=True)
            )
            for line in cells
        ]
        return "\n".join(line.rstrip() for line in lines)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """Return the table as a notebook shows it."""

        def line(tag: str, cells: Iterable[str]) -> str:
            return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"

        rows = "".join(line("td", map(_shown, row.values())) for row in self._rows)
        return f"<table><thead>{line('th', self.columns)}</thead><tbody>{rows}</tbody></table>"


def _shown(value: Any) -> str:
    """Print one value: four significant digits, and a dash for None."""
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _is_numeric(values: Sequence[Any]) -> bool:
    return all(value is None or isinstance(value, int | float) for value in values)


def _converted(texts: list[str]) -> list[Any]:
    """Return the fields of one CSV column as whole numbers, numbers or truth values, if all of them are."""
    given = [text for text in texts if text]
    if given and set(given) <= {"true", "false"}:
        return [text == "true" if text else None for text in texts]
    for kind in (int, float):
        try:
            return [kind(text) if text else None for text in texts]
        except ValueError:
            continue
    return _as_text(texts)


def _as_text(texts: list[str]) -> list[Any]:
    return [text or None for text in texts]
