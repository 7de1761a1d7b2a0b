"""A fence that was switched off, or whose columns were renamed, under a gateway that has not heard of it (R13)."""

import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
from tests.support.interleave import Connect
from tests.support.postgres import Unmade
from tests.support.racing import NEW, ORDERS, Race, assert_seen, open_race, outcome
from tests.support.use_cases import delete, keyed, listed, matching, once, open_gateway, patch, post, put, result_of

from fencepost.server.gateway.atomic import Undone, atomically
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.outcomes import Done, Outcome
from fencepost.server.gateway.read import ReadOne
from fencepost.server.gateway.use_cases import read_one
from fencepost.server.ops.protect import protect
from fencepost.server.postgres.query import Field, Selected

PARTED = """
CREATE TABLE public.orders (order_id text PRIMARY KEY, status text NOT NULL DEFAULT 'new', n integer NOT NULL DEFAULT 0)
  PARTITION BY RANGE (order_id);
CREATE TABLE public.part PARTITION OF orders DEFAULT"""
OFF = {
    "all of the user's": "ALTER TABLE {table} DISABLE TRIGGER USER",
    "one": "ALTER TABLE {table} DISABLE TRIGGER zzz_fencepost_{trigger}",
    "for replicas": "ALTER TABLE {table} ENABLE REPLICA TRIGGER zzz_fencepost_{trigger}",
    "dropped": "DROP TRIGGER zzz_fencepost_{trigger} ON orders",
    "in the gateway's sessions": "SET session_replication_role = replica",
}
KINDS = {
    "rows": (ORDERS, None, "orders", {"DELETE": "del", "INSERT": "insmark"}),
    "partitions": (PARTED, None, "part", {"DELETE": "del", "INSERT": "insmark"}),
    "scopes": (ORDERS, "account/{n}", "orders", dict.fromkeys(("DELETE", "INSERT", "UPDATE"), "scope")),
}

STATUS = (Selected(Field("status")),)

Request = Callable[[Gateway], Awaitable[Outcome]]
DELETES: dict[str, Request] = {
    "one": lambda gateway: delete(gateway, keyed("k", 60)),
    "one, of which a column is shown": lambda gateway: delete(gateway, replace(keyed("k", 60), select=STATUS)),
    "one, alone": lambda gateway: delete(gateway, replace(keyed("k", 60), idempotency_key=once())),
    "by filter": lambda gateway: delete(gateway, matching(NEW, 60)),
}
REQUESTS: dict[str, dict[str, Request]] = {
    "DELETE": DELETES,
    "INSERT": {
        "POST": lambda gateway: post(gateway, listed(40, {"order_id": "gone", "n": 1})),
        "POST of several": lambda gateway: post(
            gateway, listed(40, {"order_id": "gone", "n": 1}, {"order_id": "new", "n": 1})
        ),
        "PUT": lambda gateway: put(gateway, keyed("gone", 40, n=1)),
        "PUT, alone": lambda gateway: put(gateway, replace(keyed("gone", 40, n=1), idempotency_key=once())),
    },
    "UPDATE": {
        "PATCH": lambda gateway: patch(gateway, keyed("k", 60, n=2)),
        "by filter": lambda gateway: patch(gateway, matching(NEW, 60, n=2)),
        "of an array": lambda gateway: patch(gateway, listed(60, {"order_id": "k", "n": 2})),
    },
}


async def as_a_whole(gateway: Gateway) -> Outcome:
    async def use(part: Gateway) -> Outcome:
        raise Undone(await delete(part, keyed("k", 60)))

    return await atomically(gateway, use)


DELETES["in a batch that lands as a whole"] = as_a_whole


async def in_all_sessions(gateway: Gateway, statement: str) -> None:
    for lend in (gateway.database.connection, gateway.database.batch_connection):
        async with lend() as connection:
            await connection.execute(statement)


@pytest.mark.versions
@pytest.mark.parametrize("how", OFF)
@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_is_written_where_the_fence_does_not_fire(
    connect: Connect, unmade: Unmade, kind: str, how: str
) -> None:
    ddl, scope, table, triggers = KINDS[kind]
    race = await open_race(connect, unmade, ddl=ddl)
    await protect(race.observer, "orders", scope=scope)
    rows = "INSERT INTO orders VALUES ('k'), ('gone'); DELETE FROM orders WHERE order_id = 'gone'"
    await race.observer.execute(f"BEGIN; SET LOCAL fencepost.token = '50'; {rows}; COMMIT")
    before = await race.observer.fetch("SELECT * FROM orders")
    for verb, trigger in triggers.items():
        for name, request in REQUESTS[verb].items():
            async with open_gateway(race.dsn, batch_pool_size=1) as gateway:
                harm = OFF[how].format(table=table, trigger=trigger)
                if harm.startswith("SET"):
                    await in_all_sessions(gateway, harm)
                else:
                    await race.observer.execute(harm)
                # A PUT finds no row, and asks for the mark.
                assert result_of(await request(gateway)) in ("FP005", "FP001" if "PUT" in name else ""), name
            assert await race.observer.fetch("SELECT * FROM orders") == before, name
            await protect(race.observer, "orders", scope=scope)


