"""What a part of the campaign tried, and what it saw."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Row:
    """One line of a part's table."""

    what: str
    times: int
    """How often it was tried."""
    seen: str
    lost: int
    """How often it did not hold."""


@dataclass
class Part:
    """One part of the campaign."""

    title: str
    how: str
    """How it was tried, and what that does not show."""
    of_faults: bool = True
    """Whether what it tried were faults, rather than ordinary use."""
    asked: int = 0
    """How often it was to try something, if the time may be too short for that."""
    rows: list[Row] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    """One line for everything that did not hold, with what is needed to see it again."""

    def add(self, what: str, times: int, seen: str, losses: Iterable[list[str]]) -> None:
        """Note a row, and what was lost in it: a list for each time; those that held may be left out."""
        lost = [problems for problems in losses if problems]
        self.rows.append(Row(what, times, seen, len(lost)))
        self.losses += [f"{what}: {problem}" for problems in lost for problem in problems]

    @property
    def tried(self) -> int:
        """How often it tried something."""
        return sum(row.times for row in self.rows)

    @property
    def lost(self) -> int:
        """How often anything did not hold."""
        return sum(row.lost for row in self.rows)


def always(seen: str, tried: Sequence[list[str]]) -> str:
    """Say what was seen every time, if so; `tried` has the losses of every time."""
    return "see below" if any(tried) else seen if tried else "not tried"


def counted(values: dict[str, int]) -> str:
    """Say how often each thing was seen."""
    return ", ".join(f"{number:,} {what}" for what, number in values.items() if number) or "nothing"
