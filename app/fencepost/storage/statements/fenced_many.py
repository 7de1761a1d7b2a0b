"""Multi-row writes: all or nothing over the rows that the filter matched and still match once locked (R10).

hit    the matching rows, locked in key order; a row that changed while we waited is judged as it is now
bad    those whose mark refuses the token
write  the rest, and only if nothing is bad: one stale row refuses the request

Rows that enter the filter meanwhile are neither judged nor written. All of it is one statement.
"""

from dataclasses import dataclass
from typing import Final

from fencepost.fencing.token import Token
from fencepost.storage.connections.connection import Connection
from fencepost.storage.statements.fenced import Change
from fencepost.storage.statements.query import Filter
from fencepost.storage.statements.query_sql import Parameters, render_filters
from fencepost.storage.statements.row_sql import (
    FOUND_MARK,
    MARK,
    body_columns,
    comparison,
    equal,
    json_row,
    literal,
    lock_clause,
    row_resource,
    stored_token,
)
from fencepost.storage.tables.catalog import ProtectedTable, Table, quote

LISTED_REFUSALS: Final = 1000
"""How many refused rows an answer lists; the rest is counted."""


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
    """The rows as the write left them (for DELETE: as they were), as JSON, in key order."""

    rows: list[str]


@dataclass(frozen=True, slots=True)
class ManyRefused:
    """At least one row refused the token; nothing was written."""

    rows: list[RefusedRow]


ManyOutcome = ManyWritten | ManyRefused | TooManyRows


def _hit(table: ProtectedTable, condition: str, token: str, lock: str, limit: int) -> str:
    keys = ", ".join(f"r.{quote(c)}" for c in table.key)
    return (
        f"WITH hit AS MATERIALIZED (SELECT {keys}, r.{MARK} AS {FOUND_MARK} FROM {table.sql_name} AS r"
        f" WHERE {condition} ORDER BY {keys} LIMIT {limit + 1} {lock}),"
        f" bad AS MATERIALIZED (SELECT * FROM hit WHERE NOT {FOUND_MARK} {comparison(table.fence.rule)} {token}),"
        f" verdict AS MATERIALIZED (SELECT (SELECT count(*) FROM hit) AS hits, (SELECT count(*) FROM bad) AS bads)"
    )


def _answer(table: ProtectedTable, limit: int) -> str:
    keys = ", ".join(f"w.k{n}" for n, _ in enumerate(table.key))
    refused = ", ".join(f"r.{quote(c)}" for c in table.key)
    return (
        f" SELECT * FROM (SELECT 'row' AS what, w.json AS value, NULL::bigint AS mark FROM w ORDER BY {keys}) AS a"
        f" UNION ALL SELECT * FROM (SELECT 'refused', {row_resource(table, table.fence.name)}, r.{FOUND_MARK}"
        f" FROM bad AS r ORDER BY {refused} LIMIT {LISTED_REFUSALS}) AS refused"
        f" UNION ALL SELECT 'too many', NULL, hits FROM verdict WHERE hits > {limit}"
        f" UNION ALL SELECT 'suppressed', fencepost.suppressed({literal(table.fence.name)}), NULL FROM verdict"
        f" WHERE bads = 0 AND hits <= {limit} AND hits > (SELECT count(*) FROM w)"
    )


def _write_if(table: Table, limit: int) -> str:
    return f"{equal(table, table.key, 'r', 'hit')} AND (SELECT bads = 0 AND hits <= {limit} FROM verdict)"


def _returning(table: Table, target: str) -> str:
    keys = ", ".join(f"r.{quote(c)} AS k{n}" for n, c in enumerate(table.key))
    return f"RETURNING {json_row(target)}::text AS json, {keys}"


async def _run(connection: Connection, sql: str, arguments: list[object], limit: int) -> ManyOutcome:
    rows = await connection.fetch(sql, *arguments)
    if any(row["what"] == "too many" for row in rows):
        return TooManyRows(limit)
    refused = [RefusedRow(row["value"], row["mark"]) for row in rows if row["what"] == "refused"]
    return ManyRefused(refused) if refused else ManyWritten([row["value"] for row in rows])


async def update_many(
    connection: Connection,
    table: ProtectedTable,
    filters: tuple[Filter, ...],
    token: Token,
    change: Change,
    limit: int,
) -> ManyOutcome:
    """Write every row that matches, or none."""
    arguments: list[object] = [token]
    source = ""
    if change.columns:
        arguments.append(change.body)
        source = f", json_to_record($2::json) AS b({body_columns(table, change.columns)})"
    parameters = Parameters(len(arguments))
    condition = render_filters(table, filters, parameters)
    sets = [f"{quote(c)} = b.{quote(c)}" for c in change.columns]
    sets.append(f"{MARK} = {stored_token(table.fence.rule, '$1::bigint')}")
    lock = lock_clause(table, "update", change.columns)
    sql = (
        _hit(table, condition, "$1::bigint", lock, limit)
        + f", w AS (UPDATE {table.sql_name} AS r SET {', '.join(sets)} FROM hit{source}"
        f" WHERE {_write_if(table, limit)} {_returning(table, change.target)})" + _answer(table, limit)
    )
    return await _run(connection, sql, [*arguments, *parameters.values], limit)


async def delete_many(
    connection: Connection,
    table: ProtectedTable,
    filters: tuple[Filter, ...],
    token: Token,
    target: str,
    limit: int,
) -> ManyOutcome:
    """Delete every row that matches, or none. Runs in a transaction of its own: its trigger needs the token first, and
    a setting made in the same statement would not be there for every row (the planner decides).
    """
    parameters = Parameters(1)
    condition = render_filters(table, filters, parameters)
    sql = (
        _hit(table, condition, "$1::bigint", lock_clause(table, "delete", ()), limit)
        + f", w AS (DELETE FROM {table.sql_name} AS r USING hit"
        f" WHERE {_write_if(table, limit)} {_returning(table, target)})" + _answer(table, limit)
    )
    async with connection.transaction():
        # A table that only looks like the protected one would be emptied without leaving marks.
        ready = await connection.fetchval(
            "SELECT pg_catalog.set_config('fencepost.token', $1, true) FROM fencepost.protected p"
            " WHERE p.relation OPERATOR(pg_catalog.=) pg_catalog.to_regclass($2)",
            f"{table.fence.name}={token}",
            table.sql_name,
        )
        if ready is None:
            await connection.execute("SELECT fencepost.outdated($1)", table.name)
        return await _run(connection, sql, [token, *parameters.values], limit)
