"""Queues in PostgreSQL: what is recorded of messages, and the log that is a table."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, get_args

import asyncpg

from fencepost.server.fence.token import GENERATION_BITS
from fencepost.server.postgres.connection import Connection
from fencepost.server.postgres.database import Database
from fencepost.server.postgres.database_identity import Known
from fencepost.server.postgres.errors import StorageError
from fencepost.server.postgres.keyed import Recorded
from fencepost.server.times import TIMES, Times

# How large dead letters may become: beyond that no more writes are queued, until an operator retries or drops some.
#
# What was acknowledged is not thrown away for that: each write that fails is a dead letter, body and all, so that it
# can be mended and retried. It is the next write that is refused, before it is acknowledged. The letters of a queue
# may have `most` bytes, those of one caller a quarter of that: who makes letters is stopped before others are.
#
# Letters are counted in the database, for all kinds of logs (fencepost.queue_letters). What waits in the queue when
# the bound is reached becomes letters all the same where it fails, and so does what is appended without a gateway.

MOST_LETTER_BYTES: Final = 1 << 30
_SHARE: Final = 4
"""A caller has the fourth part."""


class LetterBound:
    """What is known at this gateway."""

    def __init__(self, most: int = MOST_LETTER_BYTES, times: Times = TIMES) -> None:
        self._most, self._within = most, times.requests.submit_within
        self._known = Known[tuple[str, str], tuple[int, int] | None](times.requests.letters_known_for, times.clock)

    async def why_full(self, database: Database, queue: str, whose: str) -> str | None:
        """Say why no write of a caller (`whose` of gateway/results.py) is queued; None: it may be. Where PostgreSQL
        cannot be asked what it last said counts, and before that nothing.
        """
        key = (queue, whose)

        async def ask() -> tuple[int, int] | None:
            try:
                async with asyncio.timeout(self._within), database.connection() as connection:
                    row = await connection.fetchrow("SELECT * FROM fencepost.queue_letters_of($1, $2)", queue, whose)
            except (StorageError, TimeoutError):
                return self._known.last(key)
            return None if row is None else (row["of_all"], row["of_caller"])

        of_all, of_caller = await self._known.get(key, ask) or (0, 0)
        if of_caller >= self._most // _SHARE:
            return f"those of this caller have {of_caller} bytes, of {self._most // _SHARE} that one caller's may have"
        if of_all >= self._most:
            return f"they have {of_all} bytes, of {self._most} that they may have"
        return None


# What writes of queues came to: records of fencepost.idempotency under the caller `queue` (R16). A write that had an
# effect is recorded in its transaction (postgres/keyed.py); here is what is read, and what came to nothing.

State = Literal["applied", "refused", "failed"]
"""applied: as a synchronous write that succeeded. refused: the fence refused the token that the client gave. failed:
everything else that does not pass by waiting; the message is a dead letter.
"""
STATES: Final[tuple[State, ...]] = get_args(State)
IN_HAND: Final = "in hand"
"""What became of a dead letter: a retry of it has begun, and it is there still."""
DROPPED: Final = "dropped"
RETRIED_AS: Final = "retried as "
"""Before the id of the write that it was appended as."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a write came to, and when that was recorded. `id`: under which; another one, where its message is in the log
    twice. `letter`: IN_HAND, DROPPED or RETRIED_AS with an id; None: its dead letter, if it has one, is there or will
    be. `owner` (`whose` of gateway/results.py): its caller, proven; `claimed`: the one that its message names, where
    that was not proven, or not looked at; both empty where it has no role.
    """

    id: str
    came_to: Recorded
    at: datetime
    state: State
    letter: str | None
    owner: str
    claimed: str


_RESULTS: Final = """
SELECT id, recorded_id, outcome, rows, created_at, state, letter, owner, claimed
  FROM fencepost.queue_results($1, $2)"""


async def result_of_message(connection: Connection, write_id: str, content: bytes) -> Result | None:
    """Find what a message came to, or a copy of it (queues/message.py); None: there is no record of it. On a
    connection for writing: a record that is found is first made as safe as a commit is.
    """
    row = await connection.fetchrow(_RESULTS, [write_id], content)
    return None if row is None else _read(row)


async def results(connection: Connection, write_ids: Sequence[str]) -> dict[str, Result]:
    """Find what these came to, those that are recorded; on a connection for writing, as `result_of_message`. An id
    without its last part stands for the write at its position that was recorded last.
    """
    rows = await connection.fetch(_RESULTS, list(write_ids), None)
    return {row["id"]: _read(row) for row in rows}


def _read(row: asyncpg.Record) -> Result:
    owner, claimed = row["owner"] or "", row["claimed"] or ""
    came_to = Recorded(row["outcome"], row["rows"])
    return Result(row["recorded_id"], came_to, row["created_at"], row["state"], row["letter"], owner, claimed)


async def record(
    connection: Connection,
    write_id: str,
    content: bytes,
    state: State,
    came_to: Recorded,
    owner_claimed: tuple[str, str] = ("", ""),
    letter: tuple[str, int | None] = ("", None),
) -> bool:
    """Record what a write came to that had no effect. False: what it came to is recorded already, and stays.
    `owner_claimed`: see Result. `letter`: the queue, and how many bytes the dead letter has that it becomes; None: it
    becomes none.
    """
    owner, claimed = owner_claimed
    recorded: bool = await connection.fetchval(
        "SELECT fencepost.queue_record($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        *(write_id, content, came_to.outcome, came_to.rows, state, owner or None, claimed or None),
        *letter,
    )
    return recorded


async def close_letter(connection: Connection, write_id: str, letter: str) -> bool:
    """Note what becomes of the dead letter of a write (Result.letter); whether there is a record of the write."""
    noted: bool = await connection.fetchval("SELECT fencepost.queue_close($1, $2)", write_id, letter)
    return noted


async def claim(connection: Connection, write_id: str, content: bytes) -> bool:
    """Let the record of a write be that of all messages of its nonce that say this; False: there is another one."""
    claimed: bool = await connection.fetchval("SELECT fencepost.queue_claim($1, $2)", write_id, content)
    return claimed


# Resources of which no more writes of a queue are applied, since one of them is a dead letter (--stop-resources).


@dataclass(frozen=True, slots=True)
class Stopped:
    """A resource, and the write for which it was stopped."""

    resource: str
    write_id: str
    at: datetime


async def stop_resource(connection: Connection, name: str, resource: str, write_id: str) -> str:
    """Stop a resource of the queue; returns the write for which it is stopped: an earlier one, if it was already."""
    because_of: str = await connection.fetchval("SELECT fencepost.queue_stop($1, $2, $3)", name, resource, write_id)
    return because_of


async def clear_resource(connection: Connection, name: str, resource: str, write_id: str) -> bool:
    """Let its writes be applied again, if it is this write that stopped it; whether it was."""
    cleared: bool = await connection.fetchval("SELECT fencepost.queue_clear($1, $2, $3)", name, resource, write_id)
    return cleared


async def stopped(connection: Connection, name: str) -> list[Stopped]:
    """List the resources of the queue that are stopped."""
    rows = await connection.fetch("SELECT resource, write_id, at FROM fencepost.queue_stopped_by($1)", name)
    return [Stopped(row["resource"], row["write_id"], row["at"]) for row in rows]


# Queues: how far each got, and how far its writes are decided (queues.sql). Offsets are those of the log; times are
# seconds.

_PAUSE_HOLDS: Final = 30.0
"""Seconds after which a consumer that said once a second that it is paused, and does no more, is gone."""


@dataclass(frozen=True, slots=True)
class RecordedLog:
    """What was recorded of a log when it was read: to be given to `check` after the log was asked anew."""

    generation: int
    ends: tuple[int, ...]
    leader_epochs: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class LogCheck:
    """What a check came to. `stopped`: the resources of which no write is applied.

    ok: what was taken before the log was asked may be written, under tokens of `generation`. again: ask the log anew,
    and check with `recorded`. raised: the generation is not the one that the caller knew; what it took is void.
    quarantined: nothing may be written, `because` says why.
    """

    verdict: Literal["ok", "again", "raised", "quarantined"]
    generation: int
    because: str | None
    stopped: frozenset[str]
    recorded: RecordedLog

    def token(self, offset: int) -> int:
        """Make the token of an offset (R12)."""
        return (self.generation << GENERATION_BITS) + offset + 1


@dataclass(frozen=True, slots=True)
class Blocked:
    """A message that is tried in vain for so many seconds, while those of other resources go on."""

    resource: str
    because: str
    seconds: float

    def describe(self) -> str:
        return f"{self.resource} waits for {self.seconds:.0f} s: {self.because}"


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """How far a consumer is in one partition. `decided`: the offset below which all is decided, as far as it has taken
    the partition. `oldest`: when the oldest message that is not decided was appended, in seconds since the epoch; None:
    there is none, or it is not known. `blocked`: the message that is tried in vain for longest. The counts are those
    since it was noted last.
    """

    partition: int
    decided: int
    oldest: float | None
    applied: int = 0
    refused: int = 0
    failed: int = 0
    redelivered: int = 0
    blocked: Blocked | None = None


@dataclass(frozen=True, slots=True)
class KnownPartition:
    """A partition, as its consumers noted it. `oldest_s`: the age of the oldest message that is not decided.
    `noted_s`: how long ago a consumer noted it. `end`, `decided`: None where it is not known.
    """

    partition: int
    end: int | None
    decided: int | None
    oldest_s: float | None
    applied: int
    refused: int
    failed: int
    redelivered: int
    noted_s: float | None
    blocked: Blocked | None = None

    @property
    def lag(self) -> int | None:
        """How many offsets are not decided; None where that is not known."""
        if self.end is None or self.decided is None:
            return None
        return max(self.end - self.decided, 0)


@dataclass(frozen=True, slots=True)
class KnownQueue:
    """A queue that was ever registered. `quarantined`: why nothing of it is applied. `paused`: a consumer that decides
    or takes nothing, and why, as it has just noted. `stopped`: how many resources are.
    """

    name: str
    kind: str
    generation: int
    quarantined: str | None
    paused: str | None
    incarnation: str | None
    stopped: int
    partitions: tuple[KnownPartition, ...]

    @property
    def blocked(self) -> list[Blocked]:
        """The messages that are tried in vain, one a partition at most, the longest first."""
        found = [each.blocked for each in self.partitions if each.blocked is not None]
        return sorted(found, key=lambda each: -each.seconds)


def is_queue(source: str) -> bool:
    """Whether a source of tokens is a queue: names of other sources have no colon."""
    return ":" in source


async def register(connection: Connection, name: str) -> None:
    """Record that this queue is configured here, and make its source of tokens. `name`: KIND:NAME. RefusedError, or
    asyncpg's FP400, where it is no name of a queue.
    """
    await connection.execute("SELECT fencepost.queue_register($1, $2)", name, name.partition(":")[0])


async def check(
    connection: Connection,
    name: str,
    incarnation: str,
    ends: Sequence[int],
    leader_epochs: Sequence[int | None],
    *,
    generation: int | None = None,
    before: RecordedLog | None = None,
) -> LogCheck:
    """Compare what the log is now with what was recorded, and record how far it got (R12).

    `generation`: that of the check before what is to be written was taken; None: nothing was taken yet. `before`: what
    the verdict `again` gave, after which the log was asked anew.
    """
    row = await connection.fetchrow(
        "SELECT verdict, generation, because, stopped, recorded, recorded_epochs"
        " FROM fencepost.queue_check($1, $2, $3, $4, $5, $6, $7)",
        name,
        incarnation,
        list(ends),
        list(leader_epochs),
        before.generation if before is not None and generation is None else generation,
        None if before is None else list(before.ends),
        None if before is None else list(before.leader_epochs),
    )
    if row is None:
        raise RuntimeError("fencepost.queue_check gave no row")
    recorded = RecordedLog(
        row["generation"],
        tuple(row["recorded"] or ()),
        tuple(row["recorded_epochs"] or ()),
    )
    return LogCheck(row["verdict"], row["generation"], row["because"], frozenset(row["stopped"] or ()), recorded)


async def quarantine(connection: Connection, name: str, because: str, generation: int | None) -> None:
    """Apply nothing of the queue until its generation is raised: its log says by itself that it lost messages. Nothing
    is done if it was raised above `generation`; None: whichever it is.
    """
    await connection.execute("SELECT fencepost.queue_quarantine($1, $2, $3)", name, because, generation)


async def note(connection: Connection, name: str, generation: int, progress: Sequence[PartitionProgress]) -> None:
    """Record how far a consumer is: once a second at most."""
    await connection.execute(
        "SELECT fencepost.queue_note_progress($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
        name,
        generation,
        [each.partition for each in progress],
        [each.decided for each in progress],
        [each.oldest for each in progress],
        [each.applied for each in progress],
        [each.refused for each in progress],
        [each.failed for each in progress],
        [each.redelivered for each in progress],
        [each.blocked.resource if each.blocked else None for each in progress],
        [each.blocked.because if each.blocked else None for each in progress],
        [each.blocked.seconds if each.blocked else None for each in progress],
    )


async def note_pause(connection: Connection, name: str, member: str, because: str | None) -> None:
    """Record that a consumer decides or takes nothing, and why: once a second. None: it goes on."""
    await connection.execute("SELECT fencepost.queue_note_pause($1, $2, $3)", name, member, because)


async def note_committed(connection: Connection, name: str, generation: int, offsets: Sequence[int]) -> None:
    """Record what the log has said: by partition, the offset below which it gives no message again."""
    await connection.execute("SELECT fencepost.queue_committed($1, $2, $3)", name, generation, list(offsets))


async def is_committed(connection: Connection, name: str, generation: int, partition: int, offset: int) -> bool:
    """Whether the log was said to give the message at this offset no more, in this generation."""
    committed: bool = await connection.fetchval(
        "SELECT fencepost.queue_is_committed($1, $2, $3, $4)", name, generation, partition, offset
    )
    return committed


async def note_look(
    connection: Connection,
    name: str,
    generation: int,
    at: float,
    decided: Sequence[int],
    state: tuple[str, Sequence[int]],
) -> None:
    """Record what the log has said after the clock (`now`) was `at`: by partition, the offset below which all is
    decided, and then its incarnation and where it ends.
    """
    incarnation, ends = state
    await connection.execute(
        "SELECT fencepost.queue_looked($1, $2, $3, $4, $5, $6)",
        *(name, generation, incarnation, at, list(decided), list(ends)),
    )


async def applied_to(connection: Connection, name: str) -> float | None:
    """Read before when all that came into the log is decided, in seconds since the epoch; None: not known."""
    seconds: float | None = await connection.fetchval("SELECT fencepost.queue_applied_to($1)", name)
    return seconds


async def forgotten_to(connection: Connection, name: str) -> float | None:
    """Read when the newest record of a caller's message was made that was forgotten; None: none was."""
    seconds: float | None = await connection.fetchval("SELECT fencepost.queue_forgotten_to($1)", name)
    return seconds


