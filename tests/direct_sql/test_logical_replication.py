"""Logical replication into protected tables: what its apply passes, what travels, and who may write after a switch.

Two real servers. The triggers are ENABLE ORIGIN, so they do not fire for the apply worker: the publisher has judged.
"""

import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import asyncpg
import pytest
from tests.support.interleave import Connection, connection_to
from tests.support.recipes import recipe

from fencepost.server.ops.embedded import PostgresServer
from fencepost.server.ops.migrate import upgrade
from fencepost.server.ops.protect import protect
from fencepost.server.postgres.database_identity import ORIGIN, Origin
from fencepost.server.postgres.errors import QuarantinedError
from fencepost.testing.servers.postgres import clone, in_database, run_on
from fencepost.testing.servers.processes import eventually, new_directory, remove_directory

pytestmark = [pytest.mark.versions, pytest.mark.long("logical replication")]

TABLES = """
CREATE TABLE orders (order_id text PRIMARY KEY, status text NOT NULL DEFAULT 'new');
CREATE TABLE items (id int PRIMARY KEY, account_id int NOT NULL, label text);
CREATE TABLE issued (id text PRIMARY KEY, n int NOT NULL DEFAULT 0);
"""
USERS = ("orders", "items", "issued")
_numbers = itertools.count(1)


@dataclass
class Sides:
    """A publisher and a subscriber, both migrated, with the same protected tables."""

    publisher: Connection
    subscriber: Connection
    conninfo: str
    name: str

    async def follow(self, *tables: str) -> None:
        """Publish these tables, subscribe to them, and wait until all are copied."""
        await self.subscribe(*tables)
        await self.copied()

    async def subscribe(self, *tables: str) -> None:
        await self.publisher.execute(f"CREATE PUBLICATION {self.name} FOR TABLE {', '.join(tables)}")
        await self.subscriber.execute(
            f"CREATE SUBSCRIPTION {self.name} CONNECTION '{self.conninfo}' PUBLICATION {self.name}"
        )

    async def copied(self) -> None:
        await eventually(
            lambda: self.subscriber.fetchval("SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel"),
            what="the initial copy",
        )

    async def caught_up(self) -> None:
        """Return once the subscriber has applied everything that the publisher has committed."""
        position = await self.publisher.fetchval("SELECT pg_current_wal_lsn()::text")

        async def applied() -> bool:
            query = (
                "SELECT replay_lsn >= $1::text::pg_lsn FROM pg_stat_replication"
                " WHERE application_name = $2 AND state = 'streaming'"
            )
            return bool(await self.publisher.fetchval(query, position, self.name))

        await eventually(applied, what="the subscriber caught up")

    async def switch(self) -> None:
        """Make the subscriber the side that is written to: it has everything, and follows no longer."""
        await self.caught_up()
        await self.subscriber.execute(f"DROP SUBSCRIPTION {self.name}")

    async def follow_as_on_the_page(self, *tables: str) -> None:
        """Run the two recipes for these tables."""
        publish = recipe("publisher").replace("PUBLICATION shop", f"PUBLICATION {self.name}")
        await self.publisher.execute(publish.replace("TABLE orders", f"TABLE {', '.join(tables)}"))
        for statement in recipe("subscriber").replace(" shop", f" {self.name}").strip().split("\n"):
            await self.subscriber.execute(re.sub("host=publisher dbname=\\w+", self.conninfo, statement))
        await self.copied()


async def write(side: Connection, token: int | None, statement: str) -> str:
    """Run a statement under a token; returns "" or the SQLSTATE that refused it."""
    try:
        async with side.transaction():
            if token is not None:
                await side.execute(f"SET LOCAL fencepost.token = '{token}'")
            await side.execute(statement)
    except asyncpg.PostgresError as error:
        return str(error.sqlstate)
    return ""


async def origin(side: Connection) -> Origin:
    """What the gateway's connections would find there."""
    found = await side.fetchrow(ORIGIN)
    assert found is not None
    return Origin.of(found)


@pytest.fixture(scope="module")
def servers(postgres: PostgresServer) -> Iterator[tuple[PostgresServer, PostgresServer]]:
    """Run two servers of the same version, whose log can be decoded."""
    directory = new_directory()
    options = {"wal_level": "logical", "shared_buffers": "16MB", "fsync": "off", "wal_retrieve_retry_interval": "100ms"}
    started = [
        PostgresServer(bin_dir=postgres.bin_dir, data_dir=directory / name, options=options)
        for name in ("publisher", "subscriber")
    ]
    try:
        for server in started:
            server.start()
            asyncio.run(_make_template(server.url))
        yield started[0], started[1]
    finally:
        for server in started:
            server.stop()
        remove_directory(directory)


async def _make_template(url: str) -> None:
    await run_on(url, "CREATE DATABASE shop")
    await upgrade(in_database(url, "shop"))
    async with connection_to(in_database(url, "shop")) as connection:
        await connection.execute(TABLES)
        await protect(connection, "orders")
        await protect(connection, "items", scope="account/{account_id}")
        await protect(connection, "issued", source="builtin")


