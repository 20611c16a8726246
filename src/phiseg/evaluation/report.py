"""The report: one HTML file that carries its pictures with it and asks nobody for anything."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from phiseg import __version__
from phiseg.evaluation.results import Evaluation
from phiseg.evaluation.tables import COLUMNS, FURTHER_COLUMNS, FURTHER_NOTE, Table, has_further, show_cell

_KINDS = ("samples", "levels", "scores", "terms", "scatter", "reliability", "curves")
_SCALE = 0.59
"""CSS pixels that one pixel of a picture takes: text is as large in every picture, and the widest one fits."""


class Part(NamedTuple):
    """What the report shows of methods that are compared with each other."""

    title: str
    """Its heading; empty where there is one part only."""
    evaluations: Sequence[Evaluation]
    table: Table
    """In the same order."""
    pictures: Mapping[str, bytes]
    """PNG files by name: `samples.png`, `samples-2.png`, ..., `levels.png`, `scores.png`, ...; some may lack."""


def render_report(parts: Sequence[Part], *, title: str) -> str:
    """Return the report as HTML.

    Args:
        parts: what was compared.
        title: the page's heading.
    """
    shown = [
        {kind: [embedded(data) for name, data in part.pictures.items() if name.startswith(kind)] for kind in _KINDS}
        for part in parts
    ]
    return render(
        "report.html.j2",
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
        columns=[column for column in COLUMNS if column.key not in {"num_cases", "num_samples"}],  # the lead tells
        further_columns=FURTHER_COLUMNS,
        further_note=FURTHER_NOTE,
        has_further=has_further,
        show_cell=show_cell,
    )


def render(template: str, **values: Any) -> str:
    """Return a page of ours as HTML, with our style; every value is escaped."""
    folder = files("phiseg.evaluation")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page = environment.from_string(folder.joinpath(template).read_text(encoding="utf-8"))
    style = Markup(folder.joinpath("page.css").read_text(encoding="utf-8"))  # noqa: S704
    return page.render(style=style, version=__version__, **values)


def embedded(png: bytes) -> tuple[str, int]:
    """Return the data URI of a PNG file and the width it is shown at."""
    width = int.from_bytes(png[16:20], "big")  # of the file's header
    return f"data:image/png;base64,{b64encode(png).decode()}", round(width * _SCALE)
