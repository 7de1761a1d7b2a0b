"""Statements that write one row by its key: verdict and data change in one statement, one round trip (R4). Before them
the records of Idempotency-Keys.

UPDATE and DELETE reach a row only if its mark lets them: no row in the answer is a question (R5), which the next
statement asks (marks.py). An INSERT has no mark of a row to compare with: its trigger judges (R6).

`wait` is what they do about a row that another transaction has locked:
block   wait for it: the write is alone in its transaction, or at least its own
skip    leave the row, which then is not in the answer: no batch waits for a row. Nor is a duplicate key an error in a
        batch, where it would undo the other writes

Every answer has the columns number (of the write in its batch), json, mark, resource.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import asyncpg

from fencepost.server.postgres.answers import JSON, Given, Shown, body_record, elements
from fencepost.server.postgres.connection import (
    BODY,
    MARKS,
    NUMBER,
    OF_WRITES,
    TOKEN,
    Connection,
    Wait,
    WriteStatement,
    compiled,
)
from fencepost.server.postgres.marks import mark_of
from fencepost.server.postgres.row_sql import (
    MARK,
    ORDINAL,
    key_match,
    key_order,
    key_parameter,
    literal,
    lock_clause,
    operator,
    or_changed_code,
    or_outdated,
    row_resource,
)
from fencepost.server.postgres.tables import ProtectedTable, Table, quote

# Idempotency keys in the database (R16): look one up, record what its write came to, forget.
#
# See migrations/schema/idempotency.sql.

CALLER: Final = ""
"""Whose keys those of requests are whose caller has no role (decision 0040)."""
OF_QUEUES: Final = "queue"
"""Whose keys the ids of writes are that come through a queue (queues/message.py)."""
ROWS_PER_STEP: Final = 10_000
"""How many records are forgotten in one transaction."""


# What is made for each write is not frozen: that would cost more than the rest of its making.
@dataclass(slots=True)
class Recorded:
    """What a write came to, as JSON (gateway/idempotency.py), and beside it the rows as PostgreSQL wrote them, with
    commas between them; None: the answer had none, or they were too large.
    """

    outcome: str
    rows: str | None = None


Record = tuple[str, str, bytes, Recorded, str | None]
"""Whose key, the key, the hash of its payload, what its write came to, and whose queued write it was, if a caller's
with a role."""

_RECORD: Final = "SELECT fencepost.gateway_idem_record($1, $2, $3, $4, $5, $6)"

State = Literal["new", "in flight", "reused"]


async def begin(connection: Connection, caller: str, key: str, payload_hash: bytes) -> Recorded | State:
    """Begin an idempotent write, first in its transaction: what it came to before, or whether it may go on.

    `new` holds the key until the transaction ends; `in flight`: another transaction does; `reused`: for another
    payload.
    """
    row = await connection.fetchrow(
        "SELECT state, outcome, rows FROM fencepost.gateway_idem_begin($1, $2, $3)", caller, key, payload_hash
    )
    if row is None:
        raise RuntimeError("fencepost.idem_begin gave no row")
    return read_state(row)


def read_state(row: asyncpg.Record) -> Recorded | State:
    """Read a row that begins with state, outcome and rows."""
    state: State | Literal["replay"] = row[0]
    return Recorded(row[1], row[2]) if state == "replay" else state


async def record(connection: Connection, made: Record) -> None:
    """Record what a write came to, last in its transaction."""
    caller, key, payload_hash, came_to, owner = made
    await connection.execute(_RECORD, caller, key, payload_hash, came_to.outcome, came_to.rows, owner)


async def record_many(connection: Connection, records: Sequence[Record]) -> None:
    """Record what several writes came to, last in their transaction."""
    callers, keys, hashes, came_to, owners = map(list, zip(*records, strict=True))
    outcomes, rows = [each.outcome for each in came_to], [each.rows for each in came_to]
    await connection.execute(
        "SELECT fencepost.gateway_idem_record_each($1, $2, $3, $4, $5, $6)",
        *(callers, keys, hashes, outcomes, rows, owners),
    )


async def prune(connection: Connection, keep_seconds: float) -> int:
    """Forget records older than that, one batch; returns how many."""
    pruned: int = await connection.fetchval("SELECT fencepost.prune_idempotency($1, $2)", keep_seconds, ROWS_PER_STEP)
    return pruned


@dataclass(frozen=True, slots=True)
class Change:
    """What a write does to each of its rows: it sets `columns` from the JSON body, `defaults` to their defaults (PUT),
    or deletes it. `target` is what the answer shows of the row.
    """

    columns: tuple[str, ...]
    target: Shown
    preferences: frozenset[str]
    """Those of the request that change statements, as they are spelled."""
    defaults: tuple[str, ...] = ()
    named: bool = False
    """Whether the answer shall carry the resource's name."""
    deletes: bool = False
    conditional: bool = False
    """Whether the row's mark must be one of those that the request names (If-Match)."""

    @property
    def sets(self) -> tuple[str, ...]:
        """All columns that it sets, whether or not the body names them."""
        return *self.columns, *self.defaults


