"""docs/recipes/one-active-worker.md runs as it stands: one works, and another takes over."""

import asyncio
import re
from pathlib import Path

import httpx
import pytest
from tests.http.conftest import StartGateway
from tests.http.lock_machines import Machines
from tests.support.interleave import Connect, Connection
from tests.support.recipes import DOCS, recipe, recipes, run, steps

from fencepost.server.ops.embedded import PostgresServer
from fencepost.testing.servers.processes import PATIENCE, eventually

pytestmark = pytest.mark.long("recipes that run as processes")

PAGE = DOCS / "recipes" / "one-active-worker.md"


@pytest.fixture
async def gateway_url(demo_database: str, start_gateway: StartGateway) -> str:
    """Give a gateway on the test's own database, to which the machines write."""
    return await start_gateway(demo_database)


@pytest.fixture
async def machines(demo_database: str, gateway_url: str, postgres: PostgresServer, short_dir: Path) -> Machines:
    """Give the machines' surroundings, with the page's table and worker."""
    for command, expected in steps(recipe("table", PAGE)):
        done = await asyncio.to_thread(run, command, postgres, demo_database, FENCEPOST_DATABASE_URL=demo_database)
        assert done.stdout.rstrip("\n") == expected, command
    outbox = "CREATE TABLE outbox (order_id text PRIMARY KEY, host text)"
    await asyncio.to_thread(run, f'psql $DATABASE_URL -qc "{outbox}"', postgres, demo_database)
    worker = short_dir / "worker.sh"
    worker.write_text(recipe("worker", PAGE).replace("sleep 1", "sleep 0.05"))
    worker.chmod(0o755)
    return Machines(postgres, demo_database, gateway_url, short_dir)


def line(machines: Machines, *, ttl: str = "15") -> str:
    """The unit's command, with its worker where the test has put it."""
    found = re.search(r"^ExecStart=(.*)$", recipe("unit", PAGE), re.MULTILINE)
    assert found is not None
    return found[1].replace("/opt", str(machines.directory)).replace("--ttl 15", f"--ttl {ttl}")


async def works(owner: Connection, host: str) -> int:
    """Return how many rounds there were, once this host has done the last one."""

    async def rounds() -> int:
        found: int = await owner.fetchval("SELECT coalesce(max(rounds) FILTER (WHERE host = $1), 0) FROM workers", host)
        return found

    return await eventually(rounds, within=2 * PATIENCE, what=f"a round of {host}")


async def waits(http: httpx.AsyncClient) -> None:
    async def one_waits() -> bool:
        return any(lock["waiters"] for lock in (await http.get("/v1/locks")).json())

    await eventually(one_waits, what="the second machine in the queue")


def test_every_block_of_the_page_is_run() -> None:
    assert set(recipes(PAGE)) == {"table", "worker", "unit"}
    assert len(re.findall(r"^```\w+$", PAGE.read_text("utf-8"), re.MULTILINE)) == len(recipes(PAGE))


@pytest.mark.realtime
async def test_a_worker_whose_lock_command_is_paused_is_refused_once_another_has_taken_over(
    machines: Machines, http: httpx.AsyncClient, connect: Connect
) -> None:
    owner = await connect()
    async with machines.machine("one", line(machines, ttl="3")) as one:
        await works(owner, "one")
        async with machines.machine("two", line(machines)):
            await waits(http)
            one.pause_lock()  # its worker goes on writing, under a lease that runs out
            await one.says("stale token")
            await works(owner, "two")
            before = await works(owner, "two")
            one.resume_lock()
            assert await one.running.ended() == 79
            assert await works(owner, "two") >= before
