"""The report: one HTML file that carries its pictures with it and asks nobody for anything."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from importlib.resources import files

from jinja2 import Environment, StrictUndefined

from phiseg import __version__
from phiseg.evaluation.results import Evaluation
from phiseg.evaluation.tables import COLUMNS, Table

_KINDS = ("samples", "levels", "scores", "curves")
_SCALE = 0.59
"""CSS pixels that one pixel of a picture takes: text is as large in every picture, and the widest one fits."""


def render_report(
    evaluations: Sequence[Evaluation], table: Table, pictures: Mapping[str, bytes], *, title: str
) -> str:
    """Return the report as HTML.

    Args:
        evaluations: what was compared.
        table: their table, in the same order.
        pictures: PNG files by name: `samples.png`, `samples-2.png`, ..., `levels.png`, `scores.png`, `curves.png`;
            what is not there is left out.
        title: the page's heading.
    """
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(
        files("phiseg.evaluation").joinpath("report.html.j2").read_text(encoding="utf-8")
    )
    shown = {kind: [_image(data) for name, data in pictures.items() if name.startswith(kind)] for kind in _KINDS}
    return template.render(
        title=title,
        first=evaluations[0].summary,
        methods=list(zip(table.rows, evaluations, strict=True)),
        table=table,
        columns=COLUMNS,
        pictures=shown,
        version=__version__,
    )


def _image(png: bytes) -> tuple[str, int]:
    """Return the data URI of a PNG file and the width it is shown at."""
    width = int.from_bytes(png[16:20], "big")  # of the file's header
    return f"data:image/png;base64,{b64encode(png).decode()}", round(width * _SCALE)
