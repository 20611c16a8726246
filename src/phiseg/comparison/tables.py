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

from phiseg.comparison.marks import BETTER, Test, best_scores, significance_note
from phiseg.core.errors import DataError
from phiseg.evaluation.results import Evaluation, defined
from phiseg.metrics.case import SCORES

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
    ged: float | None
    ged_floor: float | None
    ged_excess: float | None
    ged_unbiased: float | None
    s_ncc: float | None
    dice: float | None
    num_cases: int
    num_samples: int
    num_patients: int | None
    """None where patients were not recorded."""
    intervals: dict[str, tuple[float, float]]
    best: frozenset[str]
    """The scores that are significantly better than those of all other methods."""
    hm_iou: float | None = None
    best_dice: float | None = None
    diversity: float | None = None
    diversity_annotators: float | None = None
    area_crps: float | None = None
    area_coverage: float | None = None
    ece: float | None = None
    num_trainings: int = 1
    spread: dict[str, float] = field(default_factory=dict)
    """Standard deviation of a mean between trainings, where there are several."""


@dataclass(frozen=True)
class Table:
    """All methods, in the order they were given, and the lines to be printed below them."""

    rows: tuple[Row, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Column:
    """How one column is printed; `latex` is its heading in LaTeX."""

    key: str
    heading: str
    latex: str
    show: Callable[[Any], str]


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


COLUMNS = (
    Column("method", "method", "method", str),
    Column("num_parameters", "parameters", "parameters", _count),
    Column("ged", "GED ↓", r"GED $\downarrow$", _decimals),
    Column("ged_floor", "GED floor", "GED floor", _decimals),
    Column("ged_excess", "excess", "excess", _decimals),
    Column("ged_unbiased", "unbiased GED ↓", r"unbiased GED $\downarrow$", _decimals),
    Column("s_ncc", "S_NCC ↑", r"$S_\mathrm{NCC}$ $\uparrow$", _decimals),
    Column("dice", "Dice ↑", r"Dice $\uparrow$", _decimals),
    Column("num_cases", "cases", "cases", str),
    Column("num_samples", "samples", "samples", str),
)
_short = partial(_decimals, places=3)
FURTHER_COLUMNS = (
    COLUMNS[0],
    Column("hm_iou", "HM-IoU ↑", r"HM-IoU $\uparrow$", _short),
    Column("best_dice", "best Dice ↑", r"best Dice $\uparrow$", _short),
    Column("diversity", "diversity", "diversity", _short),
    Column("diversity_annotators", "of annotators", "of annotators", _short),
    Column("area_crps", "area CRPS ↓", r"area CRPS $\downarrow$", partial(_decimals, places=1)),
    Column("area_coverage", "area in 90 %", r"area in 90\,\%", _short),
    Column("ece", "ECE ↓", r"ECE $\downarrow$", _decimals),
)
SPREAD = (
    *("ged", "ged_unbiased", "s_ncc", "dice"),
    *("hm_iou", "best_dice", "diversity", "area_crps", "area_coverage", "ece"),
)
"""What differs between trainings."""
FURTHER_NOTE = (
    "HM-IoU: Hungarian-matched IoU. Best Dice: of each annotation with its nearest sample. Diversity: mean "
    "distance 1 - IoU of two samples; it should be that of the annotators. Area CRPS in pixels. Area in 90 %: how "
    "often an annotator's area lies within the central 90 % of the samples'. ECE: calibration error of the mean "
    "prediction."
)


def has_further(table: Table) -> bool:
    """Return whether there is something to show beyond the paper's scores."""
    return any(getattr(row, column.key) is not None for row in table.rows for column in FURTHER_COLUMNS[1:])


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
    tested = [metric for metric in BETTER if metric != "dice" or len(set(references)) == 1]
    rows = []
    for name, own, best in zip(names, evaluations, best_scores(evaluations, tested, test=test), strict=True):
        excess = defined(excess_ged(own))
        summary = own.summary
        row = Row(
            method=name,
            num_parameters=summary.num_parameters,
            **{metric: getattr(summary, metric) for metric in SCORES},
            ged_excess=float(np.mean(excess)) if excess else None,
            num_cases=summary.num_cases,
            num_samples=summary.num_samples,
            num_patients=summary.num_patients,
            intervals=summary.intervals,
            best=best,
            **{column.key: getattr(summary, column.key) for column in FURTHER_COLUMNS[1:]},
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


def excess_ged(evaluation: Evaluation) -> list[float | None]:
    """Return the GED minus its floor, for every case."""
    pairs = zip(evaluation.cases["ged"], evaluation.cases["ged_floor"], strict=True)
    return [None if ged is None or floor is None else ged - floor for ged, floor in pairs]


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
    for metric, name in (("ged_floor", "GED floor"), ("s_ncc", "S_NCC"), ("dice", "Dice")):
        counts = [len(defined(evaluation.cases[metric])) for evaluation in evaluations]
        if any(0 < count < row.num_cases for count, row in zip(counts, rows, strict=True)):
            each = ", ".join(f"{row.method} {count}" for count, row in zip(counts, rows, strict=True))
            notes.append(f"{name} is not defined in every case of {rows[0].num_cases}; means are over: {each}.")
    return notes


def to_csv(tables: Mapping[str, Table]) -> str:
    """Write full-precision numbers, interval bounds, spreads and marks; an undefined value is an empty field.

    Args:
        tables: by heading, which is the first column where there are several.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    bounds = [f"{metric}_{side}" for metric in SCORES for side in ("low", "high")]
    columns = [*COLUMNS, *FURTHER_COLUMNS[1:]]
    names = [
        *(column.key for column in columns),
        "num_patients",
        "num_trainings",
        *bounds,
        *(f"{key}_spread" for key in SPREAD),
    ]
    blocks = ["block"] if len(tables) > 1 else []
    writer.writerow([*blocks, *names, *(f"{metric}_marked" for metric in BETTER)])
    for heading, table in tables.items():
        for row in table.rows:
            limits = [limit for metric in SCORES for limit in row.intervals.get(metric, (None, None))]
            spreads = [row.spread.get(key) for key in SPREAD]
            marks = ["true" if metric in row.best else "false" for metric in BETTER]
            values = [getattr(row, column.key) for column in columns]
            head = [heading] if blocks else []
            writer.writerow([*head, *values, row.num_patients, row.num_trainings, *limits, *spreads, *marks])
    return text.getvalue()


def to_text(table: Table) -> str:
    """Write an aligned table for the terminal; a significantly better score has a star."""
    cells = [[column.heading for column in COLUMNS]]
    cells += [_cells(row, COLUMNS, str, lambda cell: f"{cell}*") for row in table.rows]
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
    parts = [(COLUMNS, _notes(table, "Bold")), (FURTHER_COLUMNS, [FURTHER_NOTE])]
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
    parts = [(COLUMNS, _notes(table, "Bold")), (FURTHER_COLUMNS, [FURTHER_NOTE])]
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
    text = column.show(getattr(row, column.key))
    if column.key not in SPREAD or column.key not in row.spread:
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
