"""One member of those who take from the queue postgres:default.

1. It says that it is there every OWN_EVERY seconds, and has its share of the partitions then: queue_own gives it free
   ones, and takes from it those above its share in which it has nothing in hand. In surplus partitions that it has
   something of, it takes nothing more.
2. One that did not say so for TTL seconds may have lost them. It sees that when it says so next; what it had of them
   comes to their new owner, and the fence decides whose write lands.
3. Another process that comes under its name takes what it has. Then it takes nothing, and says so, until the other is
   gone.
4. A partition is read from its beginning, leaving out what is in hand: offsets of different resources may be committed
   in any order.
"""

import asyncio
import secrets
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from fencepost.server.postgres.connections.connection import Connection
from fencepost.server.postgres.connections.engine import Database
from fencepost.server.postgres.queues import table_log
from fencepost.server.postgres.queues.table_log import Owned, PlacedRow
from fencepost.server.queues.log import TAKEN_BYTES, LogError, Message, Position, Received, namesake
from fencepost.server.queues.postgres.errors import ask, write
from fencepost.server.queues.postgres.waking import Waking

TTL: Final = 10.0
"""Seconds after which a member that did not say that it is there loses its partitions to others."""
OWN_EVERY: Final = 2.0
"""Seconds after which it says so."""
LOOK_EVERY: Final = 1.0
"""Seconds after which it looks for messages of which no notification came."""


class PostgresConsumer:
    """Consumer (queues/log.py) over the database."""

    def __init__(self, database: Database, waking: Waking, member: str, lost: Callable[[frozenset[int]], None]) -> None:
        self._database = database
        self._waking = waking
        self._member = member
        self._lost = lost
        self._bell = waking.join()
        self._owned: frozenset[int] = frozenset()
        self._leaving: frozenset[int] = frozenset()
        self._in_hand: set[tuple[int, int]] = set()
        self._due = 0.0
        self._process = secrets.token_hex(8)
        self._has_come = self._displaced = False

    @property
    def partitions(self) -> frozenset[int]:
        """The partitions that this member has now, as far as it knows."""
        return self._owned

    def begin(self, generation: int) -> None:
        """Nothing to do: the table loses nothing that the source's own database still knows."""

    async def take(self, most: int, wait_s: float) -> Sequence[Received]:
        """Take the oldest messages that are not in hand (Consumer.take)."""
        loop = asyncio.get_running_loop()
        end = loop.time() + wait_s
        while True:
            self._bell.rung.clear()
            if self._bell.freed or loop.time() >= self._due:
                await self._own()
            if most and (rows := await self._take(most)):
                self._in_hand.update((row.row.partition, row.offset) for row in rows)
                return [received(row) for row in rows]
            left = end - loop.time()
            if left <= 0:
                return []
            await self._bell.wait(min(left, LOOK_EVERY))

    async def _take(self, most: int) -> list[PlacedRow]:
        partitions = self._owned - self._leaving
        if not partitions:
            return []
        in_hand = list(self._in_hand)
        return await ask(
            self._database,
            lambda connection: table_log.take(connection, self._member, partitions, in_hand, most, TAKEN_BYTES),
        )

    async def _own(self) -> None:
        """Say that this member is there, and see which partitions it has."""
        self._bell.freed = False
        now = await write(self._database, self._join, repeatable=True)
        self._displaced = now is None
        if now is None:
            self._lose(self._owned)
            raise namesake("the queue postgres:default", self._member)
        self._has_come = True
        self._due = asyncio.get_running_loop().time() + OWN_EVERY
        owned = frozenset(now.partitions)
        gone, self._owned = self._owned - owned, owned
        surplus = max(len(owned) - now.share, 0)
        self._leaving = frozenset(sorted(owned, reverse=True)[:surplus])
        self._lose(gone)

    async def _join(self, connection: Connection) -> Owned | None:
        ttl_ms, comes = round(TTL * 1000), not self._has_come
        busy = {partition for partition, _ in self._in_hand}
        if not await table_log.join(connection, self._member, self._process, ttl_ms, comes=comes):
            return None
        return await table_log.own(connection, self._member, ttl_ms, busy)

    def _lose(self, gone: frozenset[int]) -> None:
        self._owned -= gone
        if gone:
            self._in_hand = {place for place in self._in_hand if place[0] not in gone}
            self._lost(gone)

    async def done(self, received: Sequence[Received]) -> None:
        places = [
            place
            for place in ((each.position.partition, each.position.offset) for each in received)
            if place in self._in_hand
        ]
        if not places:
            return
        await write(self._database, lambda connection: table_log.done(connection, places), repeatable=True)
        self._forget(places)

    def _forget(self, places: Iterable[tuple[int, int]]) -> None:
        self._in_hand.difference_update(places)
        if self._leaving and not self._leaving & {partition for partition, _ in self._in_hand}:
            self._due = 0.0  # others wait for them

    async def close(self) -> None:
        """Leave, so that others have the partitions at once; where PostgreSQL cannot be reached, after TTL seconds."""
        self._waking.leave(self._bell)
        try:
            if self._displaced:
                return
            leave = partial(table_log.leave, member=self._member)
            await write(self._database, leave, repeatable=True)
        except LogError:
            pass
        finally:
            self._owned = frozenset()
            self._in_hand.clear()


def received(placed: PlacedRow) -> Received:
    """Make the message of a row."""
    row = placed.row
    return Received(Position(row.partition, placed.offset), Message(row.key, row.value, row.headers), placed.at)
