"""Statements that write several rows: all or nothing over the rows that were met, in one statement (R10).

b        of an array: its elements, with their places in the body
hit      the rows that match, locked in key order; a row that changed while we waited is judged as it is now
verdict  whether the write may go on: no mark refuses, and no more rows were met than may be (filter), or a row for each
         element (array)
w        the write, only then

Rows that come to match a filter meanwhile are neither judged nor written. An array that was not written is a question
(R5), which the next statement asks of every key. In a table with a scope the marks were judged before
(gateway/alone.py has the order), and rows outside of the scopes that were entered are not met.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fencepost.server.postgres.answers import JSON, body_record, elements
from fencepost.server.postgres.connection import OF_WRITES, Bound, Connection, RowWrite, Statement, compiled
from fencepost.server.postgres.keyed import Change
from fencepost.server.postgres.marks import mark_of
from fencepost.server.postgres.query import Filter, render_filters
from fencepost.server.postgres.row_sql import (
    FOUND_MARK,
    ORDINAL,
    literal,
    lock_clause,
    operator,
    or_unfenced,
    resource_sql,
)
from fencepost.server.postgres.tables import ProtectedTable, quote

LISTED_REFUSALS: Final = 1000
"""How many refused rows an answer lists; the rest is counted."""
_FEW: Final = "LIMIT (SELECT 2147483647)"
"""Of a LIMIT that is no constant the planner believes that it leaves a tenth: 10 of the 100 rows that it expects of any
JSON. So it looks each key up in the index, and reads no table of some thousand rows twice for an array of hundred."""

_PASSES: Final = "(SELECT passes FROM verdict)"


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """One row whose mark refused the token."""

    resource: str
    mark: int


@dataclass(frozen=True, slots=True)
class TooManyRows:
    """The filter matches more rows than one request may touch."""

    limit: int


@dataclass(frozen=True, slots=True)
class ManyWritten:
    """The rows as the write left them (for DELETE: as they were), as JSON, in key order; and the names of their
    resources, where these were asked for.
    """

    rows: list[str]
    names: list[str] | None = None


@dataclass(frozen=True, slots=True)
class ManyRefused:
    """At least one row refused the token; nothing was written."""

    rows: list[RefusedRow]


ManyOutcome = ManyWritten | ManyRefused | TooManyRows


@dataclass(frozen=True, slots=True)
class Unwritten:
    """Nothing was written. `met`: the elements (from 0) whose rows were found and locked."""

    met: frozenset[int]


def by_filter(
    table: ProtectedTable,
    filters: tuple[Filter, ...],
    change: Change,
    limit: int,
) -> Statement[RowWrite]:
    """Write the UPDATE or DELETE of all rows that match, at most `limit`, or of none."""
    bound, mark = Bound(), mark_of(table, change.columns, deletes=change.deletes)
    conditions = " AND ".join((render_filters(table, filters, bound), *mark.within))
    given = body_record(table, change.columns)
    source = f", {given.source}" if given.source else ""
    kept = [f"hit.k{n}" for n, _ in enumerate(table.key)]
    hit = (
        f"SELECT {', '.join(_columns_of_met_rows(table, change))} FROM {table.sql_name} AS r WHERE {conditions}"
        f" ORDER BY {_key(table)} LIMIT {limit + 1} {_lock(table, change)}"
    )
    return compiled(
        f"WITH hit AS MATERIALIZED ({hit}), bad AS MATERIALIZED (SELECT * FROM hit WHERE {mark.refuses}),"
        f" verdict AS MATERIALIZED (SELECT hits, bads = 0 AND hits <= {limit} AS passes"
        f" FROM (SELECT (SELECT count(*) FROM hit) AS hits, (SELECT count(*) FROM bad) AS bads) AS counted),"
        f" w AS ({_write(table, change, given.values, source, kept)})" + _answer_by_filter(table, change, limit),
        (*OF_WRITES, *bound.parameters),
    )


def _name_of_met(table: ProtectedTable, alias: str) -> str:
    """Name the resource of a row of `hit`."""
    return resource_sql(
        table.fence.name, [(table.columns[c].base_name, f"{alias}.k{n}") for n, c in enumerate(table.key)]
    )


def _answer_by_filter(table: ProtectedTable, change: Change, limit: int) -> str:
    """List rows that were written, or that refused, or how many too many there are; and, where they are wanted, the
    names of those that were met, which are those that were written, if any was.
    """
    name = table.fence.name
    keys = ", ".join(f"k{n}" for n, _ in enumerate(table.key))
    resource = _name_of_met(table, "bad")
    names = (
        f" UNION ALL SELECT 'name', {_name_of_met(table, 'hit')}, NULL FROM hit WHERE {_PASSES}" if change.named else ""
    )
    rows = change.target.several(f"SELECT * FROM w ORDER BY {keys}", (JSON,))
    return (
        f" SELECT 'row' AS what, a.json AS value, NULL::bigint AS mark FROM ({rows}) AS a"
        f" UNION ALL SELECT * FROM (SELECT 'refused', {resource}, bad.{FOUND_MARK} FROM bad"
        f" ORDER BY {keys} LIMIT {LISTED_REFUSALS}) AS refused"
        f" UNION ALL SELECT 'too many', NULL, hits FROM verdict WHERE hits > {limit}"
        f" UNION ALL SELECT 'suppressed', fencepost.suppressed({literal(name)}), NULL FROM verdict"
        f" WHERE passes AND hits > (SELECT count(*) FROM w)" + names
    )


def by_array(table: ProtectedTable, change: Change) -> Statement[RowWrite]:
    """Write the UPDATE of the rows that the elements of a JSON array name, each with its own values, or of none."""
    columns = (*table.key, *change.columns)
    mark, given = mark_of(table, columns), elements(table, columns)
    values = {c: f"hit.v{n}" for n, c in enumerate(change.columns)}
    hit = [
        *_columns_of_met_rows(table, change),
        *(f"{given.values[c]} AS v{n}" for n, c in enumerate(change.columns)),
    ]
    match = " AND ".join((given.match(table), *mark.within))
    kept, listed, none = [f"hit.{ORDINAL}"], [JSON, ORDINAL], ""
    if change.named:
        kept.append(f"{_name_of_met(table, 'hit')} AS resource")
        listed.append("resource")
        none = ", NULL::text"
    # An element without a key meets no row, and two with one key meet the same: both show in the number of rows.
    distinct = ", ".join(f"hit.k{n}" for n, _ in enumerate(table.key))
    rows = change.target.several(f"SELECT * FROM w ORDER BY w.{ORDINAL}", listed)
    name = ", written.resource" if change.named else ""
    return compiled(
        f"WITH b AS MATERIALIZED (SELECT * FROM {given.source} {_FEW}),"
        f" hit AS MATERIALIZED (SELECT {', '.join(hit)}, b.{ORDINAL} FROM b JOIN {table.sql_name} AS r ON {match}"
        f" ORDER BY {_key(table)} {_lock(table, change)}),"
        f" verdict AS MATERIALIZED (SELECT (SELECT count(*) FROM (SELECT DISTINCT {distinct} FROM hit) AS rows)"
        f" = (SELECT count(*) FROM b) AND NOT EXISTS (SELECT FROM hit WHERE {mark.refuses}) AS passes),"
        f" w AS ({_write(table, change, values, '', kept)})"
        f" SELECT written.json, written.{ORDINAL} AS element{name} FROM ({rows}) AS written"
        f" UNION ALL SELECT NULL, hit.{ORDINAL}{none} FROM hit WHERE NOT {_PASSES}"
        f" UNION ALL SELECT fencepost.suppressed({literal(table.fence.name)}), NULL::bigint{none}"
        f" WHERE {_PASSES} AND (SELECT count(*) FROM w) < (SELECT count(*) FROM b)",
        OF_WRITES,
    )


def _key(table: ProtectedTable) -> str:
    return ", ".join(f"r.{quote(c)}" for c in table.key)


def _lock(table: ProtectedTable, change: Change) -> str:
    return lock_clause(table, "delete" if change.deletes else "update", change.sets)


def _columns_of_met_rows(table: ProtectedTable, change: Change) -> list[str]:
    """List what is known of each row that is met, once it is locked."""
    mark = mark_of(table)
    met = [f"r.{quote(c)} AS k{n}" for n, c in enumerate(table.key)]
    met.append(f"{mark.shown} AS {FOUND_MARK}")
    if _sets_nothing(table, change):
        met += change.target.kept()
    return met


def _sets_nothing(table: ProtectedTable, change: Change) -> bool:
    """Whether the rows are only locked, and answered as they are: no column is given, and their mark is the scope's."""
    return not (change.deletes or change.sets or mark_of(table).stored)


