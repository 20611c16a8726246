"""What a part of the campaign tried, and what it saw."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Row:
    """One line of a part's table."""

    what: str
    times: int
    """How often it was tried."""
    seen: str
    lost: int = 0
    """How often it did not hold."""


@dataclass
class Part:
    """One part of the campaign."""

    title: str
    how: str
    """How it was tried, and what that does not show."""
    rows: list[Row] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    """One line for everything that did not hold, with what is needed to see it again."""

    def add(self, what: str, times: int, seen: str, losses: list[str]) -> None:
        """Note a row, and what was lost in it."""
        self.rows.append(Row(what, times, seen, len(losses)))
        self.losses += [f"{what}: {loss}" for loss in losses]


def counted(values: dict[str, int]) -> str:
    """Say how often each thing was seen.

    >>> counted({"refused": 3, "read": 1, "left out": 0})
    '3 refused, 1 read'
    """
    return ", ".join(f"{number:,} {what}" for what, number in values.items() if number) or "nothing"
