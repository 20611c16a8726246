"""The comparison table: one row per method, a score marked where it beats every other (the paper's Tab. 1)."""

import csv
import io
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from phiseg.comparison.marks import Test, best_scores, significance_note, tested_scores
from phiseg.core.errors import DataError
from phiseg.evaluation.results import Evaluation, defined
from phiseg.metrics.registry import GED_EXCESS, SCORES, case_scores, derived_scores, table_scores
from phiseg.metrics.score import Score

FLOOR_NOTE = (
    "GED floor: δ (1/M + 1/N) for M annotators, N samples and the mean distance δ of two annotations, the expected "
    "GED of samples from the annotators' distribution if annotators are independent given the image. Those who saw "
    "more than the image are not, so the excess is an upper bound of what a model could gain."
)


@dataclass(frozen=True)
class Row:
    """One method."""

    method: str
    num_parameters: int | None
    num_cases: int
    num_samples: int
    num_patients: int | None
    """None where patients were not recorded."""
    scores: dict[str, float | None]
    """The scores of both tables by name, also available as attributes, such as `row.ged`."""
    intervals: dict[str, tuple[float, float]]
    best: frozenset[str]
    """The scores that are significantly better than those of all other methods."""
    num_trainings: int = 1
    spread: dict[str, float] = field(default_factory=dict)
    """Standard deviation of a mean between trainings, where there are several."""

    def __getattr__(self, name: str) -> float | None:
        """Return a score by its name."""
        scores: dict[str, float | None] = self.__dict__.get("scores", {})
        if name not in scores:
            raise AttributeError(f"a row has no {name!r}")
        return scores[name]

    def value(self, key: str) -> Any:
        """Return what the column `key` shows; a score that the row does not have is None."""
        return self.scores.get(key) if key in SCORES else getattr(self, key)


