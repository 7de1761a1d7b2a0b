"""The log of the queue postgres:default."""

import asyncio
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

import asyncpg

from fencepost.server.postgres import connection as session
from fencepost.server.postgres import queues
from fencepost.server.postgres.connection import Connection
from fencepost.server.postgres.database import Database, run_write
from fencepost.server.postgres.errors import OutcomeUnknownError, RefusedError, SessionError, StorageError
from fencepost.server.postgres.queues import CHANNEL, LEFT, PARTITIONS, BuriedRow, MessageRow, Owned, PlacedRow
from fencepost.server.queues.log import (
    TAKEN_BYTES,
    DeadLetter,
    LogError,
    LogState,
    LogUnavailableError,
    LogUnknownError,
    Message,
    Position,
    Received,
    namesake,
    partition_of,
)

T = TypeVar("T")

ANSWERS_WITHIN: Final = 10.0
"""Seconds within which PostgreSQL answers, or counts as unavailable: it may be paused, and keep its connections."""

# What PostgreSQL refuses because of what it was given: class 22, and 54, what is too large for a row.
_OF_THE_MESSAGE: Final = ("22", "54")


async def ask(database: Database, question: Callable[[Connection], Awaitable[T]]) -> T:
    """Ask what changes nothing. Raises a log's errors."""
    with _map_storage_errors():
        async with database.connection() as connection, asyncio.timeout(ANSWERS_WITHIN):
            return await question(connection)


async def write(database: Database, work: Callable[[Connection], Awaitable[T]], *, repeatable: bool = False) -> T:
    """Write, as a transaction; LogUnknownError: it may have been done, unless it is `repeatable`. Raises a log's
    errors.
    """

    async def in_time(connection: Connection) -> T:
        async with asyncio.timeout(ANSWERS_WITHIN):
            return await work(connection)

    with _map_storage_errors():
        return await run_write(database.for_writing, in_time, repeatable=repeatable)


@contextmanager
def _map_storage_errors() -> Iterator[None]:
    try:
        yield
    except OutcomeUnknownError as error:
        raise LogUnknownError(str(error)) from error
    except RefusedError as error:
        if error.sqlstate.startswith(_OF_THE_MESSAGE):
            raise LogError(f"PostgreSQL does not take this message: {error}") from error
        raise LogUnavailableError(f"PostgreSQL refused: {error}") from error
    except StorageError as error:
        raise LogUnavailableError(str(error)) from error


# Wakes the consumers of a process when a message was appended, or a partition became free: LISTEN, on a connection of
# its own. Nothing is lost where that is gone: consumers look once a second.

PAUSE: Final = 1.0
"""Seconds until the next try to connect."""


class Bell:
    """What one consumer waits for. `freed`: a partition may have become free."""

    def __init__(self) -> None:
        self.rung = asyncio.Event()
        self.freed = False

    async def wait(self, seconds: float) -> None:
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


MOST_MESSAGES: Final = 256
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
    """Appends messages of many callers in one transaction: what comes while one is under way goes into the next one.
    Messages of one caller that waits for each are in its order.
    """

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
        while self._waiting and len(batch) < MOST_MESSAGES and size + self._waiting[0].size <= MOST_BYTES:
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
        offsets = await write(self._database, lambda connection: queues.append(connection, rows))
        with suppress(LogError):  # whether or not this reaches consumers, they look once a second
            await ask(self._database, queues.notify)
        return offsets