@pytest.mark.parametrize("name", DELETES)
async def test_a_row_of_a_table_that_inherits_is_not_deleted(connect: Connect, unmade: Unmade, name: str) -> None:
    race = await open_race(connect, unmade)
    async with open_gateway(race.dsn) as gateway:
        await race.observer.execute("CREATE TABLE heir () INHERITS (orders); INSERT INTO heir VALUES ('k')")
        assert result_of(await DELETES[name](gateway)) == "FP005"
    assert await race.row("k") is not None


@pytest.mark.parametrize("action", ["CASCADE", "SET NULL"])
@pytest.mark.parametrize("scope", [None, "at/{at}"])
@pytest.mark.parametrize("name", DELETES)
async def test_no_foreign_key_leads_past_a_fence_that_is_off(
    connect: Connect, unmade: Unmade, name: str, scope: str | None, action: str
) -> None:
    race = await open_race(connect, unmade)
    await race.insert(race.a, "k", 30)
    await race.observer.execute(
        f"CREATE TABLE items (id int PRIMARY KEY, at int NOT NULL, of text REFERENCES orders ON DELETE {action});"
        " INSERT INTO items VALUES (1, 1, 'k')"
    )
    await protect(race.observer, "items", scope=scope)
    await race.observer.execute("ALTER TABLE items DISABLE TRIGGER USER")
    async with open_gateway(race.dsn) as gateway:
        assert result_of(await DELETES[name](gateway)) == "FP005"
    assert await race.observer.fetchval("SELECT of FROM items") == "k"


async def a_write_waits_for_the_triggers_end(race: Race) -> None:
    """The statement's snapshot is from before it got the table's lock: by that, the trigger is there."""
    await race.insert(race.a, "gone", 30)
    await race.insert(race.a, "k", 30)
    await race.delete(race.a, "gone", 50)
    for trigger, late in (
        ("insmark", lambda: race.insert(race.a, "gone", 40)),
        ("del", lambda: race.delete(race.a, "k", 60)),
    ):
        owner = await race.begin(race.b)
        await race.b.execute(f"ALTER TABLE orders DISABLE TRIGGER zzz_fencepost_{trigger}")
        writing = await race.waits(race.a, outcome(late()))
        await owner.commit()
        assert await writing == "FP005"
    assert await race.row("gone") is None
    assert await race.row("k") is not None


@pytest.mark.versions
async def test_a_trigger_that_goes_meanwhile_is_missed(connect: Connect, unmade: Unmade) -> None:
    await a_write_waits_for_the_triggers_end(await open_race(connect, unmade))


async def test_a_look_at_the_statements_snapshot_would_not_see_it(connect: Connect, unmade: Unmade) -> None:
    race = await open_race(connect, unmade)
    await race.observer.execute("ALTER FUNCTION fencepost.fires(oid, text) STABLE")
    await assert_seen(a_write_waits_for_the_triggers_end, race)


RENAMED = {
    "its name goes to a new column": (
        "key",
        "ALTER TABLE orders RENAME order_id TO key; ALTER TABLE orders ADD order_id text NOT NULL DEFAULT 'k'",
    ),
    "two columns swap names": (
        "status",
        "ALTER TABLE orders RENAME order_id TO key; ALTER TABLE orders RENAME status TO order_id;"
        " ALTER TABLE orders RENAME key TO status",
    ),
    "a new column has the marks' name": (
        "order_id",
        "ALTER TABLE orders RENAME last_fence_token TO old;"
        " ALTER TABLE orders ADD last_fence_token bigint NOT NULL DEFAULT 0",
    ),
}


@pytest.mark.versions
@pytest.mark.parametrize("how", RENAMED)
async def test_a_path_means_the_columns_of_the_key_whatever_they_are_called(
    connect: Connect, unmade: Unmade, how: str
) -> None:
    called, renaming = RENAMED[how]
    race = await open_race(connect, unmade)
    await race.insert(race.a, "k", 30, status="new")
    await race.insert(race.a, "new", 30, status="k")
    requests = {**REQUESTS["UPDATE"], **DELETES}
    async with AsyncExitStack() as stack:
        gateways = {name: await stack.enter_async_context(open_gateway(race.dsn)) for name in ("GET", *requests)}
        await race.observer.execute(renaming)
        before = await race.observer.fetch("SELECT * FROM orders")
        for name, request in requests.items():
            assert result_of(await request(gateways[name])) == "FP005", name
        assert await race.observer.fetch("SELECT * FROM orders") == before
        found = await read_one(gateways["GET"], ReadOne("orders", ("k",)))
        assert isinstance(found, Done)
        assert [json.loads(row)[called] for row in found.rows] == ["k"]
    rekey = f"UPDATE orders SET {called} = 'z', last_fence_token = 60 WHERE {called} = 'k'"
    assert await race.direct(race.a, rekey) == "FP400"