@pytest.fixture
async def sides(servers: tuple[PostgresServer, PostgresServer]) -> AsyncIterator[Sides]:
    name = f"sides_{next(_numbers)}"
    urls = [in_database(server.url, name) for server in servers]
    for server in servers:
        await clone(server.url, name, "shop")
    publisher, subscriber = [await asyncpg.connect(url) for url in urls]
    yield Sides(publisher, subscriber, urls[0], name)
    if await subscriber.fetchval("SELECT count(*) FROM pg_subscription WHERE subname = $1", name):
        await subscriber.execute(f"DROP SUBSCRIPTION {name}")
    for connection, server in ((publisher, servers[0]), (subscriber, servers[1])):
        await connection.close()
        await run_on(server.url, f"DROP DATABASE {name} WITH (FORCE)")


async def history(sides: Sides) -> None:
    """Write on the publisher what a switch must not forget."""
    publisher = sides.publisher
    for token, statement in (
        (36, "INSERT INTO orders VALUES ('row')"), (40, "UPDATE orders SET status = 'paid' WHERE order_id = 'row'"),
        (36, "INSERT INTO orders VALUES ('deleted')"), (41, "DELETE FROM orders WHERE order_id = 'deleted'"),
        (42, "INSERT INTO items VALUES (1, 7, 'a')"),
    ):  # fmt: skip
        assert await write(publisher, token, statement) == "", statement
    await publisher.execute("SELECT fencepost.raise_mark('orders/claimed', 43, 'strict', true)")


STALE = (
    (39, "UPDATE orders SET status = 'stale' WHERE order_id = 'row'"),
    (39, "DELETE FROM orders WHERE order_id = 'row'"),
)
STALE_WITHOUT_A_ROW = (
    (40, "INSERT INTO orders VALUES ('deleted')"), (42, "INSERT INTO orders VALUES ('claimed')"),
    (40, "UPDATE items SET label = 'stale' WHERE id = 1"), (41, "INSERT INTO items VALUES (2, 7, 'stale')"),
)  # fmt: skip


async def test_apply_passes_a_protected_table_and_the_marks_of_rows_travel_in_the_column(sides: Sides) -> None:
    await sides.publisher.execute("INSERT INTO orders (order_id, last_fence_token) VALUES ('before', 30)")
    await sides.follow(*USERS)
    await history(sides)
    await write(sides.publisher, 50, "INSERT INTO orders SELECT 'bulk-' || n FROM generate_series(1, 100) n")
    await sides.caught_up()
    rows = "SELECT order_id, status, last_fence_token FROM orders ORDER BY order_id"
    assert await sides.subscriber.fetch(rows) == await sides.publisher.fetch(rows)
    assert await sides.subscriber.fetchval("SELECT count(*) FROM orders") == 102
    assert await sides.subscriber.fetchval("SELECT count(*) FROM fencepost.marks") == 0
    # Everybody else is judged there as ever.
    assert await write(sides.subscriber, None, "UPDATE orders SET status = 'x'") == "FP428"
    for token, statement in STALE:
        assert await write(sides.subscriber, token, statement) == "FP409", statement


async def test_without_the_marks_a_switch_forgets_whatever_has_no_row(sides: Sides) -> None:
    await sides.follow(*USERS)
    await history(sides)
    await sides.switch()
    for token, statement in STALE:
        assert await write(sides.subscriber, token, statement) == "FP409", statement
    for token, statement in STALE_WITHOUT_A_ROW:
        assert await write(sides.subscriber, token, statement) == "", f"{statement}: the page says that this passes"


async def test_with_the_marks_published_a_stale_token_is_refused_after_the_switch(sides: Sides) -> None:
    await sides.publisher.execute("INSERT INTO orders (order_id, last_fence_token) VALUES ('copied', 30)")
    await write(sides.publisher, 31, "DELETE FROM orders WHERE order_id = 'copied'")
    await sides.follow_as_on_the_page(*USERS)
    await history(sides)
    await sides.publisher.execute("SELECT fencepost.prune('orders', 20)")
    await sides.switch()
    for token, statement in (
        *STALE, *STALE_WITHOUT_A_ROW, (31, "INSERT INTO orders VALUES ('copied')"),
        (20, "INSERT INTO orders VALUES ('pruned, or never seen')"),
    ):  # fmt: skip
        assert await write(sides.subscriber, token, statement) == "FP409", statement
    for token, statement in (
        (44, "INSERT INTO orders VALUES ('claimed'), ('deleted'), ('copied')"),
        (21, "INSERT INTO orders VALUES ('never seen')"),
        (44, "UPDATE orders SET status = 'new holder' WHERE order_id = 'row'"),
        (44, "UPDATE items SET label = 'new holder' WHERE id = 1"),
    ):
        assert await write(sides.subscriber, token, statement) == "", statement