def update(table: ProtectedTable, change: Change, wait: Wait, *, careful: bool = False) -> WriteStatement:
    """Write the UPDATE of a row: PATCH, the first half of PUT, and claims, which set nothing but the mark.

    `careful`: see gateway/attempt.py.
    """
    mark, given = mark_of(table, change.columns), body_record(table, change.columns)
    sets = [f"{quote(column)} = {value}" for column, value in given.values.items()]
    sets += [f"{quote(c)} = DEFAULT" for c in change.defaults]
    sets += [f"{column} = {value}" for column, value in mark.stored]
    passes = f"{key_match(table)} AND {mark.passes}{_condition(table, change)}"
    lock = lock_clause(table, "update", change.sets)
    answer = _answer(table, change.target, mark.shown, wait, named=change.named)
    if not sets:  # in a scope: the row as it is
        lock += " SKIP LOCKED" if wait == "skip" else ""
        return _compiled(f"SELECT {answer} FROM {table.sql_name} AS r WHERE {passes} {lock}", wait)
    write = f"UPDATE {table.sql_name} AS r SET {', '.join(sets)}{_from(given)}"
    careful = careful or table.may_suppress
    return _reached(table, write, passes, lock, f" RETURNING {answer}", wait, careful=careful)


def delete(table: ProtectedTable, change: Change, wait: Wait) -> WriteStatement:
    """Write the DELETE of a row. In a table whose rows have marks it is a call: its trigger needs the token, which the
    function binds to this table, and the token is left as the key's mark (R6). The function knows no condition: for
    that the row is locked first, and looked at.
    """
    mark, target = mark_of(table, deletes=True), change.target
    passes = f"{key_match(table)} AND {mark.passes}{_condition(table, change)}"
    lock = lock_clause(table, "delete", ())
    if table.fence.scope is not None:
        answer = _answer(table, target, mark.shown, wait)
        write = f"DELETE FROM {table.sql_name} AS r"
        return _reached(table, write, passes, lock, f" RETURNING {answer}", wait)
    key = ", ".join(key_parameter(table, n) for n, _ in enumerate(table.key))
    call = f"{table.fence.delete_function}({key}, {TOKEN}, {_shown(table, target)}) AS r"
    looked_at = wait == "skip" or change.conditional
    held = _lock_row(table, passes, lock, wait) if looked_at else mark.same_table
    return _compiled(
        f"SELECT {_answer(table, target, str(TOKEN), wait)} FROM {call} WHERE {or_changed_code(table)}{held}", wait
    )


def _shown(table: ProtectedTable, target: Shown) -> str:
    """List the columns that the table's function for DELETE shall read; NULL: all of them."""
    if target.targets and set(target.columns) >= set(table.visible):
        return "NULL"
    return f"CAST(ARRAY[{', '.join(literal(column) for column in target.columns)}] AS pg_catalog.text[])"


def create(table: ProtectedTable, change: Change, wait: Wait) -> WriteStatement:
    """Write the INSERT of the row that a PUT names: the key from the path, the rest from the body or by default."""
    given = body_record(table, change.columns)
    values = {quote(c): key_parameter(table, n) for n, c in enumerate(table.key)}
    values |= {quote(c): value for c, value in given.values.items()}
    insert = _insert(table, change.columns, values, _from(given))
    answer = _answer(table, change.target, mark_of(table).shown, wait, named=change.named)
    if wait == "skip":
        return _compiled(f"{insert} ON CONFLICT DO NOTHING RETURNING {answer}", wait)
    return _compiled(
        f"WITH i AS ({insert} RETURNING {answer}) SELECT * FROM i"
        f" UNION ALL {_suppressed(table, 'NOT EXISTS (SELECT FROM i)')}",
        wait,
    )


def insert(table: ProtectedTable, change: Change, wait: Wait) -> WriteStatement:
    """Write the INSERT of a POST: of the one row in a JSON array (skip), or of all its rows or none (block).

    Refusals by mark come as FP409 from the trigger.
    """
    if wait == "skip":
        given = body_record(table, change.columns, f"({BODY} OPERATOR(pg_catalog.->) 0)")
        values = {quote(c): value for c, value in given.values.items()}
        answer = _answer(table, change.target, mark_of(table).shown, wait, named=True)
        insert = _insert(table, change.columns, values, _from(given))
        return _compiled(f"{insert} ON CONFLICT DO NOTHING RETURNING {answer}", wait)
    return _compiled(_insert_all(table, change), wait)


