"""Match the classes of a dataset with those of a model: by number, or by a mapping of names."""

import sys
from collections.abc import Mapping, Sequence

from phiseg.core.errors import ConfigError, ModelError, nearest
from phiseg.data.relabel import relabel
from phiseg.data.store import Dataset
from phiseg.inference.preprocessing import Preprocessing
from phiseg.models import Segmenter

OPTION = "--class-map"
"""The option of the commands that take a mapping. In Python, it is the argument `class_map`."""


def match_classes(
    model: Segmenter, dataset: Dataset, class_map: Mapping[str, str] | None = None, *, warn: bool = True
) -> Dataset:
    """Return the dataset with the classes of the model; warn on stderr where only the numbers match.

    Without a mapping, classes are compared by number. With one, the labels of the dataset are translated when they
    are read. A class that the mapping does not name keeps its name; the background stays the background.

    Args:
        model: the model.
        dataset: the dataset.
        class_map: the model's class for classes of the dataset, by name. Several may become one.
        warn: print the warning.

    Raises:
        ConfigError: the mapping names an unknown class, or gives a class of the dataset no counterpart.
        ModelError: there is no mapping, and the classes do not match by number (`check_classes_match`).
    """
    if not class_map:
        check_classes_match(model, dataset)
        if warn and (different := renamed_classes(model, dataset)):
            print(
                f"phiseg: warning: {names_note(dataset, different)}; if this is right, confirm it with "
                f"{_as_argument(different)}",
                file=sys.stderr,
            )
        return dataset
    return relabel(dataset, class_names(model, dataset), class_numbers(model, dataset, class_map))


def check_classes_match(model: Segmenter, dataset: Dataset) -> None:
    """Check that the model has as many classes as the dataset, and none of them under another number.

    Raises:
        ModelError: with the classes of both.
    """
    theirs, ours = dataset.info.classes, class_names(model, dataset)
    listed = f"the model has {len(ours)} classes ({', '.join(ours)}), {dataset.path} has {len(theirs)} "
    listed += f"({', '.join(theirs)})"
    if len(ours) != len(theirs):
        raise ModelError(
            f"{listed}; map classes with {_as_argument({'DATA': 'MODEL'})}, or train a model on this data"
        )
    moved = [name for number, name in enumerate(theirs) if name in ours and ours.index(name) != number]
    if moved:
        by_name = _as_argument({name: name for name in moved})
        raise ModelError(f"{listed}, so '{moved[0]}' has another number; map classes by name with {by_name}")


def renamed_classes(model: Segmenter, dataset: Dataset) -> dict[str, str]:
    """Return the model's names of the classes that the dataset names differently, by the dataset's names."""
    pairs = zip(dataset.info.classes, class_names(model, dataset), strict=True)
    return {theirs: ours for theirs, ours in pairs if theirs != ours}


def names_note(dataset: Dataset, renamed: Mapping[str, str]) -> str:
    """Return a line about the classes that a dataset and a model name differently."""
    pairs = ", ".join(f"'{theirs}' as '{ours}'" for theirs, ours in renamed.items())
    return f"{dataset.path} names classes differently from the model; they are compared by number: {pairs}"


def class_names(model: Segmenter, dataset: Dataset) -> tuple[str, ...]:
    """Return the class names of a model; if it records none, those of the dataset or numbers."""
    recorded = Preprocessing.find(model)
    if recorded is not None and len(recorded.classes) == model.config.num_classes:
        return recorded.classes
    if len(dataset.info.classes) == model.config.num_classes:
        return dataset.info.classes
    return tuple(f"class {number}" for number in range(model.config.num_classes))


def parse_class_map(words: Sequence[str]) -> dict[str, str]:
    """Read pairs of class names.

    Raises:
        ConfigError: a word is not a pair, or a class of the dataset has two counterparts.

    >>> parse_class_map(["class 1:nodule"])
    {'class 1': 'nodule'}
    """
    found: dict[str, str] = {}
    for word in words:
        theirs, _, ours = word.partition(":")
        if not theirs or not ours:
            raise ConfigError(f"{OPTION} '{word}' must be DATA:MODEL, two class names such as 'class 1:nodule'")
        if found.setdefault(theirs, ours) != ours:
            raise ConfigError(f"{OPTION} maps '{theirs}' to '{found[theirs]}' and to '{ours}'; keep one")
    return found


def _as_argument(class_map: Mapping[str, str]) -> str:
    """Return a mapping as an option of a command and as an argument in Python.

    >>> print(_as_argument({"class 1": "nodule"}))
    --class-map 'class 1:nodule' (in Python: class_map={'class 1': 'nodule'})
    """
    words = " ".join(f"'{theirs}:{ours}'" for theirs, ours in class_map.items())
    return f"{OPTION} {words} (in Python: class_map={dict(class_map)})"


def class_numbers(model: Segmenter, dataset: Dataset, class_map: Mapping[str, str]) -> list[int]:
    """Return the model's number of each class of the dataset; see `match_classes`.

    Raises:
        ConfigError: the mapping names an unknown class, or gives a class of the dataset no counterpart.
    """
    theirs, ours = dataset.info.classes, class_names(model, dataset)
    if unknown := [name for name in class_map if name not in theirs]:
        raise ConfigError(f"{dataset.path} has no class '{unknown[0]}' ({nearest(unknown[0], theirs)})")
    if unknown := [name for name in class_map.values() if name not in ours]:
        raise ConfigError(f"the model has no class '{unknown[0]}' ({nearest(unknown[0], ours)})")
    numbers = []
    for number, name in enumerate(theirs):
        target = class_map.get(name, ours[0] if number == 0 else name)
        if target not in ours:
            raise ConfigError(
                f"class '{name}' of {dataset.path} has no counterpart in the model ({', '.join(ours)}); add "
                f"{_as_argument({name: 'NAME'})}"
            )
        numbers.append(ours.index(target))
    return numbers