def _write(table: ProtectedTable, change: Change, values: Mapping[str, str], source: str, kept: Sequence[str]) -> str:
    """Write the rows of `hit`, if the verdict is that the write passes. `kept`: what the answer is ordered by."""
    target = change.target
    if _sets_nothing(table, change):
        return f"SELECT {', '.join((*kept, *target.carried('hit')))} FROM hit WHERE {_PASSES}"
    same = " AND ".join(f"r.{quote(c)} {operator(table.columns[c], '=')} hit.k{n}" for n, c in enumerate(table.key))
    returning = f"RETURNING {', '.join((*kept, *target.kept()))}"
    if change.deletes:
        if table.fence.scope is None:
            same += f" AND {or_unfenced(table.fence.name, table.oid, 'del', each_time=table.kind != 'table')}"
        return f"DELETE FROM {table.sql_name} AS r USING hit WHERE {same} AND {_PASSES} {returning}"
    sets = [f"{quote(c)} = {value}" for c, value in values.items()]
    sets += [f"{column} = {value}" for column, value in mark_of(table).stored]
    return f"UPDATE {table.sql_name} AS r SET {', '.join(sets)} FROM hit{source} WHERE {same} AND {_PASSES} {returning}"


_JUDGED_BY: Final = "SELECT pg_catalog.set_config('fencepost.token', $1, true)"


