"""The client for code that is not asynchronous: the same one, on an event loop in a thread of its own.

So a lease is renewed while its holder computes. All methods may be called from any thread. Those that only pass a call
on are in client_calls.py and row_calls.py.
"""

import contextlib
from collections.abc import Generator, Iterable, Iterator
from functools import partial
from types import TracebackType
from typing import Self

from fencepost.client.clock import SystemClock
from fencepost.client.elections.observing import Leader
from fencepost.client.rows.batches import Verdict, decide
from fencepost.client.rows.lines import MOST_BYTES, MOST_LINES, SECONDS, Line, Ready, as_sent
from fencepost.client.sync.client_calls import SyncClientCalls
from fencepost.client.sync.row_calls import SyncRowCalls


class SyncClient(SyncClientCalls, SyncRowCalls):
    """A client of the gateway at `url`: `with SyncClient(url) as c:`. Arguments and methods are those of `Client`.

    A lock's body cannot be cancelled from outside here: ask `lease.trusted` in long computations.
    """

    def __enter__(self) -> Self:
        self._loop.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Wait for releases that are still under way (seconds), close all connections, and end the thread."""
        try:
            if not self._loop.is_of_another_process:  # which closes its connections itself
                self._loop.run(self._client.aclose)
        finally:
            self._loop.close()

    def batch(self, lines: Iterable[Line]) -> Generator[Verdict, None, None]:
        """Send many writes and claims: `for verdict in client.batch(lines)`; see `Client.batch`. Lines are taken in the
        caller's thread, so many at a time as a request has, or as there are when one has kept it waiting.
        """
        exchange = self._client._exchange  # noqa: SLF001 - the two are one client
        for first, chunk in _requests(lines):
            verdicts, failed = self._loop.run(partial(decide, exchange, chunk, first))
            yield from verdicts
            if failed is not None:
                raise failed

    def leaders(self, name: str, *, source: str | None = None) -> Generator[Leader | None, None, None]:
        """Observe an election: `for leader in client.leaders("scheduler")`; see `Client.leaders`."""
        observed = self._client.leaders(name, source=source)

        async def following() -> Leader | None:
            return await anext(observed)

        async def close() -> None:
            await observed.aclose()

        try:
            while True:
                yield self._loop.run(following)
        finally:
            with contextlib.suppress(RuntimeError):  # the client is closed already, and the stream with it
                self._loop.run(close)


def _requests(lines: Iterable[Line]) -> Iterator[tuple[int, list[Ready]]]:
    """Gather the lines of a request, for as long as they come quickly; with the number of its first one."""
    clock, chunk, size, number = SystemClock(), list[Ready](), 0, 0
    due = clock.now() + SECONDS
    for number, line in enumerate(lines, 1):
        ready = as_sent(number, line)
        full = size + len(ready.text) > MOST_BYTES
        if chunk and (full or len(chunk) == MOST_LINES):
            yield number - len(chunk), chunk
            chunk, size, due = [], 0, clock.now() + SECONDS
        chunk.append(ready)
        size += len(ready.text)
        if clock.now() >= due:
            yield number - len(chunk) + 1, chunk
            chunk, size, due = [], 0, clock.now() + SECONDS
    if chunk:
        yield number - len(chunk) + 1, chunk
