"""Records of the trials and results of a part of the fault tests."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Row:
    """A row in the table of a part."""

    what: str
    times: int
    """Number of trials."""
    seen: str
    lost: int
    """Number of failures."""


@dataclass
class Part:
    """A part of the fault tests."""

    title: str
    how: str
    """Description of the tests and their limitations."""
    of_faults: bool = True
    """Whether the trials are faults rather than normal use."""
    asked: int = 0
    """Planned number of trials, if the time may be too short."""
    rows: list[Row] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    """One line per failure, with the information to reproduce it."""

    def add(self, what: str, times: int, seen: str, losses: Iterable[list[str]]) -> None:
        """Add a row with its failures: one list per trial; empty lists of passed trials may be omitted."""
        lost = [problems for problems in losses if problems]
        self.rows.append(Row(what, times, seen, len(lost)))
        self.losses += [f"{what}: {problem}" for problems in lost for problem in problems]

    @property
    def tried(self) -> int:
        """Total number of trials."""
        return sum(row.times for row in self.rows)

    @property
    def lost(self) -> int:
        """Total number of failures."""
        return sum(row.lost for row in self.rows)


def always(seen: str, tried: Sequence[list[str]]) -> str:
    """Return `seen` if all trials passed; `tried` has the failures of each trial."""
    return "see below" if any(tried) else seen if tried else "not tried"


def counted(values: dict[str, int]) -> str:
    """Return the counts as text."""
    return ", ".join(f"{number:,} {what}" for what, number in values.items() if number) or "nothing"
