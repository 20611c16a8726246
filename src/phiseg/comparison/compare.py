"""Compare evaluated methods: write tables, figures and a report."""

import gzip
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from phiseg.comparison.best_scores import Test
from phiseg.comparison.charts import (
    case_scatter,
    ged_terms,
    reliability_diagram,
    score_distributions,
    training_curves,
)
from phiseg.comparison.figures import level_panel, sample_panel
from phiseg.comparison.picture_names import PATTERN, PictureKind, picture_file
from phiseg.comparison.report import Part, render_report
from phiseg.comparison.table_formats import to_csv, to_latex, to_markdown
from phiseg.comparison.tables import Table, comparison_table, excess_ged, method_names
from phiseg.core.errors import OutputError
from phiseg.core.files import OVERWRITE, atomic_file
from phiseg.evaluation.evaluation_folder import Evaluation, cases_to_csv, read_evaluation
from phiseg.evaluation.summary import defined, patients_of
from phiseg.plotting.primitives import to_png

_OWN = re.compile(rf"table\.(csv|md|tex)|cases\.csv\.gz|report\.html|{PATTERN}")


class Section(NamedTuple):
    """Methods that are compared with each other under one heading."""

    name: str
    """Prefix of the names of its pictures; may be empty."""
    title: str
    evaluations: Sequence[Evaluation]
    labels: Mapping[str, str] = {}
    """Reason for showing each example case."""
    notes: Sequence[str] = ()
    """Additional lines below the table."""
    set_aside: Sequence[str] = ()
    """Methods with unsuitable settings."""
    equal_time: bool = False
    """Whether all trainings took the same time, so that their numbers of steps may differ."""


def compare(
    folders: Sequence[Path],
    out: Path,
    *,
    overwrite: bool = False,
    title: str = "Comparison of segmentation methods",
    test: Test = "patients",
    set_aside: Sequence[str] = (),
    equal_time: bool = False,
) -> Table:
    """Compare the evaluations in `folders` and write tables, figures and `report.html` to `out`.

    Args:
        folders: evaluations of the same cases, with the same number of samples.
        out: the folder to write.
        overwrite: whether to replace a comparison in `out`.
        title: title of the report.
        test: the independent units of the significance test.
        set_aside: methods with unsuitable settings; they are shown, but not tested.
        equal_time: whether all trainings took the same time. Otherwise, methods that were trained for different
            numbers of steps are not tested against each other.

    Raises:
        ConfigError: a method in `set_aside` is unknown.
        DataError: a folder is not an evaluation, or two evaluations cannot be compared.
        OutputError: `out` contains a comparison and `overwrite` is not set, or it cannot be written.
    """
    _check_previous(out, overwrite=overwrite)
    evaluations = [read_evaluation(folder) for folder in folders]
    section = Section("", "", evaluations, set_aside=set_aside, equal_time=equal_time)
    (table,) = write_comparison([section], out, overwrite=overwrite, title=title, test=test)
    return table


def write_comparison(
    sections: Sequence[Section], out: Path, *, overwrite: bool = False, title: str, test: Test = "patients"
) -> list[Table]:
    """Write the tables and figures of one or more sections, and one `report.html` with all of them.

    `cases.csv.gz` contains all scores by case, patient and training, so that p-values can be recomputed.

    `out` may contain other files. The report is written last, so an existing report is complete. The first example
    case is in `samples.png`, further ones in `samples-2.png` and so on.

    Raises:
        DataError: two evaluations of a section cannot be compared.
        OutputError: `out` contains a comparison and `overwrite` is false, or it cannot be written.
    """
    previous = _check_previous(out, overwrite=overwrite)
    tables = [
        replace(table, notes=(*table.notes, *section.notes))
        for section, table in (
            (
                section,
                comparison_table(
                    section.evaluations, test=test, set_aside=section.set_aside, equal_time=section.equal_time
                ),
            )
            for section in sections
        )
    ]
    drawn = [draw_pictures(section.evaluations, section.labels) for section in sections]
    headings = [section.title for section in sections]
    texts = {
        f"table.{kind}": write(dict(zip(headings, tables, strict=True)))
        for kind, write in (("csv", to_csv), ("md", to_markdown), ("tex", to_latex))
    }
    parts = [
        Part(*part)
        for part in zip(headings, (section.evaluations for section in sections), tables, drawn, strict=True)
    ]
    pictures = {
        f"{section.name}-{name}" if section.name else name: data
        for section, pictures in zip(sections, drawn, strict=True)
        for name, data in pictures.items()
    }
    files = {
        **pictures,
        **{name: text.encode() for name, text in texts.items()},
        "cases.csv.gz": gzip.compress(_scores_by_case(sections).encode(), mtime=0),
        "report.html": render_report(parts, title=title).encode(),
    }
    for name, data in files.items():
        with atomic_file(out / name) as file:
            file.write(data)
    for path in previous:  # remove pictures of the previous comparison
        if path.name not in files:
            _remove(path)
    return tables


