"""Splits by patient. They are drawn once from a seed and stored, never recomputed silently."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from phiseg.core.errors import ConfigError, DataError
from phiseg.core.files import write_json
from phiseg.core.random import derive_seed

SPLIT_NAMES = ("train", "val", "test")
ORIGIN = ("seed", "name", "source")
"""Keys of splits.json that are not splits: the seed of drawn splits, or name and source of a split file."""
FILE_NAME = r"^[\w.+-]{1,100}$"
"""Pattern of the name of a split file."""
FILE_SOURCE = r"^[^\x00-\x1f\x7f]{0,1000}$"
"""Pattern of the source of a split file."""
MAX_NAME = 100
"""Maximum length of a split name in characters."""


def split_patients(
    patients: Iterable[str], *, seed: int, fractions: Sequence[float] = (0.6, 0.2, 0.2)
) -> dict[str, list[str]]:
    """Assign every patient to exactly one of train, val and test.

    The result depends only on the seed and the set of patients, not on their order or repetitions. Counts follow
    the fractions by the largest remainder method. A split with a positive fraction is empty only if there are fewer
    patients than splits.

    >>> {name: len(part) for name, part in split_patients(map(str, range(68)), seed=0).items()}
    {'train': 41, 'val': 14, 'test': 13}

    Args:
        patients: patient identifiers; repetitions are allowed.
        seed: seed of the split.
        fractions: shares of train, val and test that sum to 1, or percentages that sum to 100.

    Raises:
        ConfigError: the fractions are not three such numbers, or the share of train is 0.
    """
    given = ",".join(f"{share:g}" for share in fractions)
    if len(fractions) != len(SPLIT_NAMES):
        raise ConfigError(f"split fractions {given} are {len(fractions)} numbers; give three: train, val and test")
    if math.isclose(sum(fractions), 100, abs_tol=1e-6):
        fractions = [share / 100 for share in fractions]
    if (
        not all(0 <= share <= 1 for share in fractions)
        or not math.isclose(sum(fractions), 1, abs_tol=1e-6)
        or fractions[0] == 0
    ):
        raise ConfigError(
            f"split fractions {given} are invalid; they must sum to 1 or 100, without negative numbers and with a "
            "positive share of train, such as 60,20,20"
        )
    unique = sorted(set(patients))
    order = np.random.default_rng(derive_seed(seed, "split")).permutation(len(unique))
    bounds = np.cumsum([0, *_counts(len(unique), fractions)])
    return {
        name: sorted(unique[i] for i in order[start:stop])
        for name, start, stop in zip(SPLIT_NAMES, bounds, bounds[1:], strict=False)
    }


def parse_fractions(text: str) -> tuple[float, ...]:
    """Parse the fractions of the command line. `split_patients` validates them.

    >>> parse_fractions("60,20,20")
    (60.0, 20.0, 20.0)

    Raises:
        ConfigError: a part is not a number.
    """
    try:
        return tuple(float(word) for word in text.replace(",", " ").split())
    except ValueError:
        raise ConfigError(f"split fractions '{text}' are not numbers; give three, such as 60,20,20") from None


def write_splits(path: Path, splits: Mapping[str, Sequence[str]], **origin: int | str) -> None:
    """Write splits.json atomically. `origin` is the seed, or name and source of a split file, see `ORIGIN`."""
    write_json(path, {**origin, **{name: [*members] for name, members in splits.items()}})


def check_splits(splits: Mapping[str, Sequence[str]], patients: Iterable[str], *, where: str) -> None:
    """Check that the splits contain only known patients, each at most once.

    Raises:
        DataError: a patient is unknown or in two splits, or the name of a split is too long or reserved.
    """
    known = set(patients)
    home: dict[str, str] = {}
    for name, members in splits.items():
        if name == "seed":
            raise DataError(
                f"{where}: a split cannot be called 'seed', which is another key of splits.json; rename it"
            )
        if len(name) > MAX_NAME:
            raise DataError(f"{where}: a split name has {len(name)} characters; use at most {MAX_NAME}")
        for patient in members:
            if patient not in known:
                raise DataError(f"{where}: patient '{patient}' of split '{name}' has no cases; remove the patient")
            if patient in home:
                if home[patient] == name:
                    raise DataError(f"{where}: patient '{patient}' is twice in split '{name}'; remove one entry")
                raise DataError(
                    f"{where}: patient '{patient}' is in split '{home[patient]}' and in '{name}'; remove the "
                    "patient from one of them, otherwise the model is tested on training images"
                )
            home[patient] = name


def _counts(total: int, fractions: Sequence[float]) -> list[int]:
    exact = [share * total for share in fractions]
    counts = [math.floor(value + 1e-9) for value in exact]
    by_remainder = sorted(range(len(exact)), key=lambda part: counts[part] - exact[part])
    for part in by_remainder[: total - sum(counts)]:
        counts[part] += 1
    used = [part for part, share in enumerate(fractions) if share > 0]
    for part in used:
        if counts[part] == 0 and total >= len(used):
            counts[counts.index(max(counts))] -= 1
            counts[part] = 1
    return counts
