"""What writes of queues came to: records of fencepost.idempotency under the caller `queue` (R16). A write that had an
effect is recorded in its transaction (statements/idempotency.py); here is what is read, and what came to nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import asyncpg

from fencepost.server.postgres.connections.connection import Connection
from fencepost.server.postgres.statements.idempotency import Recorded


@dataclass(frozen=True, slots=True)
class Result:
    """What a write came to, and when that was recorded. `id`: under which; another one, where its message is in the log
    twice.
    """

    id: str
    answer: Recorded
    at: datetime


_RESULTS: Final = """
SELECT id, recorded_id, status, headers, answer, created_at FROM fencepost.queue_results($1, $2)"""


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
    headers = row["headers"]
    answer = Recorded(row["status"], tuple(zip(headers[::2], headers[1::2], strict=True)), row["answer"])
    return Result(row["recorded_id"], answer, row["created_at"])


@dataclass(frozen=True, slots=True)
class LetterSize:
    """How many bytes a dead letter has, of which queue and caller (`whose` of gateway/results.py)."""

    queue: str
    whose: str
    bytes: int


async def record(
    connection: Connection, write_id: str, content: bytes, answer: Recorded, letter: LetterSize | None = None
) -> bool:
    """Record that a write came to nothing, and which dead letter it becomes. False: what it came to is recorded
    already, and stays.
    """
    headers = [part for pair in answer.headers for part in pair]
    of_letter = (None, None, None) if letter is None else (letter.queue, letter.whose, letter.bytes)
    recorded: bool = await connection.fetchval(
        "SELECT fencepost.queue_record($1, $2, $3, $4, $5, $6, $7, $8)",
        *(write_id, content, answer.status, headers, answer.body, *of_letter),
    )
    return recorded


async def close_letter(connection: Connection, write_id: str, letter: str) -> bool:
    """Note what becomes of the dead letter of a write (gateway/results.py); whether there is a record of the write."""
    noted: bool = await connection.fetchval("SELECT fencepost.queue_close($1, $2)", write_id, letter)
    return noted


async def claim(connection: Connection, write_id: str, content: bytes) -> bool:
    """Let the record of a write be that of all messages of its nonce that say this; False: there is another one."""
    claimed: bool = await connection.fetchval("SELECT fencepost.queue_claim($1, $2)", write_id, content)
    return claimed