async def write_matching(
    connection: Connection,
    table: ProtectedTable,
    filters: tuple[Filter, ...],
    write: RowWrite,
    change: Change,
    limit: int,
) -> ManyOutcome:
    """Change (or delete) every row that matches, or none."""
    statement = by_filter(table, filters, change, limit)
    if change.deletes and table.fence.scope is None:
        # In a transaction of its own: the DELETE's trigger needs the token first, and a setting made in the same
        # statement would not be there for every row (the planner decides).
        part = connection.is_in_transaction()
        async with connection.transaction():
            await connection.execute(_JUDGED_BY, f"{table.fence.name}={write.token}")
            rows = await statement.fetch(connection, write)
            if part:  # of a larger one, whose later writes have tokens of their own
                await connection.execute(_JUDGED_BY, "")
    else:
        rows = await statement.fetch(connection, write)
    if any(row["what"] == "too many" for row in rows):
        return TooManyRows(limit)
    refused = [RefusedRow(row["value"], row["mark"]) for row in rows if row["what"] == "refused"]
    if refused:
        return ManyRefused(refused)
    names = [row["value"] for row in rows if row["what"] == "name"] if change.named else None
    return ManyWritten([row["value"] for row in rows if row["what"] == "row"], names)


async def write_elements(
    connection: Connection, table: ProtectedTable, write: RowWrite, change: Change
) -> ManyWritten | Unwritten:
    """Write every element's row (they come back in the body's order), or none. `change.named`: with their names."""
    statement = table.kept(by_array, change)
    rows = await statement.fetch(connection, write)
    if rows and rows[0]["json"] is not None:
        names = [row["resource"] for row in rows] if change.named else None
        return ManyWritten([row["json"] for row in rows], names)
    return Unwritten(frozenset(row["element"] - 1 for row in rows))
