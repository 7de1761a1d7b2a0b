"""Receives notifications of changed tables, changed API keys and released locks: LISTEN on a connection of its
own, made anew whenever it breaks.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

import asyncpg

from fencepost.server.postgres import connection as session
from fencepost.server.postgres.errors import SessionError
from fencepost.server.times import TIMES, Times

CHANNEL: Final = "fencepost"
WRITTEN: Final = "fencepost_work"
"""On which tables under `protect --work` say that they were written to, with their oids (next_rows.sql)."""
KEYS: Final = "keys"
"""The payload that announces changed API keys (api_keys.sql)."""


class KeyListener(Protocol):
    """Wants to know when API keys change, and whether that is announced."""

    def on_change(self) -> None: ...

    def on_listening(self) -> None:
        """From now on changes are announced; some may have been missed."""

    def on_silence(self) -> None: ...


@dataclass(slots=True, kw_only=True)
class Listener:
    """Calls `reload` for each `NOTIFY fencepost`, and those of other `channels` with each payload on them.

    After each reconnection it calls `reload` and `connected`, for some may have been missed. `keys` gets what concerns
    API keys, also while a reload is under way.
    """

    dsn: str
    reload: Callable[[], Awaitable[object]]
    lost: Callable[[str], None]
    channels: Mapping[str, Callable[[str], None]]
    connected: Sequence[Callable[[], None]]
    keys: KeyListener | None = None
    times: Times = TIMES
    _notified: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    async def run(self) -> None:
        """Run until cancelled."""
        pause = self.times.connections.listen_pause
        while True:
            try:
                await self._listen()
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, SessionError) as error:
                self.lost(str(error) or type(error).__name__)
            await self.times.clock.sleep(pause)
            pause = min(pause * 2, self.times.connections.longest_listen_pause)

    async def _listen(self) -> None:
        connection = await session.connect(self.dsn, session.PINNED, name="fencepost listener")
        try:
            connection.add_termination_listener(self._on_end)
            await connection.add_listener(CHANNEL, self._on_notification)
            for channel, woken in self.channels.items():
                await connection.add_listener(channel, partial(_hand_on, woken))
            self._notified.set()
            for tell in self.connected:
                tell()
            if self.keys is not None:
                self.keys.on_listening()
            while not connection.is_closed():
                await self._notified.wait()
                self._notified.clear()
                if not connection.is_closed():
                    await self.reload()
            self.lost("the connection was closed")
        finally:
            connection.terminate()

    def _on_notification(self, *notification: object) -> None:
        if notification[-1] != KEYS:
            self._notified.set()
        elif self.keys is not None:
            self.keys.on_change()

    def _on_end(self, _connection: object) -> None:
        self._notified.set()
        if self.keys is not None:
            self.keys.on_silence()


def _hand_on(woken: Callable[[str], None], *notification: object) -> None:
    woken(str(notification[-1]))
