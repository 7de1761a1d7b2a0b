"""The log of the queue postgres:default."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from fencepost.server.postgres.connections.connection import Connection
from fencepost.server.postgres.connections.engine import Database
from fencepost.server.postgres.queues import table_log
from fencepost.server.postgres.queues.table_log import PARTITIONS, MessageRow
from fencepost.server.queues.log import LogState, LogUnavailableError, Message, Position, Received
from fencepost.server.queues.partitioner import partition_of
from fencepost.server.queues.postgres.appending import TableAppender
from fencepost.server.queues.postgres.consumer import PostgresConsumer, received
from fencepost.server.queues.postgres.dead_letters import PostgresDeadLetters
from fencepost.server.queues.postgres.errors import ask
from fencepost.server.queues.postgres.waking import Waking

T = TypeVar("T")


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
        """Read the sequences of the partitions (Log.state)."""
        incarnation, ends = await self._ask(table_log.state)
        return LogState(incarnation, ends, (None,) * len(ends))

    async def decided(self) -> Sequence[int]:
        """Read what is left of each partition (Log.decided)."""
        return await self._ask(table_log.decided)

    async def oldest(self) -> Sequence[float | None]:
        """Read when the first row of each partition was appended (Log.oldest)."""
        return await self._ask(table_log.oldest)

    async def waiting(self, position: Position) -> Sequence[Received]:
        rows = await self._ask(lambda connection: table_log.at(connection, position.partition, position.offset))
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
        """Name settings under which an acknowledged message may be lost (Log.advice)."""
        fsync = await ask(self._database, lambda c: c.fetchval("SELECT pg_catalog.current_setting('fsync')"))
        return (
            [] if fsync == "on" else ["fsync is off: after a crash of its machine, PostgreSQL may have lost messages"]
        )
