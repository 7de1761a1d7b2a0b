"""The log that is a table: fencepost.queued (queued.sql), one statement a verb. It has PARTITIONS partitions."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import asyncpg

from fencepost.server.postgres.connections.connection import Connection

PARTITIONS: Final = 8
CHANNEL: Final = "fencepost_queue"
"""The channel of the notification that there is something to take."""
LEFT: Final = "left"
"""Its payload when a partition became free."""

Headers = tuple[tuple[str, bytes], ...]


# What is made for each message is not frozen: that would cost more than the rest of its making.
@dataclass(slots=True)
class MessageRow:
    """A message, in the partition of its key."""

    partition: int
    key: bytes
    headers: Headers
    value: bytes | None


@dataclass(slots=True)
class PlacedRow:
    """A message that was appended. `at`: when, in seconds since the epoch."""

    offset: int
    row: MessageRow
    at: float


@dataclass(frozen=True, slots=True)
class BuriedRow:
    """A dead letter. `at`: when it became one, in seconds since the epoch."""

    id: str
    reason: str
    offset: int
    row: MessageRow
    at: float


@dataclass(frozen=True, slots=True)
class Owned:
    """Which partitions a member has, and how many are its share."""

    partitions: tuple[int, ...]
    share: int


async def append(connection: Connection, rows: Sequence[MessageRow]) -> list[int]:
    """Append messages, in this order; returns their offsets. Waits for other appends of the same keys to commit."""
    offsets: list[int] = await connection.fetchval(
        "SELECT fencepost.queue_append($1, $2, $3, $4, $5, $6)",
        [row.partition for row in rows],
        [row.key for row in rows],
        [name for row in rows for name, _ in row.headers],
        [value for row in rows for _, value in row.headers],
        [len(row.headers) for row in rows],
        [row.value for row in rows],
    )
    return offsets


async def notify(connection: Connection) -> None:
    """Notify consumers that there is something to take. In a transaction of its own: one that notifies keeps others
    that do from committing.
    """
    await connection.execute("SELECT pg_catalog.pg_notify($1, '')", CHANNEL)


async def state(connection: Connection) -> tuple[str, tuple[int, ...]]:
    """Return which log it is, and by partition the offset that the next message will have, or a lower one."""
    row = await connection.fetchrow("SELECT incarnation, ends FROM fencepost.queue_state()")
    if row is None:
        raise RuntimeError("fencepost.queue_state gave no row")
    return row["incarnation"], tuple(row["ends"])


async def decided(connection: Connection) -> list[int]:
    """Return, by partition, the offset below which all is decided."""
    found: list[int] = await connection.fetchval("SELECT fencepost.queue_decided()")
    return found


async def oldest(connection: Connection) -> list[float | None]:
    """Return, by partition, when the first message that is not decided was appended; None: there is none."""
    found: list[float | None] = await connection.fetchval("SELECT fencepost.queue_oldest()")
    return found


async def join(connection: Connection, member: str, process: str, ttl_ms: int, *, comes: bool) -> bool:
    """Say which process the member is; whether it is. `comes`: the process says so for the first time, and takes the
    name from another one.
    """
    is_it: bool = await connection.fetchval(
        "SELECT fencepost.queue_join($1, $2, $3, $4)", member, process, ttl_ms, comes
    )
    return is_it


async def at(connection: Connection, partition: int, offset: int) -> list[PlacedRow]:
    """Read the message at a position, if it is not decided."""
    rows = await connection.fetch("SELECT * FROM fencepost.queue_at($1, $2)", partition, offset)
    return [PlacedRow(row["position"], _row(row), row["at"]) for row in rows]


async def own(connection: Connection, member: str, ttl_ms: int, busy: Collection[int]) -> Owned:
    """Say that the member is there, for so long. It gives up partitions above its share that are not `busy`, or takes
    free ones.
    """
    row = await connection.fetchrow(
        "SELECT owned, share FROM fencepost.queue_own($1, $2, $3)", member, ttl_ms, list(busy)
    )
    if row is None:
        raise RuntimeError("fencepost.queue_own gave no row")
    return Owned(tuple(row["owned"]), row["share"])


async def take(
    connection: Connection, member: str, partitions: Collection[int], taken: Sequence[tuple[int, int]], most: int,
    most_bytes: int,
) -> list[PlacedRow]:  # fmt: skip
    """Read the oldest messages of those partitions that the member still has, but for `taken`: (partition, offset).
    None follows those that come to `most_bytes`.
    """
    rows = await connection.fetch(
        "SELECT * FROM fencepost.queue_take($1, $2, $3, $4, $5, $6)",
        member,
        list(partitions),
        [partition for partition, _ in taken],
        [offset for _, offset in taken],
        most,
        most_bytes,
    )
    return [PlacedRow(row["position"], _row(row), row["at"]) for row in rows]


async def done(connection: Connection, places: Sequence[tuple[int, int]]) -> int:
    """Delete exactly these, (partition, offset), which are decided; returns how many were there."""
    gone: int = await connection.fetchval(
        "SELECT fencepost.queue_done($1, $2)",
        [partition for partition, _ in places],
        [offset for _, offset in places],
    )
    return gone


async def leave(connection: Connection, member: str) -> None:
    """Give up all partitions of the member, and notify the other members."""
    await connection.execute("SELECT fencepost.queue_leave($1)", member)


async def bury(connection: Connection, letter: BuriedRow) -> None:
    """Add a dead letter; nothing where one of this id is there."""
    row = letter.row
    await connection.execute(
        "SELECT fencepost.queue_bury($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        letter.id,
        letter.reason,
        row.partition,
        letter.offset,
        row.key,
        [name for name, _ in row.headers],
        [value for _, value in row.headers],
        row.value,
        letter.at,
    )


async def buried(connection: Connection, most: int, letter_id: str | None = None) -> list[BuriedRow]:
    """List the oldest dead letters, or find the one with this id."""
    rows = await connection.fetch("SELECT * FROM fencepost.queue_buried($1, $2)", letter_id, most)
    return [BuriedRow(row["id"], row["reason"], row["position"], _row(row), row["at"]) for row in rows]


async def exhume(connection: Connection, letter_id: str) -> bool:
    """Remove a dead letter; whether it was there."""
    there: bool = await connection.fetchval("SELECT fencepost.queue_exhume($1)", letter_id)
    return there


async def count_dead(connection: Connection) -> dict[int, int]:
    """Count dead letters by partition."""
    rows = await connection.fetch("SELECT partition, letters FROM fencepost.queue_dead_count()")
    return {row["partition"]: row["letters"] for row in rows}


def _row(row: asyncpg.Record) -> MessageRow:
    headers = tuple(zip(row["header_names"], row["header_values"], strict=True))
    return MessageRow(row["partition"], row["key"], headers, row["value"])
