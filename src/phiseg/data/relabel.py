"""Read the labels of a dataset with other class numbers, without a copy of the arrays."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from phiseg.core.errors import ConfigError
from phiseg.data.manifest import MISSING
from phiseg.data.store import Dataset


class RelabelledArray:
    """An array of labels whose values are translated when they are read."""

    def __init__(self, labels: NDArray[np.uint8], table: NDArray[np.uint8]) -> None:
        self.labels, self.table = labels, table
        self.shape, self.dtype, self.ndim = labels.shape, labels.dtype, labels.ndim

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, key: Any) -> NDArray[np.uint8]:
        return cast(NDArray[np.uint8], self.table[self.labels[key]])


def relabel(dataset: Dataset, classes: Sequence[str], numbers: Sequence[int]) -> Dataset:
    """Return the dataset with other classes: label k of the files is read as `numbers[k]`.

    Labels that are not a class of the dataset are read as `MISSING`, which `Dataset.check_labels` reports. The
    fingerprint is that of a dataset that was prepared with the new names, unless numbers change.

    Args:
        dataset: the dataset, which stays as it is.
        classes: the new class names, the background first.
        numbers: the new number of each class of the dataset.

    Raises:
        ConfigError: there is not one new number for every class.
    """
    if len(numbers) != len(dataset.info.classes) or not all(0 <= new < len(classes) for new in numbers):
        raise ConfigError(
            f"{len(numbers)} new class numbers for the {len(dataset.info.classes)} classes of {dataset.path}; "
            f"give one for each, from 0 to {len(classes) - 1}"
        )
    arrays, labels = dict(dataset.info.arrays), dataset.labels
    if list(numbers) != list(range(len(numbers))):
        table = np.full(MISSING + 1, MISSING, np.uint8)
        table[: len(numbers)] = numbers
        labels = cast(NDArray[np.uint8], RelabelledArray(labels, table))
        digest = hashlib.sha256(f"{arrays['labels'].sha256}/{list(numbers)}".encode()).hexdigest()
        arrays["labels"] = arrays["labels"].model_copy(update={"sha256": digest})
    info = dataset.info.model_copy(update={"classes": tuple(classes), "arrays": arrays})
    return replace(dataset, info=info, labels=labels)
