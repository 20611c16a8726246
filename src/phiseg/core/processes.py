"""Work on many things in several processes, with the results in order and few of them waiting."""

import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context
from typing import TypeVar

from phiseg.core.errors import PhisegError

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
        PhisegError: a process died, from the function that is yielded.
    """
    if workers <= 1:
        yield from ((item, partial(work, item)) for item in items)
        return
    ignore_interrupt = (signal.SIGINT, signal.SIG_IGN)  # the main process alone answers Ctrl-C
    context = get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=signal.signal, initargs=ignore_interrupt) as pool:
        waiting: deque[tuple[Item, Future[Result]]] = deque()
        try:
            for item in items:
                waiting.append((item, pool.submit(work, item)))
                if len(waiting) > 2 * workers:
                    done, future = waiting.popleft()
                    yield done, partial(_result, future)
            while waiting:
                done, future = waiting.popleft()
                yield done, partial(_result, future)
        finally:
            pool.shutdown(cancel_futures=True)


def _result(future: Future[Result]) -> Result:
    try:
        return future.result()
    except BrokenProcessPool:
        raise PhisegError("a worker died, likely for want of memory; run again with fewer --workers") from None
