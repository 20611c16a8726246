"""Threads that each compute a different item, for work on a CPU that consists of many short operations."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_threads(work: Callable[[Item], Result], items: Iterable[Item], workers: int) -> Iterator[Result]:
    """Yield the result of each item in order. Several threads compute different items at the same time.

    The threads share the cores that torch uses. If all cores compute one item, they wait for each other after every
    operation, which is slow for short operations and on a busy machine. At most `workers + 1` results are pending.

    Args:
        work: function of one item, which spends its time in torch.
        items: the inputs.
        workers: number of threads; 1 computes in the thread of the caller.

    >>> list(in_threads(abs, [-1, 2, -3], workers=2))
    [1, 2, 3]
    """
    if workers == 1:
        yield from map(work, items)
        return
    cores = torch.get_num_threads()
    each = max(1, cores // workers)
    try:
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(each,)) as pool:
            waiting: deque[Future[Result]] = deque()
            try:
                for item in items:
                    waiting.append(pool.submit(work, item))
                    if len(waiting) > workers:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                pool.shutdown(cancel_futures=True)
    finally:
        torch.set_num_threads(cores)  # torch also keeps a number for threads that start later
