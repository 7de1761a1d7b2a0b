"""Wakes the consumers of a process when a message was appended, or a partition became free: LISTEN, on a connection of
its own. Nothing is lost where that is gone: consumers look once a second.
"""

import asyncio
from contextlib import suppress
from typing import Final

import asyncpg

from fencepost.server.postgres.connections import session
from fencepost.server.postgres.errors import SessionError
from fencepost.server.postgres.queues.table_log import CHANNEL, LEFT

PAUSE: Final = 1.0
"""Seconds until the next try to connect."""


class Bell:
    """What one consumer waits for. `freed`: a partition may have become free."""

    def __init__(self) -> None:
        self.rung = asyncio.Event()
        self.freed = False

    async def wait(self, seconds: float) -> None:
        """Wait until it rings, and no longer than that."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.rung.wait()


class Waking:
    """Listens as long as there is a consumer."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._bells: set[Bell] = set()
        self._listening: asyncio.Task[None] | None = None

    def join(self) -> Bell:
        """Have a consumer woken."""
        bell = Bell()
        self._bells.add(bell)
        if self._listening is None:
            self._listening = asyncio.create_task(self._listen_for_ever())
        return bell

    def leave(self, bell: Bell) -> None:
        self._bells.discard(bell)

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])
            self._listening = None

    def ring(self, *, freed: bool = False) -> None:
        """Wake all consumers of this process."""
        for bell in self._bells:
            bell.freed |= freed
            bell.rung.set()

    async def _listen_for_ever(self) -> None:
        while True:
            # Consumers meet the same errors when they take, and report them.
            with suppress(OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, SessionError):
                await self._listen()
            await asyncio.sleep(PAUSE)

    async def _listen(self) -> None:
        closed = asyncio.Event()
        connection = await session.connect(self._dsn, session.PINNED, name="fencepost queue listener")
        try:
            connection.add_termination_listener(lambda _connection: closed.set())
            await connection.add_listener(CHANNEL, lambda *notified: self.ring(freed=notified[-1] == LEFT))
            self.ring(freed=True)  # something may have been missed
            await closed.wait()
        finally:
            connection.terminate()
