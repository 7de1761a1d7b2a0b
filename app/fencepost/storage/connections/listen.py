"""Receives notifications of changed tables and released locks: LISTEN on a connection of its own, made anew whenever
it breaks.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import asyncpg

from fencepost.storage.connections import session
from fencepost.storage.errors import SessionError

CHANNEL: Final = "fencepost"
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0


class Listener:
    """Calls `reload` for each `NOTIFY fencepost`, `woken` with each payload on the gateway's own channel.

    After each reconnection it calls `reload` and `connected`, for some may have been missed.
    """

    def __init__(
        self,
        dsn: str,
        reload: Callable[[], Awaitable[object]],
        lost: Callable[[str], None],
        *,
        channel: str,
        woken: Callable[[str], None],
        connected: Callable[[], None],
    ) -> None:
        self._dsn = dsn
        self._reload = reload
        self._lost = lost
        self._channel = channel
        self._woken = woken
        self._connected = connected
        self._notified = asyncio.Event()

    async def run(self) -> None:
        """Run until cancelled."""
        pause = FIRST_PAUSE
        while True:
            try:
                await self._listen()
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, SessionError) as error:
                self._lost(str(error) or type(error).__name__)
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _listen(self) -> None:
        connection = await session.connect(self._dsn, session.PINNED, name="fencepost listener")
        try:
            connection.add_termination_listener(lambda _connection: self._notified.set())
            await connection.add_listener(CHANNEL, lambda *_notification: self._notified.set())
            await connection.add_listener(self._channel, lambda *notification: self._woken(str(notification[-1])))
            self._notified.set()
            self._connected()
            while not connection.is_closed():
                await self._notified.wait()
                self._notified.clear()
                if not connection.is_closed():
                    await self._reload()
            self._lost("the connection was closed")
        finally:
            connection.terminate()
