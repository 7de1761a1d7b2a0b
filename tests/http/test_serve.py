"""`fencepost serve` as a process: what it starts, and what it leaves behind however it ends."""

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import httpx
import pytest
from tests.support.gateways import STARTS_WITHIN, launch, serving_as_it_is, serving_process, workers
from tests.support.interleave import Connect, Connection
from tests.support.servers import all_gone

from fencepost.server.ops.embedded_files import running_url
from fencepost.testing.servers.postgres import run_on
from fencepost.testing.servers.processes import PATIENCE, descendants, eventually

ORDER = "/v1/data/orders/order-123"


@asynccontextmanager
async def row_held(directory: Path) -> AsyncIterator[Connection]:
    """Hold the demo row's lock on a connection of our own, so that a request waits for it."""
    url = running_url(directory / "data")
    assert url is not None
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("BEGIN")
        await connection.execute("SELECT FROM orders WHERE order_id = 'order-123' FOR UPDATE")
        yield connection
    finally:
        connection.terminate()


async def a_request_waits(directory: Path) -> None:
    url = running_url(directory / "data")
    assert url is not None
    observer = await asyncpg.connect(url)

    async def waits() -> bool:
        query = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock')"
        return bool(await observer.fetchval(query))

    try:
        await eventually(waits, what="a request waiting for the row")
    finally:
        await observer.close()


async def refuses_connections(url: str) -> None:
    """Return once nothing listens there: the gateway drains."""
    host, _, port = url.removeprefix("http://").rpartition(":")

    async def none_listens() -> bool:
        try:
            _, writer = await asyncio.open_connection(host, int(port))
        except ConnectionRefusedError:
            return True
        except ConnectionResetError:  # it was closed between our two packets: look again
            return False
        writer.close()
        await writer.wait_closed()
        return False

    await eventually(none_listens, what="the end of listening")


def patch_order(client: httpx.AsyncClient, url: str, token: int, status: str) -> "asyncio.Task[httpx.Response]":
    headers = {"X-Fence-Token": str(token)}
    return asyncio.create_task(client.patch(url + ORDER, headers=headers, json={"status": status}))


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE) as client:
        yield client


async def test_neither_ctrl_c_nor_kill_9_leaves_a_process_or_loses_a_write(
    short_dir: Path, client: httpx.AsyncClient
) -> None:
    """What PostgreSQL has committed outlives a kill -9: integration/test_embedded.py."""
    async with serving_process(short_dir, "--workers", "2") as gateway:
        assert (await patch_order(client, gateway.url, 34, "shipped")).status_code == 200
        left = gateway.processes()
        gateway.interrupt()
        assert await gateway.ended() == 0
        await all_gone(left)
        assert "Traceback" not in gateway.errors.read_text()
    async with serving_process(short_dir, "--workers", "2") as gateway:
        assert (await client.get(gateway.url + ORDER)).json()["status"] == "shipped"
        assert "not properly shut down" not in (short_dir / "data" / "postgresql.log").read_text()
        left = gateway.processes()
        assert len(left) >= 4
        gateway.process.kill()
        gateway.process.wait()
        await all_gone(left)


async def test_ctrl_c_while_the_database_is_being_made_leaves_nothing_half_done_and_a_first_start_greets(
    short_dir: Path,
) -> None:
    process = launch("--port", "0", "--data-dir", str(short_dir / "data"), errors=short_dir / "stderr")
    with process:

        async def initdb_works() -> bool:
            return (short_dir / "data" / "pgdata.new" / "base").exists()

        await eventually(initdb_works, within=STARTS_WITHIN, what="the beginning of initdb")
        left = [process.pid, *descendants(process.pid)]
        os.killpg(process.pid, signal.SIGINT)
        await all_gone(left)
        assert process.wait() == 0
    assert (short_dir / "stderr").read_text() == ""
    assert not (short_dir / "data" / "pgdata").exists()
    # The next start is the first one: its greeting names the docs and a request that works.
    async with serving_as_it_is(short_dir) as gateway:
        assert f"{gateway.url}/docs" in gateway.greeting
        curl = gateway.greeting.rpartition("try")[2].strip()
        answer = await asyncio.to_thread(
            subprocess.run, f"{curl} -s", shell=True, capture_output=True, text=True, check=True
        )
        assert '"shipped"' in answer.stdout


