"""The description of a score, and three ways to compute its value for a dataset."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from phiseg.metrics.sampled_case import SampledCase

Group = Literal["main", "further", "summary", "case"]


@dataclass(frozen=True, kw_only=True)
class Score:
    """One score: where it appears and how it is shown."""

    name: str
    """Column of `cases.csv` and key in `summary.json`."""
    group: Group
    """Where the score appears: in the main table of a comparison and in every validation (`main`), in its second
    table (`further`), only in `summary.json` and `cases.csv` (`summary`), or only in `cases.csv` (`case`)."""
    heading: str
    """Heading in tables and in the report, without the arrow of `better`."""
    description: str
    """What the score is, in one line."""
    details: str = ""
    """Further sentences for the definition in the report."""
    better: Literal["lower", "higher"] | None = None
    """The direction of an improvement. Main scores that have one are tested for significance."""
    decimals: int = 4
    """Digits after the point in tables."""
    latex: str = ""
    """Heading in LaTeX, where it is not `heading` with special characters escaped."""
    dims: Literal[2, 3] | None = None
    """Number of dimensions of the cases that have the score: 2 for images, 3 for volumes, None for both."""
    beside: str = ""
    """The score that this one is read beside. Its column follows that score's, without a spread between seeds."""
    pooled: ClassVar[str] = "cases"
    """What the value of a dataset is computed over: cases, by their mean, or the pixels of all cases."""

    @property
    def title(self) -> str:
        """The heading at the beginning of a sentence."""
        return self.heading[:1].upper() + self.heading[1:]

    @property
    def arrow(self) -> str:
        """The direction as an arrow, empty if there is none."""
        return {"lower": "↓", "higher": "↑", None: ""}[self.better]

    @property
    def sign(self) -> int:
        """The sign of an improvement, 0 if there is no direction."""
        return {"lower": -1, "higher": 1, None: 0}[self.better]


@dataclass(frozen=True, kw_only=True)
class CaseScore(Score):
    """A score that every case has; the value of a dataset is the mean over the cases where it is defined."""

    of: Callable[[SampledCase], float | None]
    """Computes the score of one case; None where it is undefined."""
    min_annotators: int = 1
    """Annotators below which the score is undefined: one annotation is not a distribution to compare with."""

    def value(self, case: SampledCase) -> float | None:
        """Return the score of one case, None where it is undefined."""
        return self.of(case) if len(case.annotations) >= self.min_annotators else None


@dataclass(frozen=True, kw_only=True)
class PixelScore(Score):
    """A score of the pixels of all cases together: a table per case, added up, and a value of the sum."""

    table: Callable[[SampledCase], Tensor | None]
    """Computes the table of one case; those of all cases have one shape. None if its probabilities are unknown."""
    of: Callable[[Tensor], float | None]
    """Computes the score from the sum of the tables."""
    pooled: ClassVar[str] = "pixels"


@dataclass(frozen=True, kw_only=True)
class DerivedScore(Score):
    """A score that follows from other scores of the case. It is computed when tables are made and not stored."""

    needs: tuple[str, ...]
    """The scores that it is computed from."""
    of: Callable[..., float]
    """Computes the score of one case from those."""

    def column(self, cases: Mapping[str, Sequence[float | None]]) -> list[float | None]:
        """Return the score of every case of a table `cases`, None where one of `needs` is undefined."""
        rows = zip(*(cases[name] for name in self.needs), strict=True)
        return [None if None in row else self.of(*row) for row in rows]
