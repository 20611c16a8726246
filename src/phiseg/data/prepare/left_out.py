"""One bad case never loses the others: it is reported in one line, left out, and counted at the end."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from pydantic import JsonValue
from tqdm import tqdm

from phiseg.core.errors import DataError


@dataclass
class LeftOut:
    """The cases that could not be used."""

    strict: bool = False
    """Let the first one be an error instead."""
    cases: list[JsonValue] = field(default_factory=list)
    """Their names, as they go into the manifest."""

    @contextmanager
    def unless_good(self, case: str) -> Iterator[None]:
        """Leave `case` out, with its reason on stderr, when the block finds its data to be bad."""
        try:
            yield
        except DataError as error:
            if self.strict:
                raise
            self.cases.append(case)
            tqdm.write(f"phiseg: left out case '{case}': {error}", file=sys.stderr)
