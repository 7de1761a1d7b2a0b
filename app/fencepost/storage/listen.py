"""Hears of changed tables: LISTEN fencepost on a connection of its own, made anew whenever it breaks."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import asyncpg

CHANNEL: Final = "fencepost"
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0


class Listener:
    """Calls `reload` for each `NOTIFY fencepost` and after each reconnection, when some may have been missed."""

    def __init__(self, dsn: str, reload: Callable[[], Awaitable[object]], lost: Callable[[str], None]) -> None:
        self._dsn = dsn
        self._reload = reload
        self._lost = lost
        self._told = asyncio.Event()

    async def run(self) -> None:
        """Run until cancelled."""
        pause = FIRST_PAUSE
        while True:
            try:
                await self._listen()
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                self._lost(str(error) or type(error).__name__)
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _listen(self) -> None:
        connection = await asyncpg.connect(self._dsn, server_settings={"application_name": "fencepost listener"})
        try:
            connection.add_termination_listener(lambda _connection: self._told.set())
            await connection.add_listener(CHANNEL, lambda *_notification: self._told.set())
            self._told.set()
            while not connection.is_closed():
                await self._told.wait()
                self._told.clear()
                if not connection.is_closed():
                    await self._reload()
            self._lost("the connection was closed")
        finally:
            connection.terminate()
