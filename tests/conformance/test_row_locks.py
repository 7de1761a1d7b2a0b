"""docs/recipes/row-locks.md: its SQL runs, and what it calls a trap is one. On real PostgreSQLs."""

import re
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import httpx
import pytest
from tests.support.interleave import Connect, Connection, start
from tests.support.live_gateway import serving

from fencepost.settings import Settings
from fencepost.storage.protecting.protect import protect
from fencepost.testing.servers.waiting import eventually

ROOT = Path(__file__).parents[2]
_RECIPE = re.compile(r"^<!-- recipe: ([\w-]+) -->\n```sql\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def recipes_of(page: Path) -> dict[str, str]:
    """Return the SQL blocks of a page by their names."""
    return dict(_RECIPE.findall(page.read_text("utf-8")))


RECIPES = recipes_of(ROOT / "docs" / "recipes" / "row-locks.md")
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
    settings = Settings.model_validate({"database_url": database, "port": 0, "lock_timeout": 0.3})
    with serving(settings) as url, httpx.Client(base_url=url, trust_env=False) as client:
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


def test_each_recipe_is_here() -> None:
    assert set(RECIPES) == {"jobs", "draw", "sequence", "draw-and-keep"}


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
async def test_the_number_rises_when_a_connection_breaks(connect: Connect, jobs: Connection, recipe: str) -> None:
    drawn = []
    for _ in range(3):
        connection = await connect()
        drawn.append(await draw(connection, recipe))
        await cut(connection, by=jobs)
    assert drawn == [1, 2, 3]


async def test_the_number_is_drawn_by_who_has_the_lock(connect: Connect, jobs: Connection) -> None:
    first, second = await connect(), await connect()
    assert await draw(first, "draw-and-keep") == 1
    waiting = await start(jobs, draw(second, "draw-and-keep"), second.get_server_pid())
    assert not waiting.done()
    assert await first.fetchval("SELECT nextval('job_fence')") == 2
    await first.execute("COMMIT")
    assert await waiting == 3


@pytest.mark.parametrize("recipe", ["draw", "draw-and-keep"])
async def test_who_lost_the_lock_is_refused_by_http(
    connect: Connect, jobs: Connection, gateway: httpx.Client, recipe: str
) -> None:
    first, second = await connect(), await connect()
    earlier = await draw(first, recipe)
    await cut(first, by=jobs)
    later = await draw(second, recipe)
    assert write(gateway, later, "shipped").status_code == 200
    late = write(gateway, earlier, "cancelled")
    assert (late.status_code, late.json()["code"]) == (409, "FP001")
    assert await jobs.fetchval("SELECT status FROM orders") == "shipped"


async def test_trap_a_number_that_is_not_committed_is_drawn_again(connect: Connect, jobs: Connection) -> None:
    drawn = []
    for _ in range(2):
        connection = await connect()
        await connection.execute("BEGIN")
        await connection.fetchval(LOCK)
        drawn.append(await connection.fetchval("UPDATE jobs SET fence = fence + 1 RETURNING fence"))
        await cut(connection, by=jobs)
    assert drawn == [1, 1]


async def test_trap_one_statement_draws_before_it_waits(connect: Connect, jobs: Connection) -> None:
    first, second = await connect(), await connect()
    await first.execute("BEGIN")
    await first.fetchval(LOCK)
    in_one = "SELECT nextval('job_fence') FROM jobs WHERE name = 'ship order-123' FOR UPDATE"
    waiting = await start(jobs, second.fetchval(in_one), second.get_server_pid())
    assert not waiting.done()
    first_ones = await first.fetchval("SELECT nextval('job_fence')")
    await first.execute("COMMIT")
    assert await waiting < first_ones


async def test_trap_a_number_drawn_on_another_connection_is_the_losers_and_the_newest(
    connect: Connect, jobs: Connection, gateway: httpx.Client
) -> None:
    locked, elsewhere, second = await connect(), await connect(), await connect()
    await locked.execute("BEGIN")
    await locked.fetchval(LOCK)
    await cut(locked, by=jobs)
    successors = await draw(second, "draw-and-keep")
    losers = await elsewhere.fetchval("SELECT nextval('job_fence')")
    assert write(gateway, losers, "cancelled").status_code == 200
    assert write(gateway, successors, "shipped").status_code == 409


async def test_trap_a_cache_gives_each_session_a_block_of_its_own(connect: Connect, jobs: Connection) -> None:
    await jobs.execute("ALTER SEQUENCE job_fence CACHE 10")
    first, second = await connect(), await connect()
    drawn = [await holder.fetchval("SELECT nextval('job_fence')") for holder in (first, second, first)]
    assert drawn != sorted(drawn)


async def test_trap_the_locked_row_itself_cannot_be_written_through_the_gateway(
    connect: Connect, gateway: httpx.Client
) -> None:
    holder = await connect()
    await holder.execute("BEGIN")
    await holder.fetchval("SELECT status FROM orders WHERE order_id = 'order-123' FOR UPDATE")
    assert write(gateway, 1, "shipped").status_code == 503
    await holder.execute("COMMIT")
    assert write(gateway, 1, "shipped").status_code == 200
