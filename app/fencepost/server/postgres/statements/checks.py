"""What only PostgreSQL knows of keys and values: whether two spellings are one key, and what a column can store."""

from typing import Any, Final

import asyncpg

from fencepost.server.postgres.connections.connection import Connection
from fencepost.server.postgres.connections.transactions import savepoint
from fencepost.server.postgres.statements.given import body_columns, body_json
from fencepost.server.postgres.statements.parameters import OF_KEY, Bound, Key, compiled
from fencepost.server.postgres.statements.row_sql import key_parameter, operator
from fencepost.server.postgres.tables.catalog import Table, quote
from fencepost.server.postgres.tables.effects import HAS_RULES

_UNREADABLE: Final = (
    *(asyncpg.DataError, asyncpg.IntegrityConstraintViolationError),  # a domain's CHECK is the latter
    *(asyncpg.PostgresSyntaxError, asyncpg.InternalServerError),  # some types of extensions
)


async def same_key(connection: Connection, table: Table, key: Key, named: tuple[str, ...], body: str) -> bool:
    """Whether the key columns that the body names have the path's values: compared as their types, not as text."""
    bound = Bound()
    source = f"json_to_record({body_json(table, named, bound.add(body, 'json'))}) AS b({body_columns(table, named)})"
    tests = " AND ".join(
        # Not IS NOT DISTINCT FROM, which looks for its `=` along the search_path.
        f"(b.{quote(name)} {operator(table.columns[name], '=')} {key_parameter(table, table.key.index(name))}) IS TRUE"
        for name in named
    )
    statement = compiled(f"SELECT {tests} FROM {source}", (*bound.parameters, *OF_KEY))
    result: bool = await statement.value(connection, key)
    return result


async def fits(connection: Connection, table: Table, key: Key) -> bool:
    """Whether the path's key values survive storing: 1.234 would become 1.23 in numeric(5,2), another row's key."""
    tests = " AND ".join(
        f"{key_parameter(table, n)} {operator(table.columns[name], '=')}"
        f" CAST({key_parameter(table, n)} AS {table.columns[name].type})"
        for n, name in enumerate(table.key)
    )
    result: bool = await compiled(f"SELECT {tests}", OF_KEY).value(connection, key)
    return result


async def converts_key(connection: Connection, table: Table, position: int, value: str) -> bool:
    """Whether a key value can be read as its column's type."""
    bound = Bound()
    return await _runs(connection, f"SELECT CAST({bound.add(value)} AS {_key_type(table, position)})", bound)


async def converts_value(connection: Connection, table: Table, column: str, body: str) -> bool:
    """Whether every value that the body (an object, or an array of them) has for a column can be read as its type."""
    bound = Bound()
    function = "json_to_recordset" if body.lstrip().startswith("[") else "json_to_record"
    return await _runs(
        connection,
        f"SELECT pg_catalog.count(b.{quote(column)})"
        f" FROM {function}({body_json(table, (column,), bound.add(body, 'json'))})"
        f" AS b({quote(column)} {table.columns[column].type})",
        bound,
    )


async def converts_text(connection: Connection, table: Table, column: str, value: str | tuple[str, ...]) -> bool:
    """Whether what a filter compares a column with can be read as its type: a text, or each of several."""
    bound, type_ = Bound(), table.columns[column].base_type
    texts = bound.add([value] if isinstance(value, str) else list(value), "text[]")
    read = f"SELECT pg_catalog.count(CAST(v AS {type_})) FROM pg_catalog.unnest({texts}) AS v"
    return await _runs(connection, read, bound)


def _key_type(table: Table, position: int) -> str:
    return table.columns[table.key[position]].base_type


async def _runs(connection: Connection, text: str, bound: Bound) -> bool:
    statement: Any = compiled(text, bound.parameters)
    try:
        async with savepoint(connection):
            await statement.fetch(connection, None)
    except _UNREADABLE:
        return False
    return True


_REKEYS: Final = f"""
WITH RECURSIVE part(oid) AS (
  SELECT $1::text::regclass::oid UNION ALL SELECT i.inhrelid FROM part JOIN pg_inherits i ON i.inhparent = part.oid)
SELECT EXISTS (SELECT FROM part c WHERE {HAS_RULES})
    OR EXISTS (SELECT FROM part JOIN pg_trigger t ON t.tgrelid = part.oid
                WHERE NOT t.tgisinternal AND t.tgtype::int & 7 = 7 AND t.tgenabled <> 'D'
                  AND NOT pg_catalog.starts_with(t.tgname::text, 'zzz_fencepost_'))"""
"""The first three bits of tgtype are ROW, BEFORE and INSERT."""


async def keys_may_change(connection: Connection, table: Table) -> bool:
    """Whether a trigger or rule that is not ours may store a row under another key than was sent."""
    changes: bool = await connection.fetchval(_REKEYS, table.sql_name)
    return changes
