"""Upkeep of our own tables: generations, prepared transactions, counted refusals, marks that are pruned or reset."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import asyncpg

from fencepost.server.fence.resource import MalformedResourceError, Resource, decode_segment, parse_resource
from fencepost.server.fence.token import EXTERNAL
from fencepost.server.postgres import keyed
from fencepost.server.postgres.catalog_cache import load
from fencepost.server.postgres.connection import OF_KEY, Bound, Connection, Key, compiled
from fencepost.server.postgres.database import Database, run_write
from fencepost.server.postgres.database_identity import ORIGIN, Origin
from fencepost.server.postgres.errors import LOCK_NOT_AVAILABLE
from fencepost.server.postgres.marks import exists
from fencepost.server.postgres.row_sql import MARK, issued_by, key_match, literal, parameter_resource
from fencepost.server.postgres.scopes import scopes_typed
from fencepost.server.postgres.tables import EVERYTHING, MARK_COLUMN, Catalog, Fence, Table

# Prepared transactions (PREPARE TRANSACTION): they keep their locks without a session, so that pg_stat_activity shows
# nothing of them, and outlive every restart until COMMIT PREPARED or ROLLBACK PREPARED.
#
# Asked where a lock was not had in time, and by `fencepost doctor`. No statement here takes a lock on a user's table.

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


# What `generation raise` and `source raise` have in common: one call of a function that raises a generation, in a
# transaction of its own, while others write.
#
# Such a function takes the locks of grants, sequences and floors, one after the other, and each waits for transactions
# under way. One of these may want what the function has already. PostgreSQL ends one of the two with 40P01; ended
# here, nothing has changed, the other one goes on, and the next try waits for it.

LOCK_TIMEOUT: Final = "30s"
"""How long each lock is waited for: until the grants and writes that are under way have ended."""
TRIES: Final = 5
"""How often a deadlock may end the call; PostgreSQL finds one after deadlock_timeout, a second by default."""

_DEADLOCK: Final = "40P01"


async def call_with_retries(connection: Connection, call: str, *arguments: object) -> int:
    """Run `call`, SQL that returns the new generation, and commit. Tried again where a deadlock ends it.

    Raises asyncpg.PostgresError, nothing having changed: what the function raises, 55P03 when transactions under way do
    not end in time, 40P01 when the last try has met a deadlock.
    """
    tries = TRIES
    while True:
        tries -= 1
        try:
            async with connection.transaction(isolation="read_committed"):
                await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
                await connection.execute("SET LOCAL synchronous_commit = 'on'")
                raised: int = await connection.fetchval(call, *arguments)
        except asyncpg.DeadlockDetectedError:
            if not tries:
                raise
        else:
            return raised


def describe_failure(error: asyncpg.PostgresError, who: str) -> str | None:
    """Return why call_with_retries gave up; None: not because of others. `who`: whose end it waits for."""
    if error.sqlstate == LOCK_NOT_AVAILABLE:
        met = f"did not end within {LOCK_TIMEOUT}"
    elif error.sqlstate == _DEADLOCK:
        met = f"and this waited for locks of each other in each of {TRIES} tries (deadlock detected, 40P01)"
    else:
        return None
    return f"{who} {met} (see {WHERE_TO_LOOK}); nothing was changed: run it again"


# Generations, as an operator sees them: their history, and raising one (R19).


@dataclass(frozen=True, slots=True)
class Generation:
    """A span of time in which one database has known all its tokens. `raised_at` is a text in UTC."""

    number: int
    identity: str
    system_identifier: int
    timeline: int
    raised_at: str
    raised_by: str
    reason: str


async def history(connection: Connection) -> list[Generation]:
    """List all generations, the oldest first."""
    rows = await connection.fetch(
        "SELECT generation, CAST(identity AS text) AS identity, system_identifier, timeline, raised_by, reason,"
        " to_char(raised_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') AS raised_at"
        " FROM fencepost.generations ORDER BY generation"
    )
    return [
        Generation(
            row["generation"],
            row["identity"],
            row["system_identifier"],
            row["timeline"],
            row["raised_at"],
            row["raised_by"],
            row["reason"],
        )
        for row in rows
    ]


async def origin(connection: Connection) -> Origin:
    """Ask which database this is, and what is stored there."""
    row = await connection.fetchrow(ORIGIN)
    if row is None:
        raise RuntimeError("fencepost.origin() gave no row")
    return Origin.of(row)


async def raise_generation(connection: Connection, reason: str, above: int | None = None) -> int:
    """Vouch for this database, void all older tokens, end all leases. Returns the new generation.

    `above`: a token of another history of this database, which ends with this.

    Raises asyncpg.PostgresError: 25006 on a standby, 42501 for a role that does not own the schema, and what
    call_with_retries raises.
    """
    return await call_with_retries(connection, "SELECT fencepost.raise_generation($1, $2)", reason, above)


async def leave_moment(database: Database) -> None:
    """Leave a random mark in the database that a copy of before does not have. Raises StorageError."""
    await run_write(
        database.for_writing, lambda connection: connection.execute("SELECT fencepost.leave_moment()"), repeatable=True
    )


async def lagging_tables(connection: Connection) -> list[str]:
    """Name the tables of the built-in source whose functions were made before there were generations."""
    rows = await connection.fetch(
        """SELECT p.name FROM fencepost.protected p
            WHERE p.source = 'builtin' AND p.scope IS NULL
              AND EXISTS (SELECT FROM pg_proc f WHERE f.pronamespace = 'fencepost'::regnamespace
                             AND f.proname IN (p.functions || '_upd', p.functions || '_insmark', p.functions || '_del')
                             AND strpos(f.prosrc, 'fencepost.oldest()') = 0)
            ORDER BY p.name"""
    )
    return [row["name"] for row in rows]


# What callers were refused for who they are, as counts by day (migrations/schema/refusals.sql).


@dataclass(frozen=True, slots=True)
class CallersRefusals:
    """How often a caller was refused with a code on one day, and the last time. `last_at` is ISO 8601."""

    day: str
    caller: str
    code: str
    count: int
    last_at: str
    detail: str


async def add(database: Database, counts: Mapping[tuple[str, str], tuple[int, str]]) -> None:
    """Add counts, by caller and code, with the last detail of each. Raises StorageError."""
    rows = [(caller, code, count, detail) for (caller, code), (count, detail) in counts.items()]
    columns = [[row[column] for row in rows] for column in range(4)]
    sql = "SELECT fencepost.add_refusals($1, $2, $3, $4)"
    await run_write(database.for_writing, lambda connection: connection.execute(sql, *columns))


async def newest(connection: Connection, limit: int) -> list[CallersRefusals]:
    """List the newest first; none where this role may not read them."""
    if not await connection.fetchval("SELECT has_table_privilege('fencepost.refusals', 'SELECT')"):
        return []
    rows = await connection.fetch(
        "SELECT r.day::text, r.caller, r.code, r.count, to_json(date_trunc('second', r.last_at)) #>> '{}', r.detail"
        " FROM fencepost.refusals r ORDER BY r.last_at DESC, r.caller, r.code LIMIT $1",
        limit,
    )
    return [CallersRefusals(*row) for row in rows]


# Forgetting marks of keys without a row, a while after no token can need them any more (R6).
#
# A mark may go when its table's floor takes its place, and the floor may rise as far as no live lease reaches down:
#
# 1. a pass asks for the horizon: the newest token, and a transaction number from after it was read;
# 2. a later pass sees that all transactions before that number have ended. So a session that drew a token up to the
#    horizon has a lease that can be seen, or none;
# 3. cap = the horizon, or just below the oldest token of the leases that live;
# 4. marks up to the cap that have not changed for the time that is set go, the floor rising with them.
#
# What is kept between passes is the horizon, in memory: a gateway that restarts begins at 1. The functions are in
# migrations/schema/pruning.sql, and safe in whatever order and however often they are called.

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
            database.for_writing, lambda connection: keyed.prune(connection, keep_seconds), repeatable=True
        )
        total += pruned
        if pruned < keyed.ROWS_PER_STEP:
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


# `fencepost fence reset`: an operator lowers a mark that a made-up token left, and that refuses every holder since.
#
# A mark that falls lets tokens pass that were refused before, so where it may fall to is not free:
#
# - of the built-in source or a named one: to what the source has issued by now. No token that is outstanding is above
#   it.
# - of an external source: to a number that the operator gives, the newest token that the lock service has given out. At
#   least the next lower mark of the table (or the scope's prefix) and its floor: a token that was accepted for another
#   of its resources does not pass here. Marks that are as high or higher do not count: they may be of the same making.
#
# Terms and order, in one transaction: the glass is broken, with the reason; the row is locked, then its mark, as by
# everybody, so a write under way is waited for, and later ones meet the new mark; the fall is recorded, with the old
# and the new mark; it happens. The row's own trigger lets it pass because of the record (`fencepost.is_reset`).
#
# `fencepost.reset_mark`, which records and lowers, refuses the same by itself, but for the marks in the table's rows:
# only `_lowest` compares those. So a role that may break the glass gets past no other mark and no floor by calling
# it.

_ROUNDS: Final = 10
_SETTINGS: Final = """
SELECT pg_catalog.set_config('fencepost.break_glass', $1, true), pg_catalog.set_config('lock_timeout', $2, true),
       pg_catalog.set_config('synchronous_commit', 'on', true), pg_catalog.set_config('row_security', 'off', true)"""
"""A policy that hides rows must fail, and not hide their marks."""


class ResetError(Exception):
    """The mark is not lowered; the message gives the reason and what to do."""


class _Appeared(Exception):  # noqa: N818 - it is not an error; it rolls a transaction back
    """The key has a row after all."""


@dataclass(frozen=True, slots=True)
class Reset:
    """What was lowered. `resource` is the name of a row, a scope or a floor."""

    resource: str
    old: int
    new: int


@dataclass(frozen=True, slots=True)
class _Marked:
    """What has a mark. `name`: the table, or the scope's prefix. `table`: where rows have marks of their own."""

    name: str
    resource: str
    fence: Fence | None
    table: Table | None = None
    key: Key | None = None
    """Of a row or a key without one; None: it is a scope, or a floor."""

    @property
    def is_floor(self) -> bool:
        return self.resource == self.name