class PostgresDeadLetters:
    """DeadLetters (queues/log.py) over the database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, letter: DeadLetter) -> None:
        """Add one; nothing where one of this id is there."""
        message = letter.message
        row = MessageRow(letter.position.partition, message.key, message.headers, message.value)
        buried = BuriedRow(letter.id, letter.reason, letter.position.offset, row, letter.at)
        await write(self._database, lambda connection: queues.bury(connection, buried))

    async def list(self, most: int) -> Sequence[DeadLetter]:
        return [_letter(row) for row in await self._buried(most, None)]

    async def get(self, letter_id: str) -> DeadLetter | None:
        rows = await self._buried(1, letter_id)
        return _letter(rows[0]) if rows else None

    async def _buried(self, most: int, letter_id: str | None) -> Sequence[BuriedRow]:
        return await ask(self._database, lambda connection: queues.buried(connection, most, letter_id))

    async def drop(self, letter_id: str) -> bool:
        return await write(self._database, lambda connection: queues.exhume(connection, letter_id))

    async def count(self) -> dict[int, int]:
        return await ask(self._database, queues.count_dead)


def _letter(buried: BuriedRow) -> DeadLetter:
    row = buried.row
    position = Position(row.partition, buried.offset)
    return DeadLetter(buried.id, buried.reason, position, Message(row.key, row.value, row.headers), buried.at)


# One member of those who take from the queue postgres:default.
#
# 1. It says that it is there every OWN_EVERY seconds, and has its share of the partitions then: queue_own gives it free
#    ones, and takes from it those above its share in which it has nothing in hand. In surplus partitions that it has
#    something of, it takes nothing more.
# 2. One that did not say so for TTL seconds may have lost them. It sees that when it says so next; what it had of them
#    comes to their new owner, and the fence decides whose write lands.
# 3. Another process that comes under its name takes what it has. Then it takes nothing, and says so, until the other is
#    gone.
# 4. A partition is read from its beginning, leaving out what is in hand: offsets of different resources may be
#    committed in any order.

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
            lambda connection: queues.take(connection, self._member, partitions, in_hand, most, TAKEN_BYTES),
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
        if not await queues.join(connection, self._member, self._process, ttl_ms, comes=comes):
            return None
        return await queues.own(connection, self._member, ttl_ms, busy)

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
        await write(self._database, lambda connection: queues.done(connection, places), repeatable=True)
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
            leave = partial(queues.leave, member=self._member)
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


class PostgresLog:
    """Log (queues/log.py) over the database. `dsn`: for the connection on which it listens."""

    def __init__(self, database: Database, dsn: str, partitions: int = PARTITIONS) -> None:
        self._database = database
        self._partitions = partitions
        self._appender = TableAppender(database)
        self._waking = Waking(dsn)
        self._dead = PostgresDeadLetters(database)

    @property
    def dead(self) -> PostgresDeadLetters:
        return self._dead

    async def open(self) -> None:
        """Nothing to do: the database is open."""

    async def close(self) -> None:
        """Wait for appends under way, and listen no more. The database stays open: others use it."""
        await self._appender.close()
        await self._waking.close()

    async def append(self, message: Message) -> Position:
        partition = partition_of(message.key, self._partitions)
        offset = await self._appender.append(MessageRow(partition, message.key, message.headers, message.value))
        self._waking.ring()
        return Position(partition, offset)

    async def state(self) -> LogState:
        incarnation, ends = await self._ask(queues.state)
        return LogState(incarnation, ends, (None,) * len(ends))

    async def decided(self) -> Sequence[int]:
        return await self._ask(queues.decided)

    async def oldest(self) -> Sequence[float | None]:
        """Read when the first row of each partition was appended (Log.oldest)."""
        return await self._ask(queues.oldest)

    async def waiting(self, position: Position) -> Sequence[Received]:
        rows = await self._ask(lambda connection: queues.at(connection, position.partition, position.offset))
        return [received(row) for row in rows]

    async def _ask(self, question: Callable[[Connection], Awaitable[T]]) -> T:
        """Ask twice where the first answer does not come: a connection that a restart of PostgreSQL has ended shows
        that when it is used.
        """
        try:
            return await ask(self._database, question)
        except LogUnavailableError:
            return await ask(self._database, question)

    def consumer(self, member: str, lost: Callable[[frozenset[int]], None]) -> PostgresConsumer:
        return PostgresConsumer(self._database, self._waking, member, lost)

    async def advice(self) -> list[str]:
        fsync = await ask(self._database, lambda c: c.fetchval("SELECT pg_catalog.current_setting('fsync')"))
        return (
            [] if fsync == "on" else ["fsync is off: after a crash of its machine, PostgreSQL may have lost messages"]
        )
