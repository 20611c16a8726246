"""How every command reads its arguments."""

from collections.abc import Sequence
from typing import TypeVar

import tyro

Command = TypeVar("Command")


def parse(command: type[Command], arguments: Sequence[str], *, prog: str) -> Command:
    """Turn arguments into a command object; print help or an error and exit where they ask for it."""
    return tyro.cli(command, prog=prog, args=arguments, config=(tyro.conf.FlagCreatePairsOff,))
