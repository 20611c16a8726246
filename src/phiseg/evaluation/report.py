"""The report: one HTML file that carries its pictures with it and asks nobody for anything."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import NamedTuple

from jinja2 import Environment, StrictUndefined

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
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(
        files("phiseg.evaluation").joinpath("report.html.j2").read_text(encoding="utf-8")
    )
    shown = [
        {kind: [_image(data) for name, data in part.pictures.items() if name.startswith(kind)] for kind in _KINDS}
        for part in parts
    ]
    return template.render(
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
        version=__version__,
    )


def _image(png: bytes) -> tuple[str, int]:
    """Return the data URI of a PNG file and the width it is shown at."""
    width = int.from_bytes(png[16:20], "big")  # of the file's header
    return f"data:image/png;base64,{b64encode(png).decode()}", round(width * _SCALE)
