"""Ctrl-C (SIGINT) and SIGTERM during a training: the current step is finished, and its state is saved."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

from phiseg.core.errors import Interrupted

STOPPING = b"\nphiseg: stopping after this step; press Ctrl-C again to stop at once\n"


class StopSignal:
    """Context in which the first SIGINT or SIGTERM is remembered; the second of a kind has its usual effect.

    Ignored signals stay ignored, as in a background job of a shell. Outside the main thread, nothing changes.

    Args:
        announce: print a line when a signal arrives.
    """

    def __init__(self, *, announce: bool) -> None:
        self.received = 0
        """Number of the first signal; 0 if there was none."""
        self._announce = announce
        self._at_once = False
        self._previous: dict[int, Callable[..., Any] | int] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                previous = signal.getsignal(number)
                if previous not in (signal.SIG_IGN, None):
                    self._previous[number] = previous
                    signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Return a context in which a signal raises `Interrupted` immediately, because nothing can be lost.

        A signal that was received before raises it at the start.
        """
        if self.received:
            raise Interrupted(self.received)
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False

    def _receive(self, number: int, _: FrameType | None) -> None:
        signal.signal(number, self._previous[number])
        if self.received:
            return
        self.received = number
        if self._at_once:
            raise Interrupted(number)
        if self._announce:
            os.write(2, STOPPING)  # print() may be interrupted by this handler
