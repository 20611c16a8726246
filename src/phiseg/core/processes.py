"""Ordered parallel map over several processes with a bounded number of pending results."""

import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import TypeVar

from phiseg.core.errors import ConfigError, PhisegError

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_order(
    work: Callable[[Item], Result], items: Iterable[Item], workers: int
) -> Iterator[tuple[Item, Callable[[], Result]]]:
    """Yield each item with a function that returns its result or raises its error.

    >>> [result() for _, result in in_order(abs, [-1, 2], workers=1)]
    [1, 2]

    Args:
        work: function of one item; with several workers, other processes must be able to import it.
        items: the inputs.
        workers: number of processes; 1 runs the work in this process when the result is requested.

    Raises:
        ConfigError: `workers` is below 1.
        PhisegError: a process died (raised by the yielded function).
    """
    if workers < 1:
        raise ConfigError(f"workers = {workers} must be at least 1")
    if workers == 1:
        yield from ((item, partial(work, item)) for item in items)
        return
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=_end_with_parent) as pool:
        waiting: deque[tuple[Item, Future[Result]]] = deque()
        try:
            for item in items:
                waiting.append((item, _submit(pool, work, item)))
                if len(waiting) > 2 * workers:
                    done, future = waiting.popleft()
                    yield done, partial(_result, future)
            while waiting:
                done, future = waiting.popleft()
                yield done, partial(_result, future)
        finally:
            pool.shutdown(cancel_futures=True)


def _submit(pool: ProcessPoolExecutor, work: Callable[[Item], Result], item: Item) -> Future[Result]:
    """Submit the item; if the pool is broken, the error is raised by the future, not here."""
    try:
        return pool.submit(work, item)
    except BrokenProcessPool as error:
        failed: Future[Result] = Future()
        failed.set_exception(error)
        return failed


def _end_with_parent() -> None:
    """Leave Ctrl-C to the main process, and exit when the main process ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None, "runs in worker processes only"

    def wait() -> None:
        parent.join()
        os._exit(1)

    Thread(target=wait, daemon=True).start()


def _result(future: Future[Result]) -> Result:
    try:
        return future.result()
    except BrokenProcessPool:
        raise PhisegError(
            "a worker process died, probably because memory ran out; run again with fewer --workers"
        ) from None
