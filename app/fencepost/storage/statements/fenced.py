"""The fenced statements: verdict and data change in one statement, one round trip (R4).

U   UPDATE … WHERE key AND mark < $t RETURNING …      no row came back: a question (R5), asked by the next statement
I   INSERT …                                           fenced_insert.py: its trigger judges (R6)
D   SELECT … FROM fencepost."…_delete"(key, $t)        DELETE with the token bound to this table (R6)
?   SELECT live mark, mark without row                 on a snapshot of its own
"""

from dataclasses import dataclass

import asyncpg

from fencepost.fencing.token import Token
from fencepost.storage.connections.connection import Connection
from fencepost.storage.statements.row_sql import (
    MARK,
    body_columns,
    ceiling_of,
    comparison,
    equal,
    json_row,
    key_match,
    key_parameter,
    literal,
    lock_clause,
    operator,
    parameter_resource,
    row_resource,
    stored_token,
    suppressed_if,
)
from fencepost.storage.tables.catalog import ProtectedTable, Table, quote

Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FencedRow:
    """A row as an accepted operation left it: its JSON text, its mark, and its name where it was asked for."""

    json: str
    mark: int
    resource: str = ""


@dataclass(frozen=True, slots=True)
class Standing:
    """The answer to R5's question about one key: its name, the live row's mark, the mark of a key without a row, and
    what bounds the tokens of its table (R12): `issued`, the newest of its source, or the highest that an external table
    takes, and `max_jump`, how far one may be above the mark.
    """

    resource: str
    live: int | None
    without_row: int | None
    issued: int | None = None
    max_jump: int | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """What an UPDATE sets: `columns` from the JSON body, `defaults` to their defaults (PUT).

    `target` is the SELECT list of the answer.
    """

    columns: tuple[str, ...]
    body: str
    target: str
    defaults: tuple[str, ...] = ()
    named: bool = False
    """Whether the answer shall carry the resource's name."""


def update_sql(table: ProtectedTable, change: Change, *, careful: bool = False) -> str:
    """Write the keyed UPDATE. Parameters: the key's values, the token, and the body if columns are set.

    `careful`: see gateway/table.fence.py.
    """
    token = f"${len(table.key) + 1}::bigint"
    sets = [f"{quote(c)} = b.{quote(c)}" for c in change.columns]
    sets += [f"{quote(c)} = DEFAULT" for c in change.defaults]
    sets.append(f"{MARK} = {stored_token(table.fence.rule, token)}")
    source = (
        f" FROM json_to_record(${len(table.key) + 2}::json) AS b({body_columns(table, change.columns)})"
        if change.columns
        else ""
    )
    name = row_resource(table, table.fence.name) if change.named else "''"
    passes = f"{key_match(table)} AND r.{MARK} {comparison(table.fence.rule)} {token}"
    update = f"UPDATE {table.sql_name} AS r SET {', '.join(sets)}{source} WHERE {passes}"
    returning = f" RETURNING {json_row(change.target)}::text AS json, r.{MARK} AS mark, {name} AS resource"
    if not (careful or table.may_suppress):
        return update + returning
    # Somebody's BEFORE trigger may keep the row from being written, and that looks like a mark that refused: lock the
    # row first, and undo everything when it passed and yet was not written.
    lock = lock_clause(table, "update", (*change.columns, *change.defaults))
    return (
        f"WITH hit AS MATERIALIZED (SELECT FROM {table.sql_name} AS r WHERE {passes} {lock}),"
        f" w AS ({update} AND EXISTS (SELECT FROM hit){returning})"
        f" SELECT w.json, w.mark, w.resource FROM w UNION ALL "
        + suppressed_if(
            table.fence.name,
            "EXISTS (SELECT FROM hit) AND NOT EXISTS (SELECT FROM w)",
            "NULL::bigint, NULL::text",
        )
    )


async def update_row(
    connection: Connection,
    table: ProtectedTable,
    key: Key,
    token: Token,
    change: Change,
    *,
    careful: bool = False,
) -> FencedRow | None:
    """Write a row whose mark lets the token pass; None when no row came back, which is a question (R5)."""
    arguments = (*key, token, change.body) if change.columns else (*key, token)
    rows = await connection.fetch(update_sql(table, change, careful=careful), *arguments)
    return FencedRow(rows[0]["json"], rows[0]["mark"], rows[0]["resource"]) if rows else None