@workers
async def test_sigterm_finishes_the_request_in_flight(short_dir: Path, client: httpx.AsyncClient, workers: str) -> None:
    async with serving_process(short_dir, "--workers", workers) as gateway:
        async with row_held(short_dir) as holder:
            request = patch_order(client, gateway.url, 34, "shipped")
            await a_request_waits(short_dir)
            gateway.process.send_signal(signal.SIGTERM)
            await refuses_connections(gateway.url)
            assert not request.done()
            await holder.execute("COMMIT")
        assert (await request).status_code == 200
        assert await gateway.ended() == 0


async def test_a_write_that_outlasts_the_time_for_stopping_has_an_unknown_outcome(
    short_dir: Path, client: httpx.AsyncClient
) -> None:
    async with serving_process(short_dir, "--shutdown-timeout", "1") as gateway, row_held(short_dir):
        request = patch_order(client, gateway.url, 34, "shipped")
        await a_request_waits(short_dir)
        gateway.process.send_signal(signal.SIGTERM)
        answer = await request
        assert (answer.status_code, answer.json()["code"], answer.headers["Retry-After"]) == (503, "FP009", "1")
        assert await gateway.ended() == 0
        assert "Traceback" not in gateway.errors.read_text()


@workers
async def test_a_second_ctrl_c_does_not_wait(short_dir: Path, client: httpx.AsyncClient, workers: str) -> None:
    long = ("--shutdown-timeout", "600", "--lock-timeout", "600", "--statement-timeout", "600")
    async with serving_process(short_dir, "--workers", workers, *long) as gateway, row_held(short_dir):
        request = patch_order(client, gateway.url, 34, "shipped")
        await a_request_waits(short_dir)
        gateway.interrupt()
        await refuses_connections(gateway.url)
        gateway.interrupt()
        assert await gateway.ended() == 0
        assert "Traceback" not in gateway.errors.read_text()
        await asyncio.gather(request, return_exceptions=True)


async def test_sighup_has_the_tables_looked_at_anew(short_dir: Path, client: httpx.AsyncClient) -> None:
    async with serving_process(short_dir) as gateway:

        async def tables() -> str:
            """What /readyz shows of the catalog; asking it loads nothing."""
            return str((await client.get(f"{gateway.url}/readyz")).json()["catalog"]).partition(", ")[2]

        before, url = await tables(), running_url(short_dir / "data")
        await run_on(str(url), "CREATE TABLE public.fresh (id int PRIMARY KEY)")
        assert await tables() == before
        gateway.process.send_signal(signal.SIGHUP)

        async def seen() -> bool:
            return await tables() != before

        await eventually(seen, what="the new table")
        postmaster = (short_dir / "data" / "pgdata" / "postmaster.pid").read_text().splitlines()[0]
        os.kill(int(postmaster), signal.SIGKILL)
        assert await gateway.ended() == 1, "it ends when PostgreSQL does"
        assert "the embedded PostgreSQL ended by itself" in gateway.errors.read_text()


async def test_other_addresses_are_served_when_asked_for_and_the_embedded_server_has_room_for_all_its_connections(
    short_dir: Path, client: httpx.AsyncClient
) -> None:
    variables = {"FENCEPOST_ALLOW_REMOTE": "1", "FENCEPOST_JWT_SECRET": "x" * 32, "FENCEPOST_JWT_ROLE_CLAIM_KEY": ""}
    async with serving_process(short_dir, "--host", "0.0.0.0", "--pool-size", "150", **variables) as gateway:
        assert gateway.url.startswith("http://127.0.0.1:")
        assert (await client.get(gateway.url + "/healthz")).status_code == 200
        url = running_url(short_dir / "data")
        assert url is not None
        connection = await asyncpg.connect(url)
        try:
            assert int(await connection.fetchval("SHOW max_connections")) > 150 + 4 + 7 + 1
        finally:
            await connection.close()


async def test_a_table_orders_of_the_users_own_is_no_demo(short_dir: Path, database: str, connect: Connect) -> None:
    await (await connect()).execute("CREATE TABLE public.orders (id int PRIMARY KEY)")
    async with serving_as_it_is(short_dir, FENCEPOST_DATABASE_URL=database) as gateway:
        assert gateway.greeting.splitlines()[-1].startswith("  demo  was not made: there is a table orders"), gateway
