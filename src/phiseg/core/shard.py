"""A part of the work of a command, for independent jobs."""

import re
from dataclasses import dataclass
from typing import Self

from phiseg.core.errors import ConfigError


@dataclass(frozen=True)
class Shard:
    """One of several parts of the cases."""

    number: int
    """Number of the part, from 1."""
    count: int
    """Number of parts."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a shard such as 2/8.

        Raises:
            ConfigError: the text is not two numbers, or the first is not between 1 and the second.

        >>> Shard.parse("2/8")
        Shard(number=2, count=8)
        """
        match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text, re.ASCII)
        if not match or not 1 <= int(match[1]) <= int(match[2]):
            raise ConfigError(f"--shard {text} is not a shard; use I/N with I from 1 to N, such as 2/8")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"
