"""docs/recipes/cron-on-two-machines.md runs as it stands, and the pause that it describes happens."""

import asyncio
import re
from decimal import Decimal
from pathlib import Path

import httpx
import pytest
from tests.http.conftest import StartGateway
from tests.http.lock_machines import Machines
from tests.support.interleave import Connect, Connection
from tests.support.recipes import DOCS, recipe, recipes, run, steps

from fencepost.server.ops.embedded import PostgresServer
from fencepost.testing.servers.processes import eventually

pytestmark = pytest.mark.long("recipes that run as processes")

PAGE = DOCS / "recipes" / "cron-on-two-machines.md"
PAYS = "SET LOCAL fencepost.token = '5'; UPDATE orders SET status = 'paid' WHERE order_id = 'order-123'"
OLD, NEW = Decimal("19.90"), Decimal("62.40")


@pytest.fixture
async def gateway_url(demo_database: str, start_gateway: StartGateway) -> str:
    """Give a gateway on the test's own database, to which the machines write."""
    return await start_gateway(demo_database)


@pytest.fixture
async def machines(demo_database: str, gateway_url: str, postgres: PostgresServer, short_dir: Path) -> Machines:
    """Give two machines' surroundings, with the page's table and script."""
    found = Machines(postgres, demo_database, gateway_url, short_dir)
    for command, expected in steps(recipe("table", PAGE)):
        done = await asyncio.to_thread(run, command, postgres, demo_database, FENCEPOST_DATABASE_URL=demo_database)
        assert done.stdout.rstrip("\n") == expected, command
    install(recipe("script", PAGE), short_dir / "report.sh")
    return found


def install(code: str, path: Path) -> None:
    path.write_text(code)
    path.chmod(0o755)


def line(machines: Machines, name: str = "crontab") -> str:
    """The command of the page's crontab, with its script where the test has put it."""
    return recipe(name, PAGE).split(maxsplit=5)[5].strip().replace("/opt", str(machines.directory))


async def total(reader: Connection) -> Decimal:
    found: Decimal = await reader.fetchval("SELECT total FROM reports")
    return found


async def free(http: httpx.AsyncClient) -> None:
    async def none_holds() -> bool:
        return not any(lock["held"] for lock in (await http.get("/v1/locks")).json())

    await eventually(none_holds, what="the end of the lease")


def test_every_block_of_the_page_is_run() -> None:
    assert set(recipes(PAGE)) == {"table", "script", "crontab", "refused", "once", "once-crontab"}
    assert len(re.findall(r"^```\w+$", PAGE.read_text("utf-8"), re.MULTILINE)) == len(recipes(PAGE))


@pytest.mark.realtime
@pytest.mark.parametrize("protected", [True, False])
async def test_a_paused_machine_does_not_write_over_the_other_and_without_a_fence_it_does(
    machines: Machines, http: httpx.AsyncClient, connect: Connect, protected: bool
) -> None:
    owner = await connect()
    command = line(machines)
    if not protected:
        await asyncio.to_thread(
            run,
            "fencepost unprotect reports",
            machines.server,
            machines.database,
            FENCEPOST_DATABASE_URL=machines.database,
        )
        command = command.replace("--claim ", "")
    short = command.replace("--no-wait", "--no-wait --ttl 3")  # the pause need not last
    async with machines.machine("one", short, waits=True) as one:
        await one.is_about_to_write()
        one.pause_lock()
        await free(http)
        await owner.execute(PAYS)
        async with machines.machine("two", command) as two:
            assert await two.running.ended() == 0, two.running.printed
        assert await total(owner) == NEW
        one.let_it_write()
        if protected:
            words = re.sub(r"\d+", r"\\d+", recipe("refused", PAGE).strip())
            await one.says("stale token")
            assert re.search(words, one.running.printed), one.running.printed
        else:
            await eventually(lambda: wrote_over(owner), what="the lost update")
        one.resume_lock()
        assert await one.running.ended() == 79
    assert await total(owner) == (NEW if protected else OLD)


async def wrote_over(owner: Connection) -> bool:
    return await total(owner) == OLD


async def test_a_key_means_once_a_night_without_any_lock(machines: Machines, connect: Connect) -> None:
    owner = await connect()
    await owner.execute(
        "CREATE TABLE nights (night date PRIMARY KEY); CREATE TABLE reminders (order_id text, night date)"
    )
    assert "CREATE TABLE nights (night date PRIMARY KEY)" in PAGE.read_text("utf-8")
    install(recipe("once", PAGE), machines.directory / "remind.sh")
    commands = [line(machines, "once-crontab")] * 4
    done = await asyncio.gather(
        *(asyncio.to_thread(run, each, machines.server, machines.database) for each in commands)
    )
    assert [(each.returncode, each.stdout) for each in done] == [(0, "")] * 4
    reminded = await owner.fetch("SELECT order_id FROM reminders ORDER BY order_id")
    assert [row["order_id"] for row in reminded] == ["order-123", "order-125"]