async def test_a_subscribers_own_floors_collide_with_the_copy(sides: Sides) -> None:
    """Why the page advises to empty them first; and that it can still be done afterwards."""
    await history(sides)
    marks = ("fencepost.marks", "fencepost.floors", "fencepost.generations")
    await sides.subscribe("orders", *marks)

    async def others_are_ready() -> bool:
        states = (
            'SELECT array_agg(srrelid::regclass::text ORDER BY srrelid::regclass::text COLLATE "C")'
            " FROM pg_subscription_rel WHERE srsubstate = 'r'"
        )
        return bool(await sides.subscriber.fetchval(states) == ["fencepost.marks", "orders"])

    await eventually(others_are_ready, what="the copy of what does not collide")
    await sides.subscriber.execute("TRUNCATE fencepost.floors, fencepost.generations")
    await sides.copied()
    assert await sides.subscriber.fetchval("SELECT count(*) FROM fencepost.floors") == 3 + 1  # tables and a scope


async def test_a_table_protected_later_is_protected_on_the_publisher_first(sides: Sides) -> None:
    await sides.follow_as_on_the_page("orders")
    for side in (sides.publisher, sides.subscriber):
        await side.execute("CREATE TABLE late (id int PRIMARY KEY, n int)")
    await protect(sides.publisher, "late")
    await sides.caught_up()
    await protect(sides.subscriber, "late")
    await sides.publisher.execute(f"ALTER PUBLICATION {sides.name} ADD TABLE late")
    await sides.subscriber.execute(f"ALTER SUBSCRIPTION {sides.name} REFRESH PUBLICATION")
    await sides.copied()
    assert await write(sides.publisher, 5, "INSERT INTO late VALUES (1, 1), (2, 2)") == ""
    assert await write(sides.publisher, 6, "DELETE FROM late WHERE id = 1") == ""
    await sides.switch()
    assert await write(sides.subscriber, 5, "INSERT INTO late VALUES (1, 1)") == "FP409"
    assert await write(sides.subscriber, 7, "INSERT INTO late VALUES (1, 1)") == ""


async def test_builtin_tokens_are_refused_on_the_subscriber_until_its_generation_is_raised(sides: Sides) -> None:
    """The sequence and the leases do not travel."""
    publisher, subscriber = sides.publisher, sides.subscriber
    before = await publisher.fetchval("SELECT fencepost.raise_generation('an earlier failover')")
    await sides.follow_as_on_the_page(*USERS)
    token = await publisher.fetchval("SELECT nextval('fencepost.tokens')")
    assert await write(publisher, token, "INSERT INTO issued VALUES ('a'), ('gone')") == ""
    last = await publisher.fetchval("SELECT nextval('fencepost.tokens')")
    assert await write(publisher, last, "DELETE FROM issued WHERE id = 'gone'") == ""
    await sides.switch()

    assert isinstance((await origin(subscriber)).problem(), QuarantinedError)  # the gateway refuses too
    for refused in (token, last, last + 1):
        assert await write(subscriber, refused, "UPDATE issued SET n = 1") in ("FP409", "FP018"), refused
        assert await write(subscriber, refused, "INSERT INTO issued VALUES ('gone')") in ("FP409", "FP018"), refused

    raised = await subscriber.fetchval("SELECT fencepost.raise_generation('switched to the subscriber')")
    assert raised > before  # the publisher's generation came along, so this one is above it
    new = await subscriber.fetchval("SELECT nextval('fencepost.tokens')")
    assert new > last
    for stale in (token, last):
        assert await write(subscriber, stale, "UPDATE issued SET n = 1") == "FP409"
        assert await write(subscriber, stale, "INSERT INTO issued VALUES ('gone')") == "FP409"
        assert await write(subscriber, stale, "INSERT INTO issued VALUES ('never seen')") == "FP409"
    assert await write(subscriber, new, "UPDATE issued SET n = 1") == ""
    assert (await origin(subscriber)).problem() is None


async def test_a_transactions_number_that_came_along_is_not_taken_for_our_own(sides: Sides) -> None:
    """Marks carry the number of the transaction that raised them, and the publisher counts for itself."""
    await sides.follow_as_on_the_page(*USERS)
    await history(sides)
    subscriber = sides.subscriber
    for token, statement, refusal in (
        ("", "INSERT INTO items VALUES (2, 7, 'no token')", "FP428"),
        ("41", "UPDATE items SET label = 'stale' WHERE id = 1", "FP409"),
        ("41", "INSERT INTO orders VALUES ('deleted')", "FP409"),
    ):
        async with subscriber.transaction():
            await subscriber.execute("SELECT set_config('fencepost.token', $1, true)", token)
            number = await subscriber.fetchval("SELECT pg_current_xact_id()::text")
            await sides.publisher.execute("UPDATE fencepost.marks SET xid = $1::text::xid8", number)
            await sides.caught_up()
            assert await write(subscriber, None, statement) == refusal, (token, statement, refusal)
