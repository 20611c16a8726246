"""Self-contained HTML pages: one file that includes its style and its pictures."""

from base64 import b64encode
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from phiseg import __version__

_SCALE = 0.59
"""CSS pixels per pixel of a picture: text has the same size in every picture, and the widest picture fits."""


def render_page(template: Traversable, **values: Any) -> str:
    """Return a template as HTML with the common style; all values are escaped."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page = environment.from_string(template.read_text(encoding="utf-8"))
    style = Markup((files("phiseg.plotting") / "page.css").read_text(encoding="utf-8"))  # noqa: S704
    return page.render(style=style, version=__version__, **values)


def embedded_png(png: bytes) -> tuple[str, int]:
    """Return the data URI of a PNG file and its display width."""
    width = int.from_bytes(png[16:20], "big")  # from the file header
    return f"data:image/png;base64,{b64encode(png).decode()}", round(width * _SCALE)
