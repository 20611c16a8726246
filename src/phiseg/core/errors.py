"""User errors. Each message states the problem, where it occurred and how to fix it.

The command line prints these errors, and those of the operating system, as one line and exits with code 2. Any
other exception is a bug in phiseg and is shown with its traceback.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class PhisegError(Exception):
    """Base class of all errors caused by input rather than by a bug."""


class ConfigError(PhisegError):
    """A recipe or an option is invalid."""


class DataError(PhisegError):
    """A prepared dataset or its source is missing, damaged or unsuitable."""


class ModelError(PhisegError):
    """A model folder or checkpoint is missing, damaged or of another model, or an input does not match it."""


class TrainingError(PhisegError):
    """Training cannot continue."""


class OutputError(PhisegError):
    """A result cannot be written."""


class Interrupted(KeyboardInterrupt):
    """SIGINT or SIGTERM stopped a training."""

    def __init__(self, signal: int, step: int | None = None) -> None:
        saved = "before a state was saved" if step is None else f"after step {step}, whose state is saved"
        super().__init__(f"stopped {saved}")
        self.signal = signal
        """Number of the signal."""
        self.step = step
        """Step from which the training resumes; None if it must start again."""


def nearest(word: str, valid: Iterable[str]) -> str:
    """Return a hint with the valid word closest to `word`, or with all valid words.

    >>> nearest("kl_weigths", ["kl_weights", "num_levels"])
    "did you mean 'kl_weights'?"
    >>> nearest("zzz", ["b", "a"])
    'valid: a, b'
    """
    valid = sorted(valid)
    close = get_close_matches(word, valid, n=1)
    return f"did you mean '{close[0]}'?" if close else f"valid: {', '.join(valid)}"
