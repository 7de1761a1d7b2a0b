"""Appends messages of many callers in one transaction: what comes while one is under way goes into the next one."""

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from fencepost.server.postgres.connections.engine import Database
from fencepost.server.postgres.queues import table_log
from fencepost.server.postgres.queues.table_log import MessageRow
from fencepost.server.queues.log import LogError, LogUnavailableError
from fencepost.server.queues.postgres.errors import ask, write

MOST: Final = 256
"""Messages of one transaction."""
MOST_BYTES: Final = 8 << 20
"""Bytes of one transaction's messages, beside its first."""
MOST_WAITING: Final = 10_000
"""Messages that wait; more are refused at once."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    row: MessageRow
    offset: "asyncio.Future[int]"

    @property
    def size(self) -> int:
        return len(self.row.key) + len(self.row.value or b"") + sum(len(value) for _, value in self.row.headers)


class TableAppender:
    """One process's appends. Messages of one caller that waits for each are in its order."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: deque[_Waiting] = deque()
        self._sending: asyncio.Task[None] | None = None

    async def append(self, row: MessageRow) -> int:
        """Append a message, and return its offset. LogUnavailableError, LogUnknownError; LogError for one that
        PostgreSQL cannot store.
        """
        if len(self._waiting) >= MOST_WAITING:
            raise LogUnavailableError(f"{MOST_WAITING} messages wait to be appended already: nothing was appended")
        loop = asyncio.get_running_loop()
        waiting = _Waiting(row, loop.create_future())
        self._waiting.append(waiting)
        if self._sending is None:
            self._sending = loop.create_task(self._send())
        return await waiting.offset

    async def close(self) -> None:
        if self._sending is not None:
            await asyncio.wait([self._sending])

    async def _send(self) -> None:
        try:
            while self._waiting:
                await self._carry(self._next_batch())
        finally:
            self._sending = None

    def _next_batch(self) -> list[_Waiting]:
        batch, size = [self._waiting.popleft()], 0
        while self._waiting and len(batch) < MOST and size + self._waiting[0].size <= MOST_BYTES:
            size += self._waiting[0].size
            batch.append(self._waiting.popleft())
        # A caller that has gone may not come back to ask, and what was not sent was not appended.
        return [each for each in batch if not each.offset.done()]

    async def _carry(self, batch: list[_Waiting]) -> None:
        """Append these, and answer each. One that PostgreSQL cannot store keeps no other from it."""
        if not batch:
            return
        try:
            offsets = await self._append([each.row for each in batch])
        except LogError as error:
            if len(batch) > 1 and not isinstance(error, LogUnavailableError):
                for each in batch:
                    await self._carry([each])
                return
            for each in batch:
                if not each.offset.done():
                    each.offset.set_exception(error)
        else:
            for each, offset in zip(batch, offsets, strict=True):
                if not each.offset.done():
                    each.offset.set_result(offset)

    async def _append(self, rows: list[MessageRow]) -> list[int]:
        offsets = await write(self._database, lambda connection: table_log.append(connection, rows))
        with suppress(LogError):  # whether or not this reaches consumers, they look once a second
            await ask(self._database, table_log.notify)
        return offsets
