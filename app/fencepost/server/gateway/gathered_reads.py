"""Reads of one row by its key that come at the same time share a statement, as writes do (postgres/batches).

An idle gateway sends a read at once. While a statement is under way, reads of the same columns gather, and are the
next one. That is sent after they came, so each sees all that was committed before it was asked. What could keep others
waiting, or fail for all of them, goes alone: tables with partitions (a statement locks all of them), views, row
security, casts, code of users', large rows, keys that may be none.

A statement takes a connection as one of those whom it is for, who has one left: else a caller whose reads are slow
would take those of all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from fencepost.server.fence.caller import Caller
from fencepost.server.gateway.shares import Reads
from fencepost.server.postgres.connection import Connection
from fencepost.server.postgres.database import Database
from fencepost.server.postgres.errors import UnavailableError
from fencepost.server.postgres.group_commit import ALONE, Alone, BatchQueue, GroupCommit, RoleQueues
from fencepost.server.postgres.keyed import FencedRow
from fencepost.server.postgres.query import Select
from fencepost.server.postgres.reading import keyed_reads, shown
from fencepost.server.postgres.row_sql import Key
from fencepost.server.postgres.tables import ProtectedTable, Table, is_canonical
from fencepost.server.quota import UNKNOWN
from fencepost.server.times import TIMES, Times

MOST: Final = 64
"""Reads in a statement."""


ReadQueue = BatchQueue[Key, FencedRow | None]


def _order(key: Key) -> Key:
    return key


def _size(key: Key) -> int:
    return sum(map(len, key))


@dataclass(frozen=True, slots=True)
class ReadLanes:
    """The queues of reads that show the same columns of a table."""

    table: Table
    own_types: bool
    """Whether they show a type of the user's, or an extension's: it may have a cast to JSON that looks at who calls."""
    queues: RoleQueues[Key, FencedRow | None]

    def of(self, caller: Caller, key: Key) -> ReadQueue | None:
        """Find the queue of a caller's reads; None: this one goes alone."""
        if self.own_types and caller.role is not None:
            return None
        if not is_canonical(self.table, key) or any("\0" in text for text in key):
            return None
        return self.queues.of(caller)


def read_lanes(table: Table, select: Select, most_answer_bytes: int) -> ReadLanes | None:
    """Make the queues of such reads; None: they go alone. `most_answer_bytes`: what the answer to one may have."""
    columns = shown(table, select)
    # A protected table has a key, and takes no part in inheritance.
    if columns is None or not isinstance(table, ProtectedTable) or table.kind != "table":
        return None
    if table.row_security or table.reads_run_code:
        return None
    own_types = any("." in table.columns[name].base_type for name in columns)
    reads = keyed_reads(table, select, columns, most_answer_bytes)

    async def run(connection: Connection, batch: Sequence[Key]) -> "list[FencedRow | Alone | None]":
        return await reads.run(connection, batch)

    def make(lane: Caller) -> ReadQueue:
        return BatchQueue(run, _order, _size, most=MOST, caller=lane)

    return ReadLanes(table, own_types, RoleQueues(make))


class GatheredReads:
    """All of them, of a gateway process, on connections that are for reads."""

    def __init__(
        self,
        database: Database,
        reads: Reads,
        *,
        wait_at_most: float = 5.0,
        times: Times = TIMES,
    ) -> None:
        self._reads = reads
        self._group = GroupCommit(
            database,
            wait_at_most=wait_at_most,
            times=times,
            read_connection=lambda queue: reads.connection(
                database, queue.caller, self._whose_turn(queue), counted=True
            ),
        )

    def _whose_turn(self, queue: BatchQueue[Any, Any]) -> str:
        """Find who has a connection left, of those that wait first; if nobody has, whoever is first."""
        waiting = list(islice(queue.pending, MOST))
        return next((whose for whose in waiting if self._reads.has_room(whose)), waiting[0] if waiting else UNKNOWN)

    async def read(
        self, lanes: ReadLanes, caller: Caller, key: Key, whose: str = UNKNOWN
    ) -> "FencedRow | Alone | None":
        """Read a row; ALONE: it has to be read alone. `whose`: the place that it takes. Raises RefusedError,
        UnavailableError, RoleError.
        """
        queue = lanes.of(caller, key)
        if queue is None:
            return ALONE
        with self._reads.waiting.place(whose) as full:
            if full is not None:
                raise UnavailableError(f"no more reads may wait for a connection: there are {full}")
            answer = await self._group.write(queue, key, counted=False, whose=whose)
        return answer if answer is None or isinstance(answer, FencedRow) else ALONE

    async def close(self) -> None:
        await self._group.close()