async def reset(connection: Connection, resource: str, to: int | None, reason: str) -> Reset:
    """Lower the mark of a row, of a key without a row, or of a scope; or, by the name of a table or scope, its floor.

    `to`: the new mark; None where the table's source gives it. Raises ResetError, and asyncpg.PostgresError: 42501 for
    a role that may not break the glass, FP400 for a reason that is none, 55P03 when writes under way do not end in
    time.
    """
    catalog = await load(connection, EVERYTHING, 0)
    for _ in range(_ROUNDS):
        try:
            async with connection.transaction(isolation="read_committed"):
                await connection.execute(_SETTINGS, reason, LOCK_TIMEOUT)
                return await _lower(connection, await _find(connection, catalog, resource), to)
        except _Appeared:
            continue
    raise ResetError(f"{resource}: the row comes and goes faster than it can be met; nothing was changed.")


async def _find(connection: Connection, catalog: Catalog, text: str) -> _Marked:
    """Read a resource's name as it was typed, and give it the name that PostgreSQL renders."""
    if "/" not in text:
        return await _floor(connection, catalog, text)
    try:
        named = parse_resource(text)
    except MalformedResourceError as error:
        raise ResetError(f"{error}") from error
    scoped = catalog.scopes.get(named.table)
    if scoped:
        return await _scope(connection, scoped[0], named)
    table = catalog.find(named.table)
    if table is None:
        raise ResetError(f"{text}: there is no table or scope {named.table}.")
    fence = _intact(table)
    if fence.scope is not None:
        raise ResetError(
            f"{text}: {table.name} has the scope {fence.scope.template}, whose mark it is: name the scope."
        )
    if len(named.key) != len(table.key):
        raise ResetError(
            f"{text}: the key of {table.name} has {len(table.key)} value(s), {','.join(table.key)}, not"
            f" {len(named.key)}."
        )
    try:
        async with connection.transaction():
            text = f"SELECT {parameter_resource(table, fence.name)}"
            name: str = await compiled(text, OF_KEY).value(connection, named.key)
    except asyncpg.DataError as error:
        raise ResetError(f"{text}: {error}.") from error
    return _Marked(fence.name, name, fence, table, named.key)


