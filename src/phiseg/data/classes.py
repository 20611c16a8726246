"""Class indices of label images."""

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from phiseg.core.errors import DataError


def check_classes(
    labels: NDArray[Any], classes: Sequence[str], *, where: str, fix: str = "map it to one of them"
) -> None:
    """Check that `labels` contains only indices of `classes`.

    Raises:
        DataError: there is another value.
    """
    low, high = labels.min(), labels.max()
    if low < 0 or high >= len(classes):
        listed = ", ".join(f"{index} {name}" for index, name in enumerate(classes))
        unknown = low if low < 0 else high
        raise DataError(f"{where}: label {unknown} is not one of the classes ({listed}); {fix}")
