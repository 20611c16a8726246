"""One computation at a time: others wait in line, are told how many are ahead, and may leave."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from queue import SimpleQueue
from threading import Event, Lock, Thread

from phiseg.core.errors import PhisegError
from phiseg.viewer.schema import Failed, Message, Queued

LOOK_EVERY = 0.5
"""Seconds after which those who wait are told how it stands, and those who left are noticed."""
_log = logging.getLogger(__name__)


class ClientLeftError(Exception):
    """Nobody waits any more for what is being computed."""


class RequestQueue:
    """Serves one client after another, in a thread of its own that ends with the program.

    Args:
        max_waiting: clients beyond which no more are let in.
    """

    def __init__(self, max_waiting: int) -> None:
        self.max_waiting = max_waiting
        self._line: list[object] = []
        self._lock = Lock()
        self._served: Event | None = None
        """Set when the client who is being served has left."""
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        Thread(target=self._work, name="phiseg-viewer", daemon=True).start()

    @property
    def is_full(self) -> bool:
        """Whether too many are waiting."""
        return len(self._line) > self.max_waiting

    async def serve(
        self, answer: Iterator[Message], has_left: Callable[[], Awaitable[bool]]
    ) -> AsyncIterator[Message]:
        """Yield what `answer` gives when its turn has come; until then, how many are ahead.

        Its errors become a last message. When the client has left, `check_wanted` ends it.

        Args:
            answer: the work, done in the queue's thread.
            has_left: tells whether the client went away.
        """
        loop, messages, gone = asyncio.get_running_loop(), asyncio.Queue[Message | None](), Event()

        def work() -> None:
            self._served = gone
            with suppress(RuntimeError):  # of a loop that has ended: nobody listens any more
                for message in () if gone.is_set() else _without_errors(answer):
                    loop.call_soon_threadsafe(messages.put_nowait, message)
            self._served = None
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(messages.put_nowait, None)  # only now may the client go away
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
        """Stop what is being computed if its client has left; long work calls this now and then.

        Raises:
            ClientLeftError: it has.
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
    """Yield messages; an error becomes the last one."""
    try:
        yield from answer
    except ClientLeftError:
        return
    except PhisegError as error:
        yield Failed(message=str(error))
    except Exception as error:  # a bug of ours must not end the thread that serves everybody
        _log.exception("a prediction failed")
        yield Failed(message=unexpected(error))


def unexpected(error: Exception) -> str:
    """Return what a client is told of a bug of ours, or of a machine that is too small."""
    if isinstance(error, MemoryError):
        return "not enough memory; draw fewer samples or use a smaller scan"
    return f"unexpected error ({type(error).__name__}); see the terminal of `phiseg view` for details"
