"""Skip unusable cases: report each in one line and record it in the dataset."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from pydantic import JsonValue
from tqdm import tqdm

from phiseg.core.errors import DataError


@dataclass
class SkippedCases:
    """Skipped cases and files."""

    strict: bool = False
    """Raise an error for the first unusable case instead."""
    reasons: list[JsonValue] = field(default_factory=list)
    """One line per skipped case, as stored in the manifest."""

    def note(self, reason: str) -> None:
        """Record a skipped case or file, and print the reason to stderr without breaking progress bars."""
        reason = reason.encode(errors="backslashreplace").decode()  # names of files may be undecodable
        self.reasons.append(reason)
        tqdm.write(f"phiseg: skipped: {reason}", file=sys.stderr)

    @contextmanager
    def unless_good(self, case: str) -> Iterator[None]:
        """Skip `case` if the block raises DataError."""
        try:
            yield
        except DataError as error:
            if self.strict:
                raise
            self.note(f"case '{case}': {error}")