def _insert_all(table: ProtectedTable, change: Change) -> str:
    """Insert in key order, in which every write of several rows takes its locks, and answer in the body's order."""
    columns, target = change.columns, change.target
    names, given = {quote(c): quote(c) for c in columns}, elements(table, columns)
    listed = (f"{value} AS {quote(c)}" for c, value in given.values.items())
    missing = _suppressed(table, "(SELECT count(*) FROM i) < (SELECT count(*) FROM b)")
    if table.key and set(table.key) <= set(columns):
        order = key_order(table, "b")
        keys = [f"r.{quote(c)} AS k{n}" for n, c in enumerate(table.key)]
        match = " AND ".join(f"b.{quote(c)} {operator(table.columns[c], '=')} i.k{n}" for n, c in enumerate(table.key))
        source = f"SELECT i.* FROM i LEFT JOIN b ON {match} ORDER BY b.{ORDINAL}"
    else:  # the database makes the keys: they collide with no other
        order, keys, source = f"b.{ORDINAL}", [], "SELECT * FROM i"
    kept = ", ".join((*_numbered(table, mark_of(table).shown, "block", named=True), *keys, *target.kept()))
    chosen = target.several(source, ("number", JSON, "mark", "resource"))
    return (
        f"WITH b AS MATERIALIZED (SELECT {', '.join((*listed, given.place))} FROM {given.source}),"
        f" i AS ({_insert(table, columns, names, ' FROM b', f' ORDER BY {order}')} RETURNING {kept})"
        f" SELECT * FROM ({chosen}) AS a UNION ALL {missing}"
    )


def _insert(table: ProtectedTable, given: tuple[str, ...], values: dict[str, str], source: str, order: str = "") -> str:
    mark = mark_of(table, given)
    stored = values | dict(mark.stored)
    rows = f"SELECT {', '.join(stored.values())}{source} WHERE {or_changed_code(table)}{mark.may_insert}{order}"
    return f"INSERT INTO {table.sql_name} AS r ({', '.join(stored)}) {rows}"


def _reached(
    table: ProtectedTable,
    write: str,
    passes: str,
    lock: str,
    returning: str,
    wait: Wait,
    *,
    careful: bool = False,
) -> WriteStatement:
    """Let a write reach its row if it passes, and is not held (skip).

    A BEFORE trigger of the user's own may keep the row from being written, which looks like a mark that refused. Where
    that may be (careful), and in a scope, whose mark has been raised already, the statement locks the row first, and
    raises FP403 when the row passed and yet was not written.
    """
    write = f"{write} WHERE {or_changed_code(table)}"
    if wait == "skip":
        return _compiled(f"{write}{passes} AND {_lock_row(table, passes, lock, wait)}{returning}", wait)
    if not careful and table.fence.scope is None:
        return _compiled(f"{write}{passes}{returning}", wait)
    kept_back = "EXISTS (SELECT FROM hit) AND NOT EXISTS (SELECT FROM w)"
    return _compiled(
        f"WITH hit AS MATERIALIZED (SELECT FROM {table.sql_name} AS r WHERE {passes} {lock}),"
        f" w AS ({write}{passes} AND EXISTS (SELECT FROM hit){returning})"
        f" SELECT * FROM w UNION ALL {_suppressed(table, kept_back)}",
        wait,
    )


def _lock_row(table: Table, passes: str, lock: str, wait: Wait) -> str:
    """Lock the row, unless another transaction has (skip). It depends on parameters only: it is evaluated once, and
    first.
    """
    return f"EXISTS (SELECT FROM {table.sql_name} AS r WHERE {passes} {lock}{' SKIP LOCKED' if wait == 'skip' else ''})"


def _condition(table: ProtectedTable, change: Change) -> str:
    """Compare the row's mark with those that the request names, if it does (If-Match). Raises FP000 where the table has
    another rule by now: under epoch a mark may stay the same over several writes.
    """
    if not change.conditional:
        return ""
    name = f"p.name OPERATOR(pg_catalog.=) {literal(table.fence.name)}"
    strict = f"EXISTS (SELECT FROM fencepost.protected p WHERE {name} AND p.rule OPERATOR(pg_catalog.=) 'strict')"
    any_mark = f"pg_catalog.cardinality({MARKS}) OPERATOR(pg_catalog.=) 0"
    named = f"(r.{MARK} OPERATOR(pg_catalog.=) ANY ({MARKS}) OR {any_mark})"
    return f" AND {named} AND {or_outdated(table.fence.name, [strict])}"


def _answer(table: ProtectedTable, target: Shown, mark: str, wait: Wait, *, named: bool = False) -> str:
    number, shown_mark, name = _numbered(table, mark, wait, named=named)
    return f"{number}, {target.one(batched=wait == 'skip')} AS json, {shown_mark}, {name}"


def _numbered(table: ProtectedTable, mark: str, wait: Wait, *, named: bool) -> tuple[str, str, str]:
    number = str(NUMBER) if wait == "skip" else "0"
    name = row_resource(table, table.fence.name) if named else "''"
    return f"{number} AS number", f"{mark} AS mark", f"{name} AS resource"


def _suppressed(table: ProtectedTable, condition: str) -> str:
    name = table.fence.name
    return f"SELECT 0, fencepost.suppressed({literal(name)}), NULL::bigint, NULL::text WHERE {condition}"


def _from(given: Given) -> str:
    return f" FROM {given.source}" if given.source else ""


def _compiled(text: str, wait: Wait) -> WriteStatement:
    return WriteStatement(compiled(text, OF_WRITES), wait)
