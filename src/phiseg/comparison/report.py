"""The report: a single self-contained HTML file."""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import NamedTuple

from phiseg.comparison.picture_names import PictureKind
from phiseg.comparison.table_formats import further_columns, further_note, has_further, main_columns, show_cell
from phiseg.comparison.tables import Table
from phiseg.evaluation.evaluation_folder import Evaluation
from phiseg.metrics.score_registry import table_scores
from phiseg.plotting.html_page import embedded_png, render_page


class Part(NamedTuple):
    """A part of the report: methods that are compared with each other."""

    title: str
    """Heading; empty if there is only one part."""
    evaluations: Sequence[Evaluation]
    table: Table
    """Evaluations in the order of the table."""
    pictures: Mapping[str, bytes]
    """PNG files by name: `samples.png`, `samples-2.png`, ..., `levels.png`, `scores.png`, ...; some may be
    missing."""


def render_report(parts: Sequence[Part], *, title: str) -> str:
    """Return the report as HTML.

    Args:
        parts: parts of the report.
        title: title of the page.
    """
    shown = [
        {
            kind.value: [embedded_png(data) for name, data in part.pictures.items() if name.startswith(kind)]
            for kind in PictureKind
        }
        for part in parts
    ]
    return render_page(
        files("phiseg.comparison") / "report.html.j2",
        title=title,
        first=parts[0].evaluations[0].summary,
        parts=[
            {
                "title": part.title,
                "table": part.table,
                "methods": list(zip(part.table.rows, part.evaluations, strict=True)),
                "pictures": pictures,
            }
            for part, pictures in zip(parts, shown, strict=True)
        ],
        columns=[
            column for column in main_columns() if column.key not in {"num_cases", "num_samples"}
        ],  # the lead states it
        further_columns=further_columns(part.table for part in parts),
        further_note=further_note(part.table for part in parts),
        has_further=has_further,
        definitions=table_scores("main"),
        show_cell=show_cell,
    )
