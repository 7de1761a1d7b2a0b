"""Forgetting marks of keys without a row, a while after no token can need them any more (R6).

A mark may go when its table's floor takes its place, and the floor may rise as far as no live lease reaches down:

1. a pass asks for the horizon: the newest token, and a transaction number from after it was read;
2. a later pass sees that all transactions before that number have ended. So a session that drew a token up to the
   horizon has a lease that can be seen, or none;
3. cap = the horizon, or just below the oldest token of the leases that live;
4. marks up to the cap that have not changed for the time that is set go, the floor rising with them.

What is kept between passes is the horizon, in memory: a gateway that restarts begins at 1. The functions are in
migrations/schema/pruning.sql, and safe in whatever order and however often they are called.
"""

from dataclasses import dataclass
from typing import Final

from fencepost.server.postgres.connections.connection import Connection
from fencepost.server.postgres.connections.engine import Database
from fencepost.server.postgres.connections.transactions import run_write
from fencepost.server.postgres.statements import idempotency

ROWS_PER_STEP: Final = 10_000
"""Marks that one transaction looks at."""
STEPS_PER_RUN: Final = 50
"""Transactions of one pass at most; the next pass goes on where it ended."""


@dataclass(frozen=True, slots=True)
class Horizon:
    """What a pass has found out for a later one: tokens up to `issued`, once transactions before `before` are over."""

    issued: int
    before: int


@dataclass(frozen=True, slots=True)
class PruneStep:
    """What one call came to. `reached`: where to go on, None at the end. `idle`: nothing was looked at."""

    reached: str | None
    pruned: int
    idle: bool


@dataclass(frozen=True, slots=True)
class Size:
    """How much there is of something: the planner's estimate of the number (None: unknown), and bytes on disk."""

    what: str
    records: int | None
    bytes: int


async def horizon(connection: Connection) -> Horizon:
    """Ask how far pruning may go later. In a transaction of its own."""
    row = await connection.fetchrow("SELECT issued, before::text::int8 AS before FROM fencepost.prune_horizon()")
    if row is None or row["issued"] is None:
        raise RuntimeError("fencepost.prune_horizon() was called in a transaction that had written")
    return Horizon(row["issued"], row["before"])


async def prune_step(
    connection: Connection, until: Horizon, keep_seconds: float, after: str, limit: int = ROWS_PER_STEP
) -> PruneStep:
    """Look at some marks after `after`, and prune those that may go and are older than that."""
    row = await connection.fetchrow(
        "SELECT reached, pruned, idle FROM fencepost.prune_marks($1, $2::int8::text::xid8, $3, $4, $5)",
        until.issued,
        until.before,
        keep_seconds,
        after,
        limit,
    )
    if row is None:
        raise RuntimeError("fencepost.prune_marks gave no row")
    return PruneStep(row["reached"], row["pruned"], row["idle"])


async def estimate_sizes(connection: Connection) -> list[Size]:
    """Count what there is to remember, cheaply: what metrics show."""
    rows = await connection.fetch("SELECT what, records, bytes FROM fencepost.sizes()")
    return [Size(row["what"], row["records"], row["bytes"]) for row in rows]


async def count_marks(connection: Connection) -> list[Size]:
    """The same, counted: what `fencepost status` shows."""
    found = await estimate_sizes(connection)
    return [
        Size(size.what, await connection.fetchval(f"SELECT count(*) FROM fencepost.{size.what}"), size.bytes)
        for size in found
        if await connection.fetchval("SELECT has_table_privilege($1, 'SELECT')", f"fencepost.{size.what}")
    ]


async def raised_floors(connection: Connection) -> list[tuple[str, int]]:
    """List the tables and scopes whose floor is above 0, if this role may look."""
    if not await connection.fetchval("SELECT has_table_privilege('fencepost.floors', 'SELECT')"):
        return []
    rows = await connection.fetch("SELECT name, floor FROM fencepost.floors WHERE floor > 0 ORDER BY name")
    return [(row["name"], row["floor"]) for row in rows]


async def prune_records(database: Database, keep_seconds: float) -> int:
    """Forget idempotency records older than that; returns how many. Raises StorageError."""
    total = 0
    for _ in range(STEPS_PER_RUN):
        pruned = await run_write(
            database.for_writing, lambda connection: idempotency.prune(connection, keep_seconds), repeatable=True
        )
        total += pruned
        if pruned < idempotency.ROWS_PER_STEP:
            break
    return total


class Pruner:
    """One gateway's part in pruning. Several gateways prune at once without harm: one works, the others pass."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._horizon: Horizon | None = None
        self._after = ""

    async def run(self, keep_seconds: float) -> int:
        """Prune what the horizon of an earlier pass allows; returns how many marks went.

        Raises StorageError; whatever was pruned before it stays pruned.
        """
        if self._horizon is None:
            self._horizon = await self._ask_horizon()
            return 0
        total = 0
        for _ in range(STEPS_PER_RUN):
            batch = await self._prune(self._horizon, keep_seconds)
            total += batch.pruned
            if batch.idle:
                return total  # with the same horizon: a new one would have to be waited for just the same
            self._after = batch.reached or ""
            if batch.reached is None:
                break
        self._horizon = await self._ask_horizon()
        return total

    async def _ask_horizon(self) -> Horizon:
        return await run_write(self._database.for_writing, horizon, repeatable=True)

    async def _prune(self, until: Horizon, keep_seconds: float) -> PruneStep:
        after = self._after
        return await run_write(
            self._database.for_writing,
            lambda connection: prune_step(connection, until, keep_seconds, after),
            repeatable=True,
        )