@dataclass(frozen=True)
class Table:
    """All methods, in the order they were given, and the lines to be printed below them."""

    rows: tuple[Row, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Column:
    """How one column is printed."""

    key: str
    heading: str
    latex: str
    """The heading in LaTeX."""
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
        if scaled >= 0.9995:  # what is rounded to 1000 of a unit is 1 of the next
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


def further_columns() -> list[Column]:
    """Return the columns of the second table: the method and the scores beyond the paper."""
    return [_METHOD, *map(score_column, table_scores("further"))]


def score_column(score: Score) -> Column:
    """Return the column of a score, its direction as an arrow in the heading."""
    heading = f"{score.heading} {score.arrow}".rstrip()
    latex = f"{score.latex or _latex(score.heading)} {_latex(score.arrow)}".rstrip()
    return Column(
        score.name, heading, latex, partial(_decimals, places=score.decimals), has_spread=not score.beside
    )


def further_note() -> str:
    """Return the line below the second table that explains its columns."""
    scores = [score for score in table_scores("further") if not score.beside]
    return " ".join(f"{score.title}: {score.description}" for score in scores)


def has_further(table: Table) -> bool:
    """Return whether there is something to show beyond the paper's scores."""
    names = [score.name for score in table_scores("further")]
    return any(row.scores.get(name) is not None for row in table.rows for name in names)


def comparison_table(evaluations: Sequence[Evaluation], *, test: Test = "patients") -> Table:
    """Compare evaluations that were made on the same cases with the same number of samples.

    Dice is shown, but not tested, where it was not taken against the same annotators everywhere.

    Args:
        evaluations: one per method.
        test: what the significance test takes as independent.

    Raises:
        DataError: two of them cannot be compared; the message names both and the difference.
    """
    check_comparable(evaluations)
    names = method_names(evaluations)
    references = [str(evaluation.summary.dice_annotator) for evaluation in evaluations]
    tested = [metric for metric in tested_scores() if metric != "dice" or len(set(references)) == 1]
    rows = []
    for name, own, best in zip(names, evaluations, best_scores(evaluations, tested, test=test), strict=True):
        summary = own.summary
        row = Row(
            method=name,
            num_parameters=summary.num_parameters,
            num_cases=summary.num_cases,
            num_samples=summary.num_samples,
            num_patients=summary.num_patients,
            scores=_scores(own),
            intervals=summary.intervals,
            best=best,
            num_trainings=own.num_trainings,
            spread=own.spread,
        )
        rows.append(row)
    notes = [significance_note(evaluations, names, test=test), FLOOR_NOTE, *_correlation_notes(names, evaluations)]
    notes += _undefined_notes(rows, evaluations)
    if len(set(references)) == 1:
        notes.append(f"Dice is that of the mean prediction with {_dice_reference(references[0])}.")
    if all(max(evaluation.cases["num_annotators"]) == 1 for evaluation in evaluations):
        notes.append("GED and S_NCC are not given: they compare with several annotators, and no case here has two.")
    if any(evaluation.num_trainings > 1 for evaluation in evaluations):
        numbers = ", ".join(f"{name} {own.num_trainings}" for name, own in zip(names, evaluations, strict=True))
        notes.append(f"±: standard deviation between trainings with different seeds ({numbers}).")
    if "dice" not in tested:
        each = ", ".join(f"{name} {reference}" for name, reference in zip(names, references, strict=True))
        notes.append(f"Dice is not compared, for it was taken against different annotators: {each}.")
    return Table(tuple(rows), tuple(notes))


def check_comparable(evaluations: Sequence[Evaluation]) -> None:
    """Refuse evaluations on other data, another split, other cases or with another number of samples.

    Raises:
        DataError: names two folders and their difference.
    """
    if not evaluations:
        raise DataError("nothing to compare; give one folder or more that phiseg evaluate wrote")
    for one, two in pairwise(evaluations):
        a, b, folders = one.summary, two.summary, f"{one.path} and {two.path}"
        if a.dataset.fingerprint != b.dataset.fingerprint:
            sets = " and ".join(f"{data.name} {data.fingerprint[:12]}" for data in (a.dataset, b.dataset))
            raise DataError(f"{folders} are of different datasets ({sets}); evaluate both on one")
        if a.split != b.split:
            raise DataError(f"{folders} are of different splits ({a.split} and {b.split}); evaluate both on one")
        if different := set(one.cases["case"]) ^ set(two.cases["case"]):
            example = f"{len(different)} are in one only, such as '{min(different)}'"
            raise DataError(f"{folders} have different cases ({example}); evaluate both on the same ones")
        if a.num_samples != b.num_samples:
            raise DataError(
                f"{folders} drew {a.num_samples} and {b.num_samples} samples, and GED falls as the number of "
                "samples grows; evaluate again with one --num-samples"
            )


def method_names(evaluations: Sequence[Evaluation]) -> list[str]:
    """Name every method; where two have one name, the end of their folders' paths tells them apart.

    Raises:
        DataError: one folder was given twice.
    """
    names = [evaluation.summary.method for evaluation in evaluations]
    paths = [evaluation.path.resolve() for evaluation in evaluations]
    if len(set(paths)) < len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise DataError(f"{twice} was given twice; give every folder once")
    depth, result = 0, list(names)
    while len(set(result)) < len(result):
        depth += 1
        tails = ["/".join(path.parts[-depth:]) for path in paths]
        result = [
            f"{name} ({tail})" if names.count(name) > 1 else name for name, tail in zip(names, tails, strict=True)
        ]
    return result


def _scores(evaluation: Evaluation) -> dict[str, float | None]:
    """Return the means of all scores, those that are not stored too."""
    derived = {score.name: defined(score.column(evaluation.cases)) for score in derived_scores()}
    means = {name: float(np.mean(values)) if values else None for name, values in derived.items()}
    return evaluation.summary.scores | means


def excess_ged(evaluation: Evaluation) -> list[float | None]:
    """Return the GED minus its floor, for every case."""
    return GED_EXCESS.column(evaluation.cases)


def _dice_reference(annotator: str) -> str:
    known = {"all": "each annotator, averaged", "majority": "the annotators' majority", "staple": "their STAPLE"}
    return known.get(annotator, f"annotator {annotator}")


def _correlation_notes(names: Sequence[str], evaluations: Sequence[Evaluation]) -> list[str]:
    """Return the line on how much of the excess the annotators' correlation accounts for, where it is known."""
    known = [
        f"{name} {own.summary.residual_correlation:.2f} ({own.summary.ged_correlated:.3f})"
        for name, own in zip(names, evaluations, strict=True)
        if own.summary.ged_correlated is not None
    ]
    if not known:
        return []
    return [
        "Residual correlation of two annotators given the model's probabilities, and in brackets the unbiased "
        f"GED that it can account for: {', '.join(known)}."
    ]


def _undefined_notes(rows: Sequence[Row], evaluations: Sequence[Evaluation]) -> list[str]:
    notes = []
    for score in case_scores():
        if score.group != "main" or score.name in {"ged", "ged_unbiased"}:  # as often defined as the floor
            continue
        counts = [len(defined(evaluation.cases[score.name])) for evaluation in evaluations]
        if any(0 < count < row.num_cases for count, row in zip(counts, rows, strict=True)):
            each = ", ".join(f"{row.method} {count}" for count, row in zip(counts, rows, strict=True))
            notes.append(
                f"{score.heading} is not defined in every case of {rows[0].num_cases}; means are over: {each}."
            )
    return notes


def to_csv(tables: Mapping[str, Table]) -> str:
    """Write full-precision numbers, interval bounds, spreads and marks; an undefined value is an empty field.

    Args:
        tables: by heading, which is the first column where there are several.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = [*main_columns(), *further_columns()[1:]]
    spread = [score.name for score in SCORES.values() if score.group in ("main", "further") and not score.beside]
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
            values = [row.value(column.key) for column in columns]
            limits = [limit for name in stored for limit in row.intervals.get(name, (None, None))]
            spreads = [row.spread.get(name) for name in spread]
            marks = ["true" if name in row.best else "false" for name in tested_scores()]
            writer.writerow([*head, *values, row.num_patients, row.num_trainings, *limits, *spreads, *marks])
    return text.getvalue()


def to_text(table: Table) -> str:
    """Write an aligned table for the terminal; a significantly better score has a star."""
    columns = main_columns()
    cells = [[column.heading for column in columns]]
    cells += [_cells(row, columns, str, lambda cell: f"{cell}*") for row in table.rows]
    for line in cells:  # numbers stay aligned: what is not marked ends in a space
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
    """Write Markdown tables under their headings; a significantly better score is bold."""
    parts = [f"### {_markdown(heading)}\n\n" * bool(heading) + _markdown_table(t) for heading, t in tables.items()]
    return "\n".join(parts)


def _markdown_table(table: Table) -> str:
    parts = [(main_columns(), _notes(table, "Bold")), (further_columns(), [further_note()])]
    texts = []
    for columns, notes in parts if has_further(table) else parts[:1]:
        lines = [[_markdown(column.heading) for column in columns], ["---"] + ["---:"] * (len(columns) - 1)]
        lines += [_cells(row, columns, _markdown, lambda cell: f"**{cell}**") for row in table.rows]
        rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        texts.append(f"{rows}\n\n" + "  \n".join(map(_markdown, notes)) + "\n")
    return "\n".join(texts)


def to_latex(tables: Mapping[str, Table]) -> str:
    """Write LaTeX `tabular`s that need no package; a significantly better score is bold."""
    parts = [
        f"\\paragraph{{{_latex(heading)}}}\n\n" * bool(heading) + _latex_table(t) for heading, t in tables.items()
    ]
    return "\n".join(parts)


def _latex_table(table: Table) -> str:
    parts = [(main_columns(), _notes(table, "Bold")), (further_columns(), [further_note()])]
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
    """Print one value, with its standard deviation between trainings if there are several."""
    text = column.show(row.value(column.key))
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
}


def _latex(text: str) -> str:
    return "".join(_LATEX.get(char, char) for char in text)
