"""PgBouncer before PostgreSQL: it drops what a client asks for at connect, and in two modes it shares sessions out."""

import asyncio

import asyncpg
import pytest
from click.testing import CliRunner
from tests.support.in_process import in_process
from tests.support.interleave import Connect, Connection
from tests.support.pooler import pooled

from fencepost.cli.database import on_database
from fencepost.cli.main import main
from fencepost.settings import Settings
from fencepost.startup import StartupError
from fencepost.storage.connections.connection import Limits
from fencepost.storage.connections.engine import Database
from fencepost.storage.demo import load
from fencepost.storage.errors import SessionError
from fencepost.storage.schema import migrate

WEAK = (
    "synchronous_commit = off",
    "default_transaction_isolation = 'repeatable read'",
    "statement_timeout = '1h'",
    "lock_timeout = 0",
    "idle_in_transaction_session_timeout = 0",
    "client_min_messages = error",
    "DateStyle = 'German'",
    "IntervalStyle = 'sql_standard'",
    "TimeZone = 'Asia/Tokyo'",
    "extra_float_digits = 0",
    "jit = on",
    'fencepost.token = "7"',
)
"""What the database gives to sessions that do not set them."""

KEPT = {
    "synchronous_commit": "on",
    "transaction_isolation": "read committed",
    "statement_timeout": "30s",
    "lock_timeout": "10s",
    "idle_in_transaction_session_timeout": "30s",
    "client_min_messages": "warning",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "extra_float_digits": "1",
    "jit": "off",
    "fencepost.token": "",
}

RECORD = """
CREATE TABLE public.seen (setting text);
CREATE FUNCTION public.see() RETURNS event_trigger LANGUAGE plpgsql AS $$
BEGIN INSERT INTO public.seen VALUES (current_setting('synchronous_commit')); END $$;
CREATE EVENT TRIGGER see ON ddl_command_end EXECUTE FUNCTION public.see();"""


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
            async with opened.connection(writing=True) as connection:
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


@pytest.mark.parametrize("mode", ["directly", "session"])
async def test_commands_commit_durably(mode: str, connect: Connect, database: str) -> None:
    await weakened(connect)
    connection = await connect()
    await connection.execute(RECORD)
    try:
        if mode == "directly":
            await commands_are_durable(database)
        else:
            async with pooled(database, "session") as url:
                await commands_are_durable(url)
        assert {row[0] for row in await connection.fetch("SELECT DISTINCT setting FROM public.seen")} == {"on"}
    finally:
        await connection.execute("DROP EVENT TRIGGER see")


async def commands_are_durable(url: str) -> None:
    settings = Settings.model_validate({"database_url": url})

    async def read(connection: Connection) -> str:
        found: str = await connection.fetchval("SHOW synchronous_commit")
        return found

    assert await asyncio.to_thread(on_database, settings, read) == "on"
    await migrate.downgrade(url)
    await migrate.upgrade(url)
    await load(url)


async def test_a_gateway_serves_through_plain_pgbouncer_in_session_mode(connect: Connect, database: str) -> None:
    await weakened(connect)
    await load(database)
    async with pooled(database, "session") as url, in_process(url) as client:
        assert (await client.get("/readyz")).status_code == 200
        answer = await client.patch(
            "/v1/data/orders/order-123", json={"status": "paid"}, headers={"X-Fence-Token": "40"}
        )
        assert answer.status_code == 200, answer.text
        lease = {"lock": "a", "owner": "b", "ttl_ms": 1000}
        assert (await client.post("/v1/leases", json=lease)).status_code == 201


@pytest.mark.parametrize("mode", ["transaction", "statement"])
@pytest.mark.parametrize("options", ["", "server_round_robin = 1\n"])
async def test_a_pooler_that_shares_sessions_out_is_refused_at_the_start(
    mode: str, options: str, database: str
) -> None:
    await load(database)
    async with pooled(database, mode, ignored=True, options=options) as url:
        with pytest.raises(StartupError, match="connection pooler in transaction or statement mode"):
            async with in_process(url):
                pass
        for command in (["doctor"], ["status"], ["migrate"], ["protect", "orders"]):
            result = await asyncio.to_thread(CliRunner().invoke, main, [*command, "--database-url", url])
            assert result.exit_code == 1, (command, result.output)
            assert "connection pooler in transaction or statement mode" in result.output, (command, result.output)
            assert len(result.output.strip().splitlines()) == 1, result.output


@pytest.mark.parametrize("idle", [1, 2, 5])
async def test_a_pooler_with_idle_sessions_to_choose_from_is_refused(idle: int, database: str) -> None:
    """The more sessions it has lying about, the less likely it is that it shows which one it gives to whom."""
    async with pooled(database, "transaction", ignored=True, options="server_round_robin = 1\n") as url:
        await busy(url, idle)
        for _ in range(3):
            with pytest.raises(StartupError, match="connection pooler in transaction or statement mode"):
                async with in_process(url):
                    pass


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


async def test_doctor_shows_what_is_in_force(connect: Connect, database: str) -> None:
    await weakened(connect)
    async with pooled(database, "session") as url:
        result = await asyncio.to_thread(CliRunner().invoke, main, ["doctor", "--database-url", url])
    line = next(line for line in result.output.splitlines() if "session:" in line)
    assert "synchronous_commit = on" in line, result.output
    assert "read committed" in line, result.output
    assert "sets its own" not in result.output
