"""The errors a user can cause. Each says what was wrong, where, and the cure.

The command line prints such an error as one line and exits with code 2, and so it does with an error of the
operating system. Anything else is a bug of ours and keeps its traceback.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class PhisegError(Exception):
    """Base of every error that is caused by input rather than by a bug."""


class ConfigError(PhisegError):
    """A recipe or an option is wrong."""


class DataError(PhisegError):
    """A prepared dataset, or what it was made from, is missing, damaged or unsuitable."""


class ModelError(PhisegError):
    """A model folder or a checkpoint is missing, damaged or of another model, or an input does not fit."""


class TrainingError(PhisegError):
    """A training cannot go on."""


class OutputError(PhisegError):
    """A result cannot be written."""


def nearest(word: str, valid: Iterable[str]) -> str:
    """Name the valid word that was probably meant, or list them all.

    >>> nearest("kl_weigths", ["kl_weights", "num_levels"])
    "did you mean 'kl_weights'?"
    >>> nearest("zzz", ["b", "a"])
    'valid: a, b'
    """
    valid = sorted(valid)
    close = get_close_matches(word, valid, n=1)
    return f"did you mean '{close[0]}'?" if close else f"valid: {', '.join(valid)}"