def _check_previous(out: Path, *, overwrite: bool) -> list[Path]:
    """Return the files of a previous comparison, if they may be replaced."""
    previous = _previous(out)
    if previous and not overwrite:
        raise OutputError(f"{previous[0]} already exists; choose another folder or {OVERWRITE}")
    return previous


def _scores_by_case(sections: Sequence[Section]) -> str:
    """Return the scores of all sections as CSV, one row per method, training and case."""
    rows: list[dict[str, Any]] = []
    for section in sections:
        for method, evaluation in zip(method_names(section.evaluations), section.evaluations, strict=True):
            for number, scores in enumerate(evaluation.trainings or [evaluation.cases], start=1):
                columns = {"case": scores["case"], "patient": patients_of(scores)} | scores
                head = {"block": section.title, "method": method, "training": number}
                rows += [head | dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    names = dict.fromkeys(name for row in rows for name in row)
    return cases_to_csv({name: [row.get(name) for row in rows] for name in names})


def draw_pictures(evaluations: Sequence[Evaluation], labels: Mapping[str, str]) -> dict[str, bytes]:
    """Return all pictures as PNG by file name, except those for which no method has data.

    Args:
        evaluations: evaluations of the methods.
        labels: reason for showing each example case.
    """
    shown = [evaluation.examples.cases.tolist() for evaluation in evaluations]
    cases = [case for case in shown[0] if all(case in others for others in shown)]
    figures = {
        picture_file(PictureKind.SAMPLES, at): sample_panel(evaluations, case, reason=labels.get(case, ""))
        for at, case in enumerate(cases)
    }
    layered = [evaluation for evaluation in evaluations if evaluation.examples.level_probs is not None]
    if cases:
        drawn = max(cases, key=lambda case: _annotated_area(evaluations[0], case))  # an empty case shows no levels
        figures |= {picture_file(PictureKind.LEVELS, at): level_panel(own, drawn) for at, own in enumerate(layered)}
    figures[picture_file(PictureKind.SCORES)] = score_distributions(evaluations)
    num_scored = sum(bool(defined(excess_ged(evaluation))) for evaluation in evaluations)
    if num_scored:
        figures[picture_file(PictureKind.TERMS)] = ged_terms(evaluations)
    if num_scored > 1:
        figures[picture_file(PictureKind.SCATTER)] = case_scatter(evaluations)
    if any(evaluation.reliability is not None for evaluation in evaluations):
        figures[picture_file(PictureKind.RELIABILITY)] = reliability_diagram(evaluations)
    if any(evaluation.training for evaluation in evaluations):
        figures[picture_file(PictureKind.CURVES)] = training_curves(evaluations)
    return {name: to_png(figure) for name, figure in figures.items()}


def _annotated_area(evaluation: Evaluation, case: str) -> int:
    """Return the number of pixels marked by the annotators of an example case, summed over annotators."""
    examples = evaluation.examples
    at = examples.cases.tolist().index(case)
    return int((examples.annotations[at][examples.valid[at]] > 0).sum())


def _previous(out: Path) -> list[Path]:
    """List the files of a previous comparison in `out`, the report first."""
    try:
        own = [path for path in out.iterdir() if _OWN.fullmatch(path.name)] if out.is_dir() else []
    except OSError as error:
        raise OutputError(f"cannot read {out}: {error.strerror}; choose another folder") from None
    return sorted(own, key=lambda path: (path.name != "report.html", path.name))


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(f"cannot remove {path} of a previous comparison: {error.strerror}; remove it") from None
