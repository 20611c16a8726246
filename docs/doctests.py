"""Show the doctests in docstrings as code. Loaded by mkdocstrings."""

import re
from typing import Any

import griffe

DOCTEST = re.compile(r"^>>> .*?(?=\n[ \t]*\n|\Z)", re.DOTALL | re.MULTILINE)


class Doctests(griffe.Extension):
    """Puts a fence around every doctest, which Markdown takes for a quotation otherwise."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:  # noqa: ARG002
        """Change the docstring of a module, class or function."""
        if obj.docstring is not None:
            obj.docstring.value = DOCTEST.sub(lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value)