async def known(connection: Connection) -> list[KnownQueue]:
    """List the queues that were ever registered, by name, with what consumers have noted."""
    found: dict[str, asyncpg.Record] = {}
    partitions: dict[str, list[KnownPartition]] = {}
    for row in await connection.fetch("SELECT * FROM fencepost.queue_known()"):
        name = row["source"]
        found[name] = row
        of_queue = partitions.setdefault(name, [])
        if row["partition"] is not None:
            of_queue.append(
                KnownPartition(
                    row["partition"],
                    row["end_offset"],
                    row["decided"],
                    row["oldest_s"],
                    row["applied"],
                    row["refused"],
                    row["failed"],
                    row["redelivered"],
                    row["noted_s"],
                    _blocked(row),
                )
            )
    return [
        KnownQueue(
            name,
            row["kind"],
            row["generation"],
            row["quarantined"],
            _paused(row),
            row["incarnation"],
            row["stopped"],
            tuple(partitions[name]),
        )
        for name, row in found.items()
    ]


async def now(connection: Connection) -> float:
    """Read the database's clock, in seconds since the epoch."""
    seconds: float = await connection.fetchval("SELECT extract(epoch FROM clock_timestamp())::double precision")
    return seconds


def _paused(row: asyncpg.Record) -> str | None:
    if row["paused_because"] is None or row["paused_s"] > _PAUSE_HOLDS:
        return None
    return f"{row['paused_member']}: {row['paused_because']}"


def _blocked(row: asyncpg.Record) -> Blocked | None:
    if row["blocked_resource"] is None:
        return None
    return Blocked(row["blocked_resource"], row["blocked_because"] or "", row["blocked_s"] or 0.0)


# The log that is a table: fencepost.queued (queued.sql), one statement a verb. It has PARTITIONS partitions.

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
