"""PgBouncer before PostgreSQL: it drops what a client asks for at connect, and in two modes it shares sessions out."""

import asyncpg
import pytest
from tests.support.gateways import in_process
from tests.support.interleave import Connect
from tests.support.postgres import pooled
from tests.support.servers import command

from fencepost.server.ops.demo import load
from fencepost.server.postgres.connection import Limits
from fencepost.server.postgres.database import Database
from fencepost.server.postgres.errors import SessionError
from fencepost.server.startup import StartupError

WEAK = (
    "synchronous_commit = off", "default_transaction_isolation = 'repeatable read'", "statement_timeout = '1h'",
    "lock_timeout = 0", "idle_in_transaction_session_timeout = 0", "client_min_messages = error",
    "DateStyle = 'German'", "IntervalStyle = 'sql_standard'", "TimeZone = 'Asia/Tokyo'", "extra_float_digits = 0",
    "jit = on", "bytea_output = 'escape'", 'fencepost.token = "7"',
)  # fmt: skip
"""What the database gives to sessions that do not set them."""

KEPT = {
    "synchronous_commit": "on", "transaction_isolation": "read committed", "statement_timeout": "30s",
    "lock_timeout": "10s", "idle_in_transaction_session_timeout": "30s", "client_min_messages": "warning",
    "DateStyle": "ISO, MDY", "IntervalStyle": "postgres", "TimeZone": "UTC", "extra_float_digits": "1", "jit": "off",
    "bytea_output": "hex", "fencepost.token": "",
}  # fmt: skip


async def weakened(connect: Connect) -> None:
    connection = await connect()
    name = await connection.fetchval("SELECT quote_ident(current_database())")
    for setting in WEAK:
        await connection.execute(f"ALTER DATABASE {name} SET {setting}")


@pytest.mark.parametrize("through", ["directly", "PgBouncer", "PgBouncer that drops in silence"])
async def test_what_the_rules_stand_on_is_in_force_in_every_session(
    through: str, connect: Connect, database: str
) -> None:
    await weakened(connect)
    if through == "directly":
        await every_session_has_it(database)
        return
    async with pooled(database, "session", ignored="silence" in through) as url:
        await every_session_has_it(url)


async def every_session_has_it(url: str) -> None:
    opened = await Database.open(url, Limits())
    try:
        for _ in range(2):  # the second time as it came back
            async with opened.for_writing() as connection:
                assert {name: await connection.fetchval(f"SHOW {name}") for name in KEPT} == KEPT
            async with opened.batch_connection() as connection:
                found = {name: await connection.fetchval(f"SHOW {name}") for name in KEPT}
                assert found == KEPT | {"lock_timeout": "10ms"}
        async with opened.connection() as connection:
            await connection.execute("BEGIN")  # left open: such a connection is not lent again
        async with opened.connection() as connection:
            assert {name: await connection.fetchval(f"SHOW {name}") for name in KEPT} == KEPT
    finally:
        await opened.close()


@pytest.mark.parametrize(("mode", "options"), [("transaction", ""), ("statement", "server_round_robin = 1\n")])
async def test_a_pooler_that_shares_sessions_out_is_refused_at_the_start(
    mode: str, options: str, database: str
) -> None:
    await load(database)
    async with pooled(database, mode, ignored=True, options=options) as url:
        with pytest.raises(StartupError, match="connection pooler in transaction or statement mode"):
            async with in_process(url):
                pass
        for arguments in (["doctor"], ["status"], ["migrate"], ["protect", "orders"]):
            result = await command(*arguments, database=url)
            assert result.exit_code == 1, (arguments, result.output)
            assert "connection pooler in transaction or statement mode" in result.output, (arguments, result.output)
            assert len(result.output.strip().splitlines()) == 1, result.output


@pytest.mark.parametrize("at_once", [1, 8])
async def test_a_pool_whose_connections_share_a_session_is_not_opened(at_once: int, database: str) -> None:
    """As a pooler does that was in session mode when the gateway looked, and is reloaded with another one."""
    async with pooled(database, "transaction", ignored=True) as url:
        await busy(url, at_once)
        with pytest.raises(SessionError, match="transaction or statement mode"):
            await opened_twice(url)


async def opened_twice(url: str) -> None:
    for _ in range(2):
        opened = await Database.open(url, Limits())
        try:
            async with opened.connection() as one, opened.connection() as other:
                await one.fetchval("SELECT 1")
                await other.fetchval("SELECT 1")
        finally:
            await opened.close()


async def busy(url: str, at_once: int) -> None:
    """Have the pooler open so many sessions, and leave them idle."""
    connections = [await asyncpg.connect(url, statement_cache_size=0) for _ in range(at_once)]
    for connection in connections:
        await connection.execute("BEGIN; SELECT 1")
    for connection in connections:
        await connection.execute("COMMIT")
    for connection in connections:
        await connection.close()
