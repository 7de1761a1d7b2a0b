"""Idempotency keys in the database (R16): look one up, record what was answered, forget.

See migrations/schema/idempotency.sql.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import asyncpg

from fencepost.server.postgres.connections.connection import Connection

CALLER: Final = ""
"""Whose keys those of requests are whose caller has no role (decision 0040)."""
OF_QUEUES: Final = "queue"
"""Whose keys the ids of writes are that come through a queue (queues/message.py)."""
ROWS_PER_STEP: Final = 10_000
"""How many records are forgotten in one transaction."""


# What is made for each write is not frozen: that would cost more than the rest of its making.
@dataclass(slots=True)
class Recorded:
    """An answer as it was given: status, headers as (name, value), body."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


Record = tuple[str, str, bytes, Recorded]
"""Whose key, the key, the hash of its payload, and what was answered."""

_RECORD: Final = "SELECT fencepost.gateway_idem_record($1, $2, $3, $4, $5, $6)"

State = Literal["new", "in flight", "reused"]


async def begin(connection: Connection, caller: str, key: str, payload_hash: bytes) -> Recorded | State:
    """Begin an idempotent write, first in its transaction: what was answered before, or whether it may go on.

    `new` holds the key until the transaction ends; `in flight`: another transaction does; `reused`: for another
    payload.
    """
    row = await connection.fetchrow(
        "SELECT state, status, headers, answer FROM fencepost.gateway_idem_begin($1, $2, $3)", caller, key, payload_hash
    )
    if row is None:
        raise RuntimeError("fencepost.idem_begin gave no row")
    return read_state(row)


def read_state(row: asyncpg.Record) -> Recorded | State:
    """Read a row of state, status, headers and answer."""
    state: State | Literal["replay"] = row["state"]
    if state != "replay":
        return state
    headers = row["headers"]
    return Recorded(row["status"], tuple(zip(headers[::2], headers[1::2], strict=True)), row["answer"])


async def record(connection: Connection, caller: str, key: str, payload_hash: bytes, answer: Recorded) -> None:
    """Record the answer, last in the write's transaction."""
    headers = [part for pair in answer.headers for part in pair]
    await connection.execute(
        _RECORD,
        caller,
        key,
        payload_hash,
        answer.status,
        headers,
        answer.body,
    )


async def record_many(connection: Connection, records: Sequence[Record]) -> None:
    """Record several answers, last in their transaction."""
    answers = [answer for _, _, _, answer in records]
    await connection.execute(
        "SELECT fencepost.gateway_idem_record_each($1, $2, $3, $4, $5, $6)",
        [caller for caller, _, _, _ in records],
        [key for _, key, _, _ in records],
        [payload_hash for _, _, payload_hash, _ in records],
        [answer.status for answer in answers],
        # No header has a line break in it.
        ["\n".join([part for pair in answer.headers for part in pair]) for answer in answers],
        [answer.body for answer in answers],
    )


async def prune(connection: Connection, keep_seconds: float) -> int:
    """Forget records older than that, one batch; returns how many."""
    pruned: int = await connection.fetchval("SELECT fencepost.prune_idempotency($1, $2)", keep_seconds, ROWS_PER_STEP)
    return pruned
