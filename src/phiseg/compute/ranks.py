"""Division of work among several processes of one command."""

from collections.abc import Sequence
from typing import TypeVar

from torch import distributed

T = TypeVar("T")


def process_rank() -> tuple[int, int]:
    """Return the number of this process and the number of processes; (0, 1) for a single process."""
    if not distributed.is_initialized():
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def share_batches(rows: Sequence[T], batch_size: int, part: int, number: int) -> list[T]:
    """Return one of `number` parts of the rows: whole batches, which are the same for any number of parts.

    >>> share_batches([1, 2, 3, 4, 5], 2, part=0, number=2)
    [1, 2, 5]

    Args:
        rows: the rows to divide.
        batch_size: number of rows per batch.
        part: number of the part, from 0.
        number: number of parts.
    """
    starts = range(part * batch_size, len(rows), number * batch_size)
    return [row for start in starts for row in rows[start : start + batch_size]]


def gather(found: T) -> list[T]:
    """Return the values of all processes in order. Every process must call this function."""
    parts = [found] * process_rank()[1]
    if len(parts) > 1:
        distributed.all_gather_object(parts, found)
    return parts