async def delete_row(
    connection: Connection, table: ProtectedTable, key: Key, token: Token, target: str
) -> FencedRow | None:
    """Delete a row whose mark lets the token pass, and leave the token as the key's mark. None is a question (R5)."""
    values = ", ".join(key_parameter(table, n) for n in range(1, len(table.key) + 1))
    rows = await connection.fetch(
        f"SELECT {json_row(target)}::text AS json"
        f" FROM {table.fence.delete_function}({values}, ${len(table.key) + 1}::bigint, {bool(target)}) AS r",
        *key,
        token,
    )
    return FencedRow(rows[0]["json"], token) if rows else None


async def ask(connection: Connection, table: ProtectedTable, key: Key) -> Standing:
    """R5's question, on a snapshot of its own: the statement that found no row reads an older one, nonsense. What was
    issued never falls, so it is asked in the same statement: a later draw only helps.
    """
    row = await connection.fetchrow(
        f"SELECT n.resource, (SELECT r.{MARK} FROM {table.sql_name} AS r WHERE {key_match(table)}) AS live,"
        f" fencepost.mark_without_row({literal(table.fence.name)}, n.resource) AS without_row,"
        f" {ceiling_of(table.fence)}"
        f" FROM (SELECT {parameter_resource(table, table.fence.name)} AS resource) AS n",
        *key,
    )
    if row is None:
        raise RuntimeError("a SELECT without WHERE gave no row")
    return standing_of(row)


async def ask_many(connection: Connection, table: ProtectedTable, body: str) -> list[Standing]:
    """R5's question for every key in a JSON array, in key order."""
    rows = await connection.fetch(
        f"SELECT n.resource, r.{MARK} AS live,"
        f" fencepost.mark_without_row({literal(table.fence.name)}, n.resource) AS without_row,"
        f" {ceiling_of(table.fence)}"
        f" FROM json_to_recordset($1::json) AS b({body_columns(table, table.key)})"
        f" CROSS JOIN LATERAL (SELECT {row_resource(table, table.fence.name, 'b')} AS resource) AS n"
        f" LEFT JOIN {table.sql_name} AS r ON {equal(table, table.key, 'r', 'b')} ORDER BY n.resource",
        body,
    )
    return [standing_of(row) for row in rows]


def standing_of(row: asyncpg.Record) -> Standing:
    """Read the columns of R5's question; the resource is empty where a part of the key has no value."""
    return Standing(row["resource"] or "", row["live"], row["without_row"], row["issued"], row["max_jump"])


async def same_key(connection: Connection, table: Table, key: Key, named: tuple[str, ...], body: str) -> bool:
    """Whether the key columns that the body names have the path's values: compared as their types, not as text."""
    values = dict(zip(table.key, key, strict=True))
    tests = " AND ".join(
        # Not IS NOT DISTINCT FROM, which looks for its `=` along the search_path.
        f"(b.{quote(name)} {operator(table.columns[name], '=')} CAST(${n}::text AS {table.columns[name].base_type}))"
        f" IS TRUE"
        for n, name in enumerate(named, 2)
    )
    result: bool = await connection.fetchval(
        f"SELECT {tests} FROM json_to_record($1::json) AS b({body_columns(table, named)})",
        body,
        *(values[name] for name in named),
    )
    return result


async def fits(connection: Connection, table: Table, key: Key) -> bool:
    """Whether the path's key values survive storing: 1.234 would become 1.23 in numeric(5,2), another row's key."""
    tests = " AND ".join(
        f"{key_parameter(table, n)} {operator(table.columns[name], '=')}"
        f" CAST({key_parameter(table, n)} AS {table.columns[name].type})"
        for n, name in enumerate(table.key, 1)
    )
    result: bool = await connection.fetchval(f"SELECT {tests}", *key)
    return result


async def converts_key(connection: Connection, table: Table, position: int, value: str) -> bool:
    """Whether a key value can be read as its column's type."""
    base_type = table.columns[table.key[position]].base_type
    return await _runs(connection, f"SELECT CAST($1::text AS {base_type})", value)


async def converts_value(connection: Connection, table: Table, column: str, body: str) -> bool:
    """Whether every value that the body (an object, or an array of them) has for a column can be read as its type."""
    function = "json_to_recordset" if body.lstrip().startswith("[") else "json_to_record"
    return await _runs(
        connection,
        f"SELECT pg_catalog.count(b.{quote(column)})"
        f" FROM {function}($1::json) AS b({quote(column)} {table.columns[column].type})",
        body,
    )


async def _runs(connection: Connection, sql: str, argument: str) -> bool:
    try:
        await connection.execute(sql, argument)
    except (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError):  # a domain's CHECK is the latter
        return False
    return True
