"""Splits by patient: drawn once from a seed, written down, and never recomputed silently."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from phiseg.core.errors import ConfigError, DataError
from phiseg.core.files import write_json
from phiseg.core.random import derive_seed

SPLIT_NAMES = ("train", "val", "test")
MAX_NAME = 100
"""Characters of a split's name."""


def split_patients(
    patients: Iterable[str], *, seed: int, fractions: Sequence[float] = (0.6, 0.2, 0.2)
) -> dict[str, list[str]]:
    """Put every patient into exactly one of train, val and test.

    Depends on the seed and on the set of patients alone, neither on their order nor on repetitions. The
    counts are the fractions by largest remainder, and no part stays empty while another has some to spare.

    >>> {name: len(part) for name, part in split_patients(map(str, range(68)), seed=0).items()}
    {'train': 41, 'val': 14, 'test': 13}

    Args:
        patients: identifiers, repeated or not.
        seed: the split's seed.
        fractions: shares of train, val and test, which sum to 1, or percentages, which sum to 100.

    Raises:
        ConfigError: the fractions are not three such numbers, with some left for training.
    """
    given = ",".join(f"{share:g}" for share in fractions)
    if len(fractions) != len(SPLIT_NAMES):
        raise ConfigError(
            f"split fractions {given} are {len(fractions)} numbers; give three, for train, val and test"
        )
    if math.isclose(sum(fractions), 100, abs_tol=1e-6):
        fractions = [share / 100 for share in fractions]
    if (
        not all(0 <= share <= 1 for share in fractions)
        or not math.isclose(sum(fractions), 1, abs_tol=1e-6)
        or fractions[0] == 0
    ):
        raise ConfigError(
            f"split fractions {given} must sum to 1 or to 100, none below 0 and train above it, such as 60,20,20"
        )
    unique = sorted(set(patients))
    order = np.random.default_rng(derive_seed(seed, "split")).permutation(len(unique))
    bounds = np.cumsum([0, *_counts(len(unique), fractions)])
    return {
        name: sorted(unique[i] for i in order[start:stop])
        for name, start, stop in zip(SPLIT_NAMES, bounds, bounds[1:], strict=False)
    }


def parse_fractions(text: str) -> tuple[float, ...]:
    """Read what the command line gives as fractions; `split_patients` says whether they make sense.

    >>> parse_fractions("60,20,20")
    (60.0, 20.0, 20.0)

    Raises:
        ConfigError: a part is no number.
    """
    try:
        return tuple(float(word) for word in text.replace(",", " ").split())
    except ValueError:
        raise ConfigError(f"split fractions '{text}' are not numbers; give three, such as 60,20,20") from None


def write_splits(path: Path, splits: Mapping[str, Sequence[str]], *, seed: int) -> None:
    """Write splits.json, atomically."""
    write_json(path, {"seed": seed, **{name: [*members] for name, members in splits.items()}})


def check_splits(splits: Mapping[str, Sequence[str]], patients: Iterable[str], *, where: str) -> None:
    """Check that the splits name only known patients, each at most once.

    Raises:
        DataError: one line with the patient, the split(s) and the cure.
    """
    known = set(patients)
    home: dict[str, str] = {}
    for name, members in splits.items():
        if len(name) > MAX_NAME:
            raise DataError(f"{where}: a split has a name of {len(name)} characters; give it a short one")
        for patient in members:
            if patient not in known:
                raise DataError(f"{where}: split '{name}' names '{patient}', who has no case; remove that")
            if patient in home:
                raise DataError(
                    f"{where}: patient '{patient}' is in split '{home[patient]}' and again in '{name}'; "
                    "keep one, or the scores are of images that training has seen"
                )
            home[patient] = name


def _counts(total: int, fractions: Sequence[float]) -> list[int]:
    exact = [share * total for share in fractions]
    counts = [math.floor(value + 1e-9) for value in exact]
    by_remainder = sorted(range(len(exact)), key=lambda part: counts[part] - exact[part])
    for part in by_remainder[: total - sum(counts)]:
        counts[part] += 1
    wanted = [part for part, share in enumerate(fractions) if share > 0]
    for part in wanted:
        if counts[part] == 0 and total >= len(wanted):
            counts[counts.index(max(counts))] -= 1
            counts[part] = 1
    return counts
