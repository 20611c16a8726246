"""Output formats of a comparison table: CSV, plain text, Markdown and LaTeX."""

import csv
import io
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from phiseg.comparison.best_scores import tested_scores
from phiseg.comparison.tables import Row, Table
from phiseg.metrics.score import Score
from phiseg.metrics.score_registry import case_scores, definitions, table_scores


@dataclass(frozen=True)
class Column:
    """Format of a column."""

    key: str
    heading: str
    latex: str
    """Heading in LaTeX."""
    show: Callable[[Any], str]
    has_spread: bool = False
    """Whether the value differs between trainings."""


def _decimals(value: float | None, *, places: int = 4) -> str:
    return "-" if value is None else f"{value:.{places}f}"


def _count(value: int | None) -> str:
    """Print a number of parameters: 950, 12.3 k, 4.56 M."""
    if value is None:
        return "-"
    for size, unit in ((1_000_000, " M"), (1_000, " k")):
        scaled = value / size
        if scaled >= 0.9995:  # 1000 of a unit, after rounding, is 1 of the next
            return f"{scaled:.3g}{unit}" if scaled < 999.5 else f"{scaled:,.0f}{unit}"
    return str(value)


_METHOD = Column("method", "method", "method", str)


def main_columns() -> list[Column]:
    """Return the columns of the main table: the method, its size, the main scores, and the numbers of images."""
    return [
        _METHOD,
        Column("num_parameters", "parameters", "parameters", _count),
        *map(score_column, table_scores("main")),
        Column("num_cases", "cases", "cases", str),
        Column("num_samples", "samples", "samples", str),
    ]


def further_columns(tables: Iterable[Table]) -> list[Column]:
    """Return the columns of the second table: the method and the scores beyond the paper that any row has."""
    return [_METHOD, *map(score_column, _shown_scores([*tables]))]


def _shown_scores(tables: Sequence[Table]) -> list[Score]:
    """Return the further scores that are defined in any row; those in mm and ml need a known spacing."""
    rows = [row for table in tables for row in table.rows]
    return [
        score for score in _further_scores(tables) if any(row.scores.get(score.name) is not None for row in rows)
    ]


def _further_scores(tables: Iterable[Table]) -> list[Score]:
    """Return the further scores of images, of volumes, or both if there are tables of both."""
    dims = {table.dims for table in tables}
    return table_scores("further", dims.pop() if len(dims) == 1 else None)


def score_column(score: Score) -> Column:
    """Return the column of a score, its direction as an arrow in the heading."""
    heading = f"{score.heading} {score.arrow}".rstrip()
    latex = f"{score.latex or _latex(score.heading)} {_latex(score.arrow)}".rstrip()
    return Column(
        score.name, heading, latex, partial(_decimals, places=score.decimals), has_spread=not score.beside
    )


def further_note(tables: Iterable[Table]) -> str:
    """Return the line below the second table that explains its columns."""
    return definitions(score for score in _shown_scores([*tables]) if not score.beside)


def has_further(table: Table) -> bool:
    """Return whether the table has scores beyond those of the paper."""
    names = [score.name for score in table_scores("further")]
    return any(row.scores.get(name) is not None for row in table.rows for name in names)


