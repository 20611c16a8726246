"""Argument parsing and help output shared by all commands."""

import inspect
import io
import shutil
import sys
import textwrap
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import Annotated, Any, TypeVar, get_type_hints

import tyro

Command = TypeVar("Command")

Flag = Annotated[bool, tyro.conf.arg(help_behavior_hint="")]
"""A switch that is off by default. The help omits "(default: False)"."""

WIDEST_HELP = 100
"""Maximum line length of the help text in characters."""


def optional(metavar: str, default: str) -> Any:
    """Describe an option whose default is not a value that a user can type.

    Args:
        metavar: placeholder for the value in the help.
        default: what happens when the option is not given, shown as "(default: ...)".
    """
    return tyro.conf.arg(metavar=metavar, help_behavior_hint=f"(default: {default})")


def required(metavar: str) -> Any:
    """Describe a positional argument that takes one or more values."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="(required)")


def parse(command: type[Command], arguments: Sequence[str], *, prog: str, more_usage: str = "") -> Command:
    """Convert arguments into a command object; print the help or an error and exit where needed.

    Args:
        command: dataclass of the command.
        arguments: arguments on the command line.
        prog: name of the command in the help.
        more_usage: arguments that the command parses itself, for the usage in the help.
    """
    config = (tyro.conf.FlagCreatePairsOff,)
    if not {"-h", "--help"}.intersection(arguments):
        return tyro.cli(command, prog=prog, args=arguments, config=config)
    captured = _Captured()
    _join_help_lines(command)
    try:
        with redirect_stdout(captured):
            return tyro.cli(command, prog=prog, description="", args=arguments, config=config)
    finally:
        usage, _, options = captured.text().partition("\n\n")
        if options:
            description, examples = _documentation(command)
            usage += f"\n    {more_usage}" if more_usage else ""
            print("\n\n".join(part.strip("\n") for part in (usage, description, options, examples)))


def _join_help_lines(command: type) -> None:
    """Make the help of each option one paragraph; tyro would break it where the source does."""
    from docstring_parser import parse_from_object

    documented = [option for base in reversed(command.__mro__[:-1]) for option in parse_from_object(base).params]
    texts = {option.arg_name: " ".join((option.description or "").split()) for option in documented}
    command.__annotations__ = {
        name: Annotated[hint, tyro.conf.arg(help=texts.get(name))]
        for name, hint in get_type_hints(command, include_extras=True).items()
    }


class _Captured(io.TextIOWrapper):
    """A text buffer with the encoding of stdout, and its colours if it is a terminal."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding=sys.stdout.encoding or "utf-8", errors="backslashreplace")
        self._is_terminal = sys.stdout.isatty()

    def isatty(self) -> bool:
        return self._is_terminal

    def text(self) -> str:
        self.seek(0)
        return self.read()


def _documentation(command: type) -> tuple[str, str]:
    """Return the description of a command, wrapped to the width of the terminal, and its examples."""
    description, _, examples = (inspect.getdoc(command) or "").partition("\n\nExamples:\n")
    width = min(shutil.get_terminal_size().columns, WIDEST_HELP)
    paragraphs = [
        textwrap.fill(" ".join(paragraph.split()), width, break_long_words=False, break_on_hyphens=False)
        for paragraph in description.split("\n\n")
    ]
    listed = textwrap.indent(textwrap.dedent(examples), "  ")
    return "\n\n".join(paragraphs), f"Examples:\n{listed}"
