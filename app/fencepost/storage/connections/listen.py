"""Receives notifications of changed tables, changed API keys and released locks: LISTEN on a connection of its
own, made anew whenever it breaks.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import asyncpg

from fencepost.storage.connections import session
from fencepost.storage.errors import SessionError

CHANNEL: Final = "fencepost"
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0
KEYS: Final = "keys"
"""The payload that announces changed API keys (api_keys.sql)."""


class KeyListener(Protocol):
    """Wants to know when API keys change, and whether that is announced."""

    def on_change(self) -> None:
        """Some have changed."""

    def on_listening(self) -> None:
        """From now on changes are announced; some may have been missed."""

    def on_silence(self) -> None:
        """They are not announced any more."""


class Listener:
    """Calls `reload` for each `NOTIFY fencepost`, `woken` with each payload on the gateway's own channel.

    After each reconnection it calls `reload` and `connected`, for some may have been missed. `keys` gets what concerns
    API keys, also while a reload is under way.
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
        keys: KeyListener | None = None,
    ) -> None:
        self._dsn = dsn
        self._reload = reload
        self._lost = lost
        self._channel = channel
        self._woken = woken
        self._connected = connected
        self._keys = keys
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
            connection.add_termination_listener(self._on_end)
            await connection.add_listener(CHANNEL, self._on_notification)
            await connection.add_listener(self._channel, lambda *notification: self._woken(str(notification[-1])))
            self._notified.set()
            self._connected()
            if self._keys is not None:
                self._keys.on_listening()
            while not connection.is_closed():
                await self._notified.wait()
                self._notified.clear()
                if not connection.is_closed():
                    await self._reload()
            self._lost("the connection was closed")
        finally:
            connection.terminate()

    def _on_notification(self, *notification: object) -> None:
        if notification[-1] != KEYS:
            self._notified.set()
        elif self._keys is not None:
            self._keys.on_change()

    def _on_end(self, _connection: object) -> None:
        self._notified.set()
        if self._keys is not None:
            self._keys.on_silence()
