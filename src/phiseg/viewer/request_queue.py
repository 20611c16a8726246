"""A queue that runs one computation at a time. Waiting clients see their position and may disconnect."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from queue import SimpleQueue
from threading import Event, Lock, Thread

from phiseg.core.errors import PhisegError
from phiseg.viewer.schema import Failed, Message, Queued

LOOK_EVERY = 0.5
"""Interval in seconds at which waiting clients receive their position and disconnected clients are detected."""
_log = logging.getLogger(__name__)


class ClientLeftError(Exception):
    """The client of the running computation has disconnected."""


class RequestQueue:
    """Serve one client after another in a daemon thread.

    Args:
        max_waiting: maximum number of waiting clients.
    """

    def __init__(self, max_waiting: int) -> None:
        self.max_waiting = max_waiting
        self._line: list[object] = []
        self._lock = Lock()
        self._served: Event | None = None
        """Set when the client being served has disconnected."""
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        Thread(target=self._work, name="phiseg-viewer", daemon=True).start()

    @property
    def is_full(self) -> bool:
        """Whether the maximum number of clients are waiting."""
        return len(self._line) > self.max_waiting

    async def serve(
        self, answer: Iterator[Message], has_left: Callable[[], Awaitable[bool]]
    ) -> AsyncIterator[Message]:
        """Yield the position in the queue, and then the messages of `answer`.

        An error becomes the last message. If the client disconnects, `check_wanted` ends the computation.

        Args:
            answer: computation, which runs in the thread of the queue.
            has_left: returns whether the client has disconnected.
        """
        loop, messages, gone = asyncio.get_running_loop(), asyncio.Queue[Message | None](), Event()

        def work() -> None:
            self._served = gone
            with suppress(RuntimeError):  # the event loop has ended
                for message in () if gone.is_set() else _without_errors(answer):
                    loop.call_soon_threadsafe(messages.put_nowait, message)
            self._served = None
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(messages.put_nowait, None)  # the client is served until here
            self._leave(messages)

        with self._lock:
            self._line.append(messages)
            self._jobs.put(work)
        try:
            if ahead := self._ahead(messages):
                yield Queued(ahead=ahead)
            while True:
                try:
                    message = await asyncio.wait_for(messages.get(), LOOK_EVERY)
                except TimeoutError:
                    if await has_left():
                        return
                    if ahead := self._ahead(messages):
                        yield Queued(ahead=ahead)
                    continue
                if message is None:
                    return
                yield message
        finally:
            gone.set()
            self._leave(messages)

    def check_wanted(self) -> None:
        """Stop the running computation if its client has disconnected. Long computations call this regularly.

        Raises:
            ClientLeftError: the client has disconnected.
        """
        if self._served is not None and self._served.is_set():
            raise ClientLeftError

    def _work(self) -> None:
        while True:
            self._jobs.get()()

    def _ahead(self, client: object) -> int:
        with self._lock:
            return self._line.index(client) if client in self._line else 0

    def _leave(self, client: object) -> None:
        with self._lock:
            if client in self._line:
                self._line.remove(client)


def _without_errors(answer: Iterator[Message]) -> Iterator[Message]:
    """Yield messages; an error becomes the last message."""
    try:
        yield from answer
    except ClientLeftError:
        return
    except PhisegError as error:
        yield Failed(message=str(error))
    except Exception as error:  # a bug must not end the thread
        _log.exception("a prediction failed")
        yield Failed(message=unexpected(error))


def unexpected(error: Exception) -> str:
    """Return the message to a client about a bug or a lack of memory."""
    if isinstance(error, MemoryError):
        return "not enough memory; draw fewer samples or use a smaller scan"
    return f"unexpected error ({type(error).__name__}); see the terminal of the server for details"
