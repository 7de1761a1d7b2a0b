"""Makes the tables of a run, and drops them. No other table is touched."""

from collections.abc import Sequence
from typing import Final, TypeAlias

import asyncpg

from fencepost.server.ops.protecting.protect import ProtectError, protect, unprotect
from fencepost.testing.torture.errors import RunFailedError
from fencepost.testing.torture.tables import Fenced, Kind

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

_WITHIN: Final = 30.0  # seconds
_COLUMNS: Final[dict[Kind, str]] = {
    "strict": "id text PRIMARY KEY, value text NOT NULL",
    "epoch": "id text PRIMARY KEY, value text NOT NULL",
    "scoped": "id text PRIMARY KEY, value text NOT NULL",
    "blocks": "id text PRIMARY KEY, value text NOT NULL",
    "ledger": "id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, account text NOT NULL, value text NOT NULL",
    "sets": "id text PRIMARY KEY, value text NOT NULL",
    "plain": "id text PRIMARY KEY, value text NOT NULL",
}


async def make(database_url: str, tables: Sequence[Fenced], source: str) -> None:
    """Create and protect them: all, or none is left. Raises asyncpg.PostgresError, ProtectError, OSError."""
    connection = await asyncpg.connect(database_url)
    made: list[Fenced] = []
    try:
        for table in tables:
            await _make(connection, table, source)
            made.append(table)
    except BaseException:
        await _drop_each(connection, made)
        raise
    finally:
        await connection.close()


async def _make(connection: Connection, table: Fenced, source: str) -> None:
    await connection.execute(f"CREATE TABLE public.{table.name} ({_COLUMNS[table.kind]})")
    if table.kind == "plain":
        return
    scope = f"{table.prefix}_scope/{{id}}" if table.kind == "scoped" else None
    try:
        await protect(connection, f"public.{table.name}", rule=table.rule, source=source, scope=scope)
    except BaseException:
        await connection.execute(f"DROP TABLE public.{table.name}")
        raise


async def drop(database_url: str, tables: Sequence[Fenced]) -> None:
    """Drop them. Their marks stay in the schema fencepost: a mark never falls. Raises RunFailedError."""
    try:
        connection = await asyncpg.connect(database_url, timeout=_WITHIN, server_settings={"lock_timeout": "30s"})
        try:
            await _drop_each(connection, tables)
        finally:
            await connection.close()
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, ProtectError) as error:
        names = ", ".join(f"public.{table.name}" for table in tables)
        raise RunFailedError(
            f"the tables of the run could not be dropped: {str(error) or type(error).__name__}. Those that are left of"
            f" {names} have to be dropped by hand: fencepost unprotect TABLE, and DROP TABLE"
        ) from error


async def _drop_each(connection: Connection, tables: Sequence[Fenced]) -> None:
    for table in tables:
        name = f"public.{table.name}"
        if not await connection.fetchval("SELECT to_regclass($1) IS NOT NULL", name):
            continue
        if table.kind != "plain":
            await unprotect(connection, name)
        await connection.execute(f"DROP TABLE {name}")
