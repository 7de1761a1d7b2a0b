"""Connections of the gateway that cannot be had, come back broken, or have become read-only; the pool."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

import pytest
from tests.support.gateways import in_process
from tests.support.interleave import Connect, Connection
from tests.support.manual_clock import settled
from tests.support.servers import command

from fencepost.cli.migrate import GRANTS
from fencepost.server.ops.demo import load
from fencepost.server.postgres.connection import Limits, gateway_connection
from fencepost.server.postgres.database import Database
from fencepost.server.postgres.errors import RefusedError, UnavailableError
from fencepost.testing.servers.processes import eventually


async def test_a_connection_that_breaks_while_it_is_given_back_changes_no_answer(database: str) -> None:
    opened = await Database.open(database, Limits(pool_size=1))
    try:
        for _ in range(3):
            async with opened.connection() as connection:
                # The server's FIN arrives in the turn of the event loop after this block.
                asyncio.get_running_loop().call_soon(gateway_connection(connection).terminate)
            await asyncio.sleep(0)
        async with opened.connection() as connection:
            assert await connection.fetchval("SELECT 1") == 1
    finally:
        await opened.close()


LIMIT = 5


@pytest.fixture
async def limited(connect: Connect, database: str) -> AsyncIterator[str]:
    """Give the URL for a role that may have LIMIT connections."""
    owner = await connect()
    await owner.execute(f"CREATE ROLE gate LOGIN PASSWORD 'gate' CONNECTION LIMIT {LIMIT}")
    for grant in ("GRANT USAGE ON SCHEMA fencepost TO {role}", *GRANTS):
        await owner.execute(grant.format(role="gate"))
    host = database.partition("@")[2]
    yield f"postgresql://gate:gate@{host}"
    await owner.execute("DROP OWNED BY gate; DROP ROLE gate")


async def test_with_fewer_connections_than_it_may_have_the_gateway_answers_everybody(limited: str) -> None:
    reports: list[str] = []
    opened = await Database.open(limited, Limits(pool_size=10, batch_pool_size=1), report=reports.append)

    async def ask() -> int:
        async with opened.connection() as connection:
            found: int = await connection.fetchval("SELECT pg_backend_pid()")
            return found

    try:
        pids = await asyncio.gather(*(ask() for _ in range(200)))
        # One more is for batches, one for leases; one that was just closed counts until its backend has ended.
        assert 0 < len(set(pids)) <= LIMIT - 2
        assert len(reports) == 1, reports
        assert "no connection left" in reports[0]
    finally:
        await opened.close()


async def test_doctor_finds_that_there_is_no_room_for_what_a_gateway_may_open(limited: str) -> None:
    pools = ("--pool-size", "1", "--batch-pool-size", "1", "--lease-pool-size", "2")
    fits = await command("doctor", *pools, database=limited)
    assert "ok       connections: a gateway of 1 workers may open 5 connections" in fits.output, fits.output
    found = await command("doctor", database=limited)
    assert "WARNING  connections: a gateway of 1 workers may open 22 connections" in found.output, found.output
    assert f"PostgreSQL has {LIMIT} for this role" in found.output


@pytest.fixture
async def demo(connect: Connect, database: str) -> Connection:
    """Give a connection that is never read-only to a database with the demo table."""
    await load(database)
    connection = await connect()
    await connection.execute("SET default_transaction_read_only = off")
    return connection


async def name_of(connection: Connection) -> str:
    name: str = await connection.fetchval("SELECT quote_ident(current_database())")
    return name


READ_ONLY = "default_transaction_read_only"
NO_TRIGGERS = "session_replication_role"
UNWRITABLE = {
    "explicitly off": (
        READ_ONLY,
        "ALTER DATABASE {name} SET {setting} = on",
        "ALTER DATABASE {name} SET {setting} = off",
    ),
    "server": (READ_ONLY, "ALTER SYSTEM SET {setting} = on", "ALTER SYSTEM RESET {setting}"),
    "no triggers": (
        NO_TRIGGERS,
        "ALTER DATABASE {name} SET {setting} = replica",
        "ALTER DATABASE {name} RESET {setting}",
    ),
    "no triggers in the server": (NO_TRIGGERS, "ALTER SYSTEM SET {setting} = replica", "ALTER SYSTEM RESET {setting}"),
}


@pytest.mark.parametrize("how", UNWRITABLE)
async def test_a_database_that_takes_no_fenced_writes_is_not_ready_and_writes_go_on_when_it_is_lifted(
    how: str, demo: Connection, database: str
) -> None:
    name = await name_of(demo)
    setting, *statements = UNWRITABLE[how]
    on, off = (each.format(name=name, setting=setting) for each in statements)
    tokens = iter(range(100, 10_000))
    async with in_process(database, pool_timeout=10) as client:

        async def write(key: bool = False) -> tuple[int, str]:
            headers = {"X-Fence-Token": str(token := next(tokens))} | (
                {"Idempotency-Key": f'"k{token}"'} if key else {}
            )
            answer = await client.patch("/v1/data/orders/order-123", json={"status": "paid"}, headers=headers)
            body = "" if answer.is_success else f"{answer.json()['code']} {answer.json()['detail']}"
            return answer.status_code, body

        async def ready() -> tuple[int, str]:
            answer = await client.get("/readyz")
            return answer.status_code, answer.text

        assert {await write() for _ in range(5)} == {(200, "")}
        await apply(demo, on)
        try:

            async def not_ready() -> bool:
                status, text = await ready()
                return status == 503 and setting in text

            await eventually(not_ready, what="/readyz says why")
            answers = await asyncio.gather(*(write(key) for key in (False, True) for _ in range(20)))
            assert {status for status, _ in answers} == {503}
            assert all("FP010" in body and f"{setting} is " in body for _, body in answers), answers
            assert (await client.get("/v1/data/orders/order-123")).status_code == 200
            lease = await client.post("/v1/leases", json={"lock": "a", "owner": "b", "ttl_ms": 1000})
            assert (lease.status_code, lease.json()["code"]) == (503, "FP010"), lease.text
        finally:
            await apply(demo, off)

        async def writes() -> bool:
            return (await write())[0] == 200

        await eventually(writes, what="a write is accepted")
        assert {await write() for _ in range(30)} == {(200, "")}
        assert {status for status, _ in await asyncio.gather(*(write(key=True) for _ in range(30)))} <= {200, 409}
        assert (await ready())[0] == 200


async def apply(connection: Connection, statement: str) -> None:
    await connection.execute(statement)
    await connection.execute("SELECT pg_reload_conf()")


async def test_a_statement_that_is_refused_as_read_only_by_itself_stops_no_other_write(
    demo: Connection, database: str
) -> None:
    await demo.execute(
        """CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
           BEGIN RAISE EXCEPTION 'elsewhere' USING ERRCODE = '25006'; END $$;
           CREATE TRIGGER refuse BEFORE UPDATE ON public.orders FOR EACH ROW WHEN (new.note = 'no')
           EXECUTE FUNCTION public.refuse()"""
    )
    async with in_process(database) as client:
        refused = await client.patch("/v1/data/orders/order-123", json={"note": "no"}, headers={"X-Fence-Token": "50"})
        assert (refused.status_code, refused.json()["code"]) == (503, "FP010")
        assert "elsewhere" in refused.json()["detail"]
        other = await client.patch("/v1/data/orders/order-124", json={"note": "y"}, headers={"X-Fence-Token": "50"})
        assert other.status_code == 200, other.text


async def test_an_exhausted_pool_reports_it_in_time(database: str) -> None:
    pool = await Database.open(database, Limits(pool_size=1, pool_timeout=0.2))
    try:
        async with pool.connection():
            with pytest.raises(UnavailableError, match=r"no connection to PostgreSQL within 0\.2 s"):
                async with pool.connection():
                    pass
        async with pool.connection() as connection:
            assert await connection.fetchval("SELECT 1") == 1
    finally:
        await pool.close()


async def test_errors_of_reads_are_mapped_on_each_way_to_a_connection(database: str) -> None:
    """Callers know StorageError only; with all connections lent, a question about the database gets a new one."""
    opened = await Database.open(database, Limits(pool_size=1))
    try:
        for lend in (opened.connection, opened.spare):
            with pytest.raises(RefusedError, match="division by zero"):
                async with lend() as connection:
                    await connection.execute("SELECT 1 / 0")
        async with opened.connection():
            with pytest.raises(RefusedError, match="division by zero"):
                async with opened.spare() as connection:
                    await connection.execute("SELECT 1 / 0")
    finally:
        await opened.close()


async def test_a_connection_that_ends_as_it_is_handed_over_is_replaced(database: str) -> None:
    pool = await Database.open(database, Limits(pool_size=1))

    async def used(lent: AbstractAsyncContextManager[Connection]) -> int:
        async with lent as connection:
            found: int = await connection.fetchval("SELECT 1")
            return found

    try:
        for lend in (pool.for_writing, pool.batch_connection, pool.connection):
            async with lend() as first:
                waits = asyncio.create_task(used(lend()))
                await settled()
            gateway_connection(first).terminate()  # its next caller has not run yet
            assert await waits == 1
    finally:
        await pool.close()


async def test_more_than_may_wait_for_a_connection_are_refused_at_once(database: str) -> None:
    pool = await Database.open(database, Limits(pool_size=1, pool_timeout=30, most_waiting=1))
    try:
        async with pool.connection():
            waiting = asyncio.create_task(ask(pool))
            await asyncio.sleep(0)  # it runs up to where it waits
            with pytest.raises(UnavailableError, match="FENCEPOST_MAX_WAITING"):
                await ask(pool)
            line = asyncio.create_task(ask(pool, counted=False))  # of a batch, which has a share of its own
            await settled()
            assert not line.done()
        assert (await waiting, await line) == (1, 1)
    finally:
        await pool.close()


async def ask(pool: Database, *, counted: bool = True) -> int:
    async with pool.connection(counted=counted) as connection:
        found: int = await connection.fetchval("SELECT 1")
        return found
