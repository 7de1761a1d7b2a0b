"""The client for code that is not asynchronous: the same one, on an event loop in a thread of its own.

So a lease is renewed while its holder computes. All methods may be called from any thread. Those that only pass a call
on are in client_calls.py and row_calls.py.
"""

import contextlib
from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace
from types import TracebackType
from typing import Self

from fencepost.client.clock import SystemClock
from fencepost.client.elections.observing import Leader
from fencepost.client.rows.batches import Verdict
from fencepost.client.rows.lines import MOST_LINES, SECONDS, Line, check
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
            self._loop.run(self._client.aclose)
        finally:
            self._loop.close()

    def batch(self, lines: Iterable[Line]) -> Generator[Verdict, None, None]:
        """Send many writes and claims: `for verdict in client.batch(lines)`; see `Client.batch`. Lines are taken in the
        caller's thread, so many at a time as a request has, or as there are when one has kept it waiting.
        """
        source, done = iter(lines), 0
        while chunk := _taken(source, done + 1):

            async def decide(chunk: list[Line] = chunk) -> list[Verdict]:
                return [verdict async for verdict in self._client.batch(chunk)]

            for verdict in self._loop.run(decide):
                yield replace(verdict, number=done + verdict.number)
            done += len(chunk)

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


def _taken(source: Iterator[Line], number: int) -> list[Line]:
    """Take the next lines, from that number on."""
    clock, chunk = SystemClock(), list[Line]()
    due = clock.now() + SECONDS
    for line in source:
        check(number + len(chunk), line)
        chunk.append(line)
        if len(chunk) == MOST_LINES or clock.now() >= due:
            break
    return chunk