def to_csv(tables: Mapping[str, Table]) -> str:
    """Return CSV with full-precision numbers, interval bounds, spreads and marks; undefined values are empty.

    Args:
        tables: tables by heading, which is the first column if there are several.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    further = _further_scores(tables.values())
    columns = [*main_columns(), *map(score_column, further)]
    spread = [score.name for score in (*table_scores("main"), *further) if not score.beside]
    stored = [score.name for score in case_scores() if score.group == "main"]
    names = [
        *(column.key for column in columns),
        *("num_patients", "num_trainings"),
        *(f"{name}_{side}" for name in stored for side in ("low", "high")),
        *(f"{name}_spread" for name in spread),
        *(f"{name}_marked" for name in tested_scores()),
    ]
    blocks = ["block"] if len(tables) > 1 else []
    writer.writerow([*blocks, *names])
    for heading, table in tables.items():
        for row in table.rows:
            head = [heading] if blocks else []
            values = [getattr(row, column.key) for column in columns]
            limits = [limit for name in stored for limit in row.intervals.get(name, (None, None))]
            spreads = [row.spread.get(name) for name in spread]
            marks = ["true" if name in row.best else "false" for name in tested_scores()]
            writer.writerow([*head, *values, row.num_patients, row.num_trainings, *limits, *spreads, *marks])
    return text.getvalue()


def to_text(table: Table) -> str:
    """Return an aligned table for the terminal; significantly better scores have a star."""
    columns = main_columns()
    cells = [[column.heading for column in columns]]
    cells += [_cells(row, columns, str, lambda cell: f"{cell}*") for row in table.rows]
    for line in cells:  # unmarked cells end in a space to keep numbers aligned
        line[1:] = [cell if cell.endswith("*") else f"{cell} " for cell in line[1:]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))])
        for line in cells
    ]
    lines.insert(1, "-" * len(lines[0]))
    notes = [textwrap.fill(note, width=len(lines[0])) for note in _notes(table, "*")]
    return "\n".join([line.rstrip() for line in lines] + ["", *notes]) + "\n"


def to_markdown(tables: Mapping[str, Table]) -> str:
    """Return Markdown tables under their headings; significantly better scores are bold."""
    parts = [f"### {_markdown(heading)}\n\n" * bool(heading) + _markdown_table(t) for heading, t in tables.items()]
    return "\n".join(parts)


def _markdown_table(table: Table) -> str:
    parts = [(main_columns(), _notes(table, "Bold")), (further_columns([table]), [further_note([table])])]
    texts = []
    for columns, notes in parts if has_further(table) else parts[:1]:
        lines = [[_markdown(column.heading) for column in columns], ["---"] + ["---:"] * (len(columns) - 1)]
        lines += [_cells(row, columns, _markdown, lambda cell: f"**{cell}**") for row in table.rows]
        rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        texts.append(f"{rows}\n\n" + "  \n".join(map(_markdown, notes)) + "\n")
    return "\n".join(texts)


def to_latex(tables: Mapping[str, Table]) -> str:
    """Return LaTeX `tabular`s that need no packages; significantly better scores are bold."""
    parts = [
        f"\\paragraph{{{_latex(heading)}}}\n\n" * bool(heading) + _latex_table(t) for heading, t in tables.items()
    ]
    return "\n".join(parts)


def _latex_table(table: Table) -> str:
    parts = [(main_columns(), _notes(table, "Bold")), (further_columns([table]), [further_note([table])])]
    texts = []
    for columns, notes in parts if has_further(table) else parts[:1]:
        lines = [" & ".join(column.latex for column in columns), r"\hline"]
        lines += [
            " & ".join(_cells(row, columns, _latex, lambda cell: rf"\textbf{{{cell}}}")) for row in table.rows
        ]
        body = "\n".join(line if line == r"\hline" else rf"{line} \\" for line in lines)
        alignment = "l" + "r" * (len(columns) - 1)
        texts.append(
            f"\\begin{{tabular}}{{{alignment}}}\n\\hline\n{body}\n\\hline\n\\end{{tabular}}\n\n"
            "\\smallskip\n{\\footnotesize\n" + "\n\n".join(map(_latex, notes)) + "\n\\par}\n"
        )
    return "\n".join(texts)


def _cells(
    row: Row, columns: Sequence[Column], escape: Callable[[str], str], mark: Callable[[str], str]
) -> list[str]:
    cells = [(column.key, escape(show_cell(row, column))) for column in columns]
    return [mark(cell) if key in row.best else cell for key, cell in cells]


def show_cell(row: Row, column: Column) -> str:
    """Return a value with its standard deviation between trainings, if there are several."""
    text = column.show(getattr(row, column.key))
    if not column.has_spread or column.key not in row.spread:
        return text
    return f"{text} ± {column.show(row.spread[column.key])}"


def _notes(table: Table, mark: str) -> list[str]:
    return [re.sub("^Marked:", f"{mark}:", note) for note in table.notes]


def _markdown(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", text)


_LATEX = {
    **{char: f"\\{char}" for char in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"<": "$<$", ">": "$>$", "δ": r"$\delta$", "↓": r"$\downarrow$", "↑": r"$\uparrow$", "±": r"$\pm$"},
    "†": r"$\dagger$",
}


def _latex(text: str) -> str:
    return "".join(_LATEX.get(char, char) for char in text)
