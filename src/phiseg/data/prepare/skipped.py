"""One bad case never loses the others: it is told in one line, left out, and kept in the dataset's record."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from pydantic import JsonValue
from tqdm import tqdm

from phiseg.core.errors import DataError


@dataclass
class SkippedCases:
    """What could not be used."""

    strict: bool = False
    """Let the first bad case be an error instead."""
    reasons: list[JsonValue] = field(default_factory=list)
    """One line each, as they go into the manifest."""

    def note(self, reason: str) -> None:
        """Tell one thing that is left out, on stderr and clear of progress bars."""
        self.reasons.append(reason)
        tqdm.write(f"phiseg: left out: {reason}", file=sys.stderr)

    @contextmanager
    def unless_good(self, case: str) -> Iterator[None]:
        """Leave `case` out when the block finds its data to be bad."""
        try:
            yield
        except DataError as error:
            if self.strict:
                raise
            self.note(f"case '{case}': {error}")
