"""Work on many things in several processes, with the results in order and few of them waiting."""

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
    """Yield every item with a function that returns its result, or raises its error.

    >>> [result() for _, result in in_order(abs, [-1, 2], workers=1)]
    [1, 2]

    Args:
        work: a function that other processes can import, for several workers.
        items: what to work on.
        workers: processes; with one, the work is done in this process when its result is asked for.

    Raises:
        ConfigError: there are no workers.
        PhisegError: a process died, from the function that is yielded.
    """
    if workers < 1:
        raise ConfigError(f"workers {workers} must be at least 1")
    if workers == 1:
        yield from ((item, partial(work, item)) for item in items)
        return
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=_follow_parent) as pool:
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
    """Hand the item to the pool; a pool that has lost a process is told of by the item's result, not here."""
    try:
        return pool.submit(work, item)
    except BrokenProcessPool as error:
        lost: Future[Result] = Future()
        lost.set_exception(error)
        return lost


def _follow_parent() -> None:
    """Leave Ctrl-C to the main process, and end with it, however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None, "only a worker calls this"

    def follow() -> None:
        parent.join()
        os._exit(1)

    Thread(target=follow, daemon=True).start()


def _result(future: Future[Result]) -> Result:
    try:
        return future.result()
    except BrokenProcessPool:
        raise PhisegError("a worker died, likely for want of memory; run again with fewer --workers") from None
