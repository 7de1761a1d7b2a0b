"""Prepared transactions (PREPARE TRANSACTION): they keep their locks without a session, so that pg_stat_activity shows
nothing of them, and outlive every restart until COMMIT PREPARED or ROLLBACK PREPARED.

Asked where a lock was not had in time, and by `fencepost doctor`. No statement here takes a lock on a user's table.
"""

from dataclasses import dataclass
from typing import Final

from fencepost.server.postgres.connections.connection import Connection
from fencepost.server.postgres.statements.row_sql import literal

WHERE_TO_LOOK: Final = "pg_stat_activity, and pg_prepared_xacts for transactions that were prepared and not ended"
"""Where whatever holds a lock is found."""

_MINUTE: Final = 60
_HOUR: Final = 3600
_DAY: Final = 86400

_ANY: Final = "SELECT EXISTS (SELECT FROM pg_prepared_xacts)"

# Locks without a process are those of prepared transactions. They keep the virtual transaction number of the session
# that prepared them, until a restart gives them another one: the lock on their own transaction number shows which.
# A lock of a partition counts as one of the partitioned table. A transaction that only reads stops no write of a row;
# the sequence of tokens is locked for reading by every write under the built-in source, and moved by `protect`.
_PREPARED: Final = """
WITH RECURSIVE locks AS MATERIALIZED (
  SELECT l.* FROM pg_locks l WHERE l.pid IS NULL AND l.granted
), held(transaction, relation, root) AS (
  SELECT x.transaction, l.relation, l.relation FROM pg_prepared_xacts x
    JOIN locks own ON own.locktype = 'transactionid' AND own.transactionid = x.transaction
    JOIN locks l ON l.virtualtransaction = own.virtualtransaction AND l.locktype = 'relation'
    JOIN pg_database d ON d.oid = l.database AND d.datname = current_database()
   WHERE l.mode <> 'AccessShareLock' OR l.relation = to_regclass('fencepost.tokens')
  UNION
  SELECT h.transaction, h.relation, i.inhparent FROM held h JOIN pg_inherits i ON i.inhrelid = h.root
)
SELECT x.gid, x.owner::text AS owner, x.database::text AS database,
       extract(epoch FROM clock_timestamp() - x.prepared)::float8 AS age,
       ARRAY(SELECT DISTINCT CASE WHEN n.nspname = 'public' THEN c.relname::text ELSE n.nspname || '.' || c.relname END
               FROM held h JOIN pg_class c ON c.oid = h.root AND c.relkind IN ('r', 'p', 'S')
               JOIN pg_namespace n ON n.oid = c.relnamespace
              WHERE h.transaction = x.transaction AND NOT c.relispartition ORDER BY 1) AS locked,
       ARRAY(SELECT DISTINCT p.name FROM held h JOIN fencepost.protected p ON p.relation = h.root
              WHERE h.transaction = x.transaction ORDER BY 1) AS protected
  FROM pg_prepared_xacts x ORDER BY x.prepared, x.gid"""


@dataclass(frozen=True, slots=True)
class Prepared:
    """One prepared transaction. `age` is in seconds since it was prepared; `locked` are tables and sequences of this
    database that it has locked, and `protected` those of them that are protected, under the names of their resources.
    """

    gid: str
    owner: str
    database: str
    age: float
    locked: tuple[str, ...]
    protected: tuple[str, ...]

    def describe(self) -> str:
        return f"the prepared transaction {literal(self.gid)} of {self.owner}, prepared {_shown(self.age)} ago"

    def mend(self) -> str:
        gid = literal(self.gid)
        return (
            f"COMMIT PREPARED {gid} or ROLLBACK PREPARED {gid}, in the database {self.database}, as {self.owner} or a"
            " superuser"
        )


async def all_prepared(connection: Connection) -> list[Prepared]:
    """List the server's prepared transactions, the oldest first."""
    # Looking through all locks costs; there is mostly nothing prepared.
    if not await connection.fetchval(_ANY):
        return []
    return [
        Prepared(
            row["gid"],
            row["owner"],
            row["database"],
            row["age"],
            tuple(row["locked"] or ()),
            tuple(row["protected"] or ()),
        )
        for row in await connection.fetch(_PREPARED)
    ]


async def lock_holders(connection: Connection, table: str | None = None) -> list[Prepared]:
    """List the prepared transactions of this database that hold locks: on the protected table of this name, or, if
    None, on whatever table or sequence.
    """
    return [
        each for each in await all_prepared(connection) if (each.locked if table is None else table in each.protected)
    ]


def describe_holders(found: list[Prepared]) -> str:
    """Name those that hold locks, in a sentence or more; empty for none."""
    return " ".join(
        f"T{each.describe()[1:]}, holds locks on {', '.join(each.locked)}: {each.mend()}." for each in found
    )


def _shown(age: float) -> str:
    for size, unit in ((_DAY, "days"), (_HOUR, "hours"), (_MINUTE, "minutes")):
        if age >= 2 * size:
            return f"{age // size:.0f} {unit}"
    return f"{max(age, 0):.0f} seconds"