async def _scope(connection: Connection, table: Table, named: Resource) -> _Marked:
    fence = _intact(table)
    scope = fence.scope
    if scope is None or len(named.key) != len(scope.columns):
        raise ResetError(f"{named.table}: a scope of {table.name} is named like {scope.template if scope else '?'}.")
    try:
        async with connection.transaction():
            names = await scopes_typed(connection, table, scope, [named.key])
    except asyncpg.DataError as error:
        raise ResetError(f"{named.table}/{','.join(named.key)}: {error}.") from error
    return _Marked(scope.prefix, names[0], fence)


async def _floor(connection: Connection, catalog: Catalog, text: str) -> _Marked:
    try:
        name = decode_segment(text.encode())
    except (MalformedResourceError, UnicodeEncodeError) as error:
        raise ResetError(f"{error}") from error
    scoped = catalog.scopes.get(name)
    table = catalog.find(name)
    fence = _intact(scoped[0]) if scoped else table.fence if table is not None else None
    if await connection.fetchval("SELECT fencepost.held_floor($1)", name) is None:
        raise ResetError(
            f"{text}: there is no floor of this name. A row is named TABLE/KEY, a scope PREFIX/VALUES; `fencepost"
            " status` lists the floors."
        )
    rows = table if table is not None and fence is not None and fence.scope is None else None
    return _Marked(name, name, fence, rows)


def _intact(table: Table) -> Fence:
    if table.fence is None:
        raise ResetError(
            f"{table.name} is not protected: its marks refuse no write. `fencepost protect {table.name} --max-token"
            f" {2**63 - 1}` first, if they are to be lowered before it is protected again."
        )
    if not table.fence.intact:
        raise ResetError(f"{table.name}: its protection is broken; `fencepost doctor` says how. Mend that first.")
    return table.fence


