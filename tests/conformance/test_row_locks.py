"""docs/recipes/row-locks.md and docs/sources/postgres-advisory.md: their SQL runs. On real PostgreSQLs."""

import re
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import httpx
import pytest
from tests.support.gateways import serving
from tests.support.interleave import Connect, Connection, start

from fencepost.server.ops.protect import protect
from fencepost.testing.servers.processes import eventually

ROOT = Path(__file__).parents[2]
_RECIPE = re.compile(r"^<!-- recipe: ([\w-]+) -->\n```sql\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def recipes_of(page: Path) -> dict[str, str]:
    """Return the SQL blocks of a page by their names."""
    return dict(_RECIPE.findall(page.read_text("utf-8")))


RECIPES = recipes_of(ROOT / "docs" / "recipes" / "row-locks.md")
ADVISORY = recipes_of(ROOT / "docs" / "sources" / "postgres-advisory.md")
LOCK = "SELECT state FROM jobs WHERE name = 'ship order-123' FOR UPDATE"


@pytest.fixture
async def jobs(connect: Connect) -> Connection:
    """Make the page's tables, and a protected one to write to. Gives a connection that locks nothing."""
    observer = await connect()
    await observer.execute(RECIPES["jobs"])
    await observer.execute(RECIPES["sequence"])
    await observer.execute("CREATE TABLE orders (order_id text PRIMARY KEY, status text NOT NULL)")
    await observer.execute("INSERT INTO orders VALUES ('order-123', 'new')")
    await protect(observer, "orders", source="external")
    return observer


@pytest.fixture
def gateway(jobs: Connection, database: str) -> Iterator[httpx.Client]:  # noqa: ARG001 - its tables have to be there
    """Run a gateway on the page's database; a write waits 0.3 s for a row."""
    with serving(database, lock_timeout=0.3) as url, httpx.Client(base_url=url, trust_env=False) as client:
        yield client


async def draw(connection: Connection, recipe: str) -> int:
    """Run a recipe statement by statement; returns the number that it draws."""
    drawn = 0
    for statement in RECIPES[recipe].strip().splitlines():
        answer = await connection.fetchval(statement)
        drawn = answer if isinstance(answer, int) else drawn
    return drawn


async def cut(connection: Connection, by: Connection) -> None:
    """End the connection's session, as a server does with one that it has given up, and return once it is gone."""
    await by.fetchval("SELECT pg_terminate_backend($1, 5000)", connection.get_server_pid())

    async def noticed() -> bool:
        return connection.is_closed()

    await eventually(noticed, what="the end of the connection")


def write(gateway: httpx.Client, token: int, status: str) -> httpx.Response:
    return gateway.patch("/v1/data/orders/order-123", json={"status": status}, headers={"X-Fence-Token": str(token)})


async def test_in_one_transaction_lock_and_writes_end_together(connect: Connect, jobs: Connection) -> None:
    first, second = await connect(), await connect()
    await first.execute("BEGIN")
    await first.fetchval(LOCK)
    await first.execute("UPDATE jobs SET state = 'first'")
    waiting = await start(jobs, second.fetchval(LOCK), second.get_server_pid())
    assert not waiting.done()
    await cut(first, by=jobs)
    assert await waiting == "new", "nothing of the first one's is there"
    with pytest.raises(asyncpg.InterfaceError, match="connection is closed"):
        await first.execute("UPDATE jobs SET state = 'late'")
    assert await jobs.fetchval("SELECT state FROM jobs") == "new"


@pytest.mark.parametrize("recipe", ["draw", "draw-and-keep"])
async def test_who_lost_the_lock_is_refused_by_http(
    connect: Connect, jobs: Connection, gateway: httpx.Client, recipe: str
) -> None:
    first, second = await connect(), await connect()
    earlier = await draw(first, recipe)
    await cut(first, by=jobs)
    later = await draw(second, recipe)
    assert (earlier, later) == (1, 2)
    assert write(gateway, later, "shipped").status_code == 200
    late = write(gateway, earlier, "cancelled")
    assert (late.status_code, late.json()["code"]) == (409, "FP001")
    assert await jobs.fetchval("SELECT status FROM orders") == "shipped"


async def draw_under_an_advisory_lock(connection: Connection) -> int:
    """Take the lock and draw, a statement at a time; returns the number."""
    lock, number = ADVISORY["draw"].strip().splitlines()
    await connection.execute(lock)
    drawn: int = await connection.fetchval(number)
    return drawn


async def test_the_number_under_an_advisory_lock_rises_and_who_lost_the_lock_draws_no_more(connect: Connect) -> None:
    observer, first, second = await connect(), await connect(), await connect()
    await observer.execute(ADVISORY["fences"])
    assert await draw_under_an_advisory_lock(first) == 1
    waiting = await start(observer, draw_under_an_advisory_lock(second), second.get_server_pid())
    assert not waiting.done()
    await cut(first, by=observer)
    assert await waiting == 2
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        await draw_under_an_advisory_lock(first)
    assert await observer.fetchval("SELECT fence FROM fences") == 2
