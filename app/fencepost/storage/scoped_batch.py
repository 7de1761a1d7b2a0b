"""The statements of scoped writes (R8) as a batch runs them: scoped.py's steps, each for many operations at once.

S   SELECT scopes of rows, or of what key and body name        no locks
E   SELECT … FROM fencepost.enter_each(…)                      waits for nobody; one operation per scope and batch
W   UPDATE | DELETE | INSERT … WHERE key AND scope = $scope    later, so that it sees what older holders committed
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fencepost.fencing.scope import Scope
from fencepost.fencing.token import Token
from fencepost.storage.catalog import Table, quote
from fencepost.storage.connection import Connection
from fencepost.storage.fenced import Change, Key
from fencepost.storage.fenced_batch import Statement, held
from fencepost.storage.row_sql import (
    body_columns,
    json_row,
    key_match,
    key_parameter,
    lock_clause,
    operator,
    resource_sql,
    row_resource,
)
from fencepost.storage.scope_names import full_columns, row_scope


@dataclass(frozen=True, slots=True)
class EnteredEach:
    """What became of one operation's scope. `refused_by` is the mark that refused."""

    verdict: Literal["entered", "refused", "busy", "unclear"]
    refused_by: int | None


async def enter_each(
    connection: Connection, table: Table, scope: Scope, scopes: Sequence[str], tokens: Sequence[Token]
) -> list[EnteredEach]:
    """Enter scopes, all of them different, each under a token of its own."""
    rows = await connection.fetch(
        "SELECT e.verdict, e.refused_by FROM fencepost.enter_each($1, $2, $3, $4, $5) AS e ORDER BY e.number",
        scope.prefix,
        list(scopes),
        list(tokens),
        table.oid,
        scope.template,
    )
    return [EnteredEach(*row) for row in rows]


async def scopes_of_rows(connection: Connection, table: Table, scope: Scope, keys: Sequence[Key]) -> list[str | None]:
    """Read the scopes of rows; None: there is no row."""
    names, arrays = _arrays(table)
    match = " AND ".join(
        f"r.{quote(c)} {operator(table.columns[c], '=')} CAST(x.{name} AS {table.columns[c].base_type})"
        for name, c in zip(names, table.key, strict=True)
    )
    rows = await connection.fetch(
        f"SELECT (SELECT {row_scope(table, scope)} FROM {table.sql_name} AS r WHERE {match})"
        f" FROM ROWS FROM ({arrays}) WITH ORDINALITY AS x({', '.join(names)}, o) ORDER BY x.o",
        *([key[n] for key in keys] for n in range(len(names))),
    )
    return [row[0] for row in rows]


async def scopes_named(
    connection: Connection, table: Table, scope: Scope, writes: Sequence[tuple[Key, str]]
) -> list[str | None]:
    """Render the scopes that key and body (an object, or an array of one) name together; None: a value is missing."""
    keyed = bool(writes[0][0])
    names, arrays = _arrays(table) if keyed else ([], "")
    key = dict(zip(table.key, names, strict=True)) if keyed else {}
    parts = [
        (
            table.columns[c].base_name,
            f"CAST(x.{key[c]} AS {table.columns[c].base_type})" if c in key else f"b.{quote(c)}",
        )
        for c in scope.columns
    ]
    wanted = [c for c in scope.columns if c not in key]
    reads = "json_to_record" if keyed else "json_to_recordset"
    source = f" CROSS JOIN LATERAL {reads}(x.body::json) AS b({full_columns(table, wanted)})" if wanted else ""
    every = ", ".join(
        [arrays, f"pg_catalog.unnest(${len(names) + 1}::text[])"] if arrays else ["pg_catalog.unnest($1::text[])"]
    )
    rows = await connection.fetch(
        f"SELECT {resource_sql(scope.prefix, parts)} FROM ROWS FROM ({every}) WITH ORDINALITY"
        f" AS x({', '.join([*names, 'body', 'o'])}){source} ORDER BY x.o",
        *([each[n] for each, _ in writes] for n in range(len(names))),
        [body for _, body in writes],
    )
    return [row[0] for row in rows]


def _arrays(table: Table) -> tuple[list[str], str]:
    names = [f"k{n}" for n in range(len(table.key))]
    return names, ", ".join(f"pg_catalog.unnest(${n}::text[])" for n in range(1, len(names) + 1))


def update(table: Table, scope: Scope, change: Change) -> Statement:
    """Write the UPDATE of one row of the scope that was entered; `change` sets something."""
    body, number = len(table.key) + 2, len(table.key) + 2
    sets = [f"{quote(c)} = b.{quote(c)}" for c in change.columns]
    sets += [f"{quote(c)} = DEFAULT" for c in change.defaults]
    source = ""
    if change.columns:
        source = f" FROM json_to_record(${body}::json) AS b({body_columns(table, change.columns)})"
        number += 1
    within = _within(table, scope)
    unheld = held(table, within, lock_clause(table, "update", (*change.columns, *change.defaults)))
    return Statement(
        f"UPDATE {table.sql_name} AS r SET {', '.join(sets)}{source} WHERE {within} AND {unheld}"
        f" RETURNING ${number}::int, {json_row(change.target)}::text, 0::bigint, ''",
        bool(change.columns),
        by_scope=True,
    )


def delete(table: Table, scope: Scope, target: str) -> Statement:
    """Write the DELETE of one row of the scope that was entered."""
    within = _within(table, scope)
    unheld = held(table, within, lock_clause(table, "delete", ()))
    return Statement(
        f"DELETE FROM {table.sql_name} AS r WHERE {within} AND {unheld}"
        f" RETURNING ${len(table.key) + 2}::int, {json_row(target)}::text, 0::bigint, ''",
        with_body=False,
        by_scope=True,
    )


def insert(table: Table, name: str, columns: tuple[str, ...], target: str) -> Statement:
    """Write the INSERT of the one row in a JSON array into the scope that was entered."""
    names = ", ".join(quote(c) for c in columns)
    return Statement(
        f"INSERT INTO {table.sql_name} AS r ({names}) SELECT {names}"
        f" FROM json_to_recordset($2::json) AS b({body_columns(table, columns)})"
        f" WHERE $1::text IS NOT NULL ON CONFLICT DO NOTHING"
        f" RETURNING $3::int, {json_row(target)}::text, 0::bigint, {row_resource(table, name)}",
        with_body=True,
        by_scope=True,
    )


def create(table: Table, change: Change) -> Statement:
    """Write the INSERT of the row that a PUT names into the scope that was entered."""
    names = ", ".join([*(quote(c) for c in table.key), *(quote(c) for c in change.columns)])
    values = [key_parameter(table, n) for n in range(1, len(table.key) + 1)]
    values += [f"b.{quote(c)}" for c in change.columns]
    entered = number = len(table.key) + 1
    source = ""
    if change.columns:
        number += 1
        source = f" FROM json_to_record(${number}::json) AS b({body_columns(table, change.columns)})"
    return Statement(
        f"INSERT INTO {table.sql_name} AS r ({names}) SELECT {', '.join(values)}{source}"
        f" WHERE ${entered}::text IS NOT NULL ON CONFLICT DO NOTHING"
        f" RETURNING ${number + 1}::int, {json_row(change.target)}::text, 0::bigint, ''",
        bool(change.columns),
        by_scope=True,
    )


def _within(table: Table, scope: Scope) -> str:
    return f"{key_match(table)} AND {row_scope(table, scope)} = ${len(table.key) + 1}::text"