async def _lower(connection: Connection, marked: _Marked, to: int | None) -> Reset:
    """Lock, decide, record, lower: see above."""
    table, key = marked.table, marked.key
    if table is not None and await connection.fetchval("SELECT pg_catalog.row_security_active($1)", table.sql_name):
        raise ResetError(
            f"{marked.resource}: row security rules this role in {table.name}, so that it may not see each mark: run"
            f" this as a role with BYPASSRLS; or ALTER TABLE {table.sql_name} NO FORCE ROW LEVEL SECURITY, run this as"
            " its owner, and FORCE it again."
        )
    live = None
    if table is not None and key is not None:
        lock = f"SELECT r.{MARK} FROM {table.sql_name} AS r WHERE {key_match(table)} FOR NO KEY UPDATE OF r"
        live = await compiled(lock, OF_KEY).value(connection, key)
    old: int | None = await connection.fetchval(
        "SELECT fencepost.held_floor($1)" if marked.is_floor else "SELECT fencepost.held_mark($1, $2)",
        *((marked.resource,) if marked.is_floor else (marked.resource, live)),
    )
    if table is not None and key is not None and live is None and await exists(connection, table, key):
        raise _Appeared
    if not old:
        raise ResetError(f"{marked.resource} has no mark: there is nothing to mend.")
    wanted = await _lowest(connection, marked, old, to)
    new: int = await connection.fetchval(
        "SELECT fencepost.reset_mark($1, $2, $3, $4)", marked.name, marked.resource, old, wanted
    )
    if table is not None and key is not None and live is not None:
        await connection.execute("SET LOCAL row_security TO DEFAULT")  # the table's own triggers may fire
        bound = Bound()
        changed = await compiled(
            f"UPDATE {table.sql_name} AS r SET {MARK} = {bound.add(new, 'bigint')} WHERE {key_match(table)}"
            f" RETURNING r.{MARK}",
            (*OF_KEY, *bound.parameters),
        ).fetch(connection, key)
        if [row[MARK_COLUMN] for row in changed] != [new]:
            raise ResetError(f"{marked.resource}: a trigger or rule of {table.name} keeps its mark from being written.")
    return Reset(marked.resource, old, new)


async def _lowest(connection: Connection, marked: _Marked, old: int, to: int | None) -> int:
    """Decide on the new mark, or refuse with what to do. `fencepost.reset_mark` has the last word: it refuses what is
    below other marks, and takes what the source has issued by then.
    """
    fence = marked.fence
    if fence is not None and fence.source != EXTERNAL:
        issued: int = await connection.fetchval(f"SELECT {issued_by(fence.source)}")
        if to is not None and to != issued:
            raise ResetError(
                f"{marked.resource}: the source {fence.source} has issued {issued} by now, and the mark can be set to"
                " that only: leave --to out. A holder of one of its leases acquires anew."
            )
        if issued >= old:
            raise ResetError(
                f"{marked.resource} has the mark {old}, and {fence.source} has issued {issued}: there is nothing to"
                " mend."
            )
        if not issued:
            raise ResetError(f"{marked.resource}: {fence.source} has issued no token yet: acquire a lease of it first.")
        return issued
    if to is None:
        raise ResetError(
            f"{marked.resource}: --to is needed: the newest token that the lock service of {marked.name} has given out."
        )
    if to >= old:
        raise ResetError(f"{marked.resource} has the mark {old}, which is not above {to}: there is nothing to mend.")
    if fence is not None and fence.ceiling is not None and to > fence.ceiling.max_token:
        raise ResetError(
            f"{marked.resource}: {to} is above {fence.ceiling.max_token}, the highest token that the table takes."
        )
    lowest = await _highest_other(connection, marked, old)
    if to < lowest:
        raise ResetError(
            f"{marked.resource}: {to} is below {lowest}, the next lower mark (or floor) of {marked.name}: tokens that"
            " were accepted for its other resources would pass here. Set it to the newest token that the lock service"
            f" has given out, {lowest} or above; a mark that is made up as well is mended first, the lowest first."
        )
    return to


async def _highest_other(connection: Connection, marked: _Marked, old: int) -> int:
    """Find the highest mark below `old` of the other resources of the table or prefix. Reads the whole table."""
    highest: int = await connection.fetchval(
        "SELECT fencepost.highest_below($1, $2, $3)", marked.name, marked.resource, old
    )
    table, key = marked.table, marked.key
    if table is None:
        return highest
    other = f"NOT ({key_match(table)}) AND " if key is not None else ""
    bound = Bound()
    live: int | None = await compiled(
        f"SELECT pg_catalog.max(r.{MARK}) FROM {table.sql_name} AS r"
        f" WHERE {other}r.{MARK} < {bound.add(old, 'bigint')}",
        (*OF_KEY, *bound.parameters),
    ).value(connection, key or ())
    return max(highest, live or 0)
