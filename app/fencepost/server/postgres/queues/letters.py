"""How large dead letters may become: beyond that no more writes are queued, until an operator retries or drops some.

What was acknowledged is not thrown away for that: each write that fails is a dead letter, body and all, so that it can
be mended and retried. It is the next write that is refused, before it is acknowledged. The letters of a queue may have
`most` bytes, those of one caller a quarter of that: who makes letters is stopped before others are.

Letters are counted in the database, for all kinds of logs (fencepost.queue_letters). What waits in the queue when the
bound is reached becomes letters all the same where it fails, and so does what is appended without a gateway.
"""

import asyncio
from typing import Final

from fencepost.server.postgres.connections.engine import Database
from fencepost.server.postgres.connections.known import Known
from fencepost.server.postgres.errors import StorageError
from fencepost.server.times import TIMES, Times

MOST: Final = 1 << 30
_SHARE: Final = 4
"""A caller has the fourth part."""


class LetterBound:
    """What is known at this gateway."""

    def __init__(self, most: int = MOST, times: Times = TIMES) -> None:
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
