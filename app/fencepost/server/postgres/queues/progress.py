"""Queues: how far each got, and how far its writes are decided (queues.sql). Offsets are those of the log; times are
seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import asyncpg

from fencepost.server.fence.token import GENERATION_BITS
from fencepost.server.postgres.connections.connection import Connection

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
