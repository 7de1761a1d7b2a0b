"""What could keep others waiting is read alone: rows that are large, or become large, and what fails."""

import asyncio
from dataclasses import replace

import asyncpg
import pytest
from tests.integration.gathered_reads.conftest import Statements, gathered, reading, shown_of
from tests.support.interleave import Connect
from tests.support.racing import Race, owner
from tests.support.use_cases import open_gateway

from fencepost.server.fence.problems import Problem
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.ops.protect import protect
from fencepost.server.postgres.reading import MOST_JSON, keyed_reads
from fencepost.server.postgres.tables import ProtectedTable


async def test_large_rows_are_read_alone_and_keep_nobody_waiting(
    race: Race, gateway: Gateway, sent: Statements
) -> None:
    await race.observer.execute("ALTER TABLE orders ALTER status SET STORAGE EXTERNAL")
    await race.direct(race.observer, "UPDATE orders SET status = repeat('x', 200000) WHERE order_id = 'k1'", 91)
    tasks = await gathered(sent, gateway, "k1", "k2")
    found = await shown_of(tasks)
    assert [len(each[0][0]) for each in found if isinstance(each, tuple)] == [38, 200035, 38]
    assert sent.keys[1] == [("k1",), ("k2",)], "they had come together"
    refused = await shown_of(reading(replace(gateway, max_answer_bytes=1000), "k1", "k2"))
    assert refused == ["FP016", (['{"order_id":"k2","status":"new","n":2}'], 32)]


NUMBERS = "array_fill(1e100000, ARRAY[30])"
BOMBS = {
    "text that is compressed": "SELECT 1; UPDATE orders SET status = repeat(chr(1), 600000)",
    "text that is escaped": "ALTER TABLE orders ALTER status SET STORAGE EXTERNAL;"
    " UPDATE orders SET status = repeat(chr(1), 8000)",
    "a number": "ALTER TABLE orders ADD x numeric; UPDATE orders SET x = 1e100000",
    "numbers in jsonb": f"ALTER TABLE orders ADD x jsonb; UPDATE orders SET x = to_jsonb({NUMBERS})",
}
"""What makes such a row."""


@pytest.mark.parametrize("made", BOMBS.values(), ids=BOMBS)
async def test_what_is_small_as_stored_and_large_as_json_comes_from_no_statement_of_many(
    race: Race, gateway: Gateway, sent: Statements, made: str
) -> None:
    *others, update = made.split("; ")
    await race.observer.execute(
        "ALTER TABLE orders ALTER status SET STORAGE EXTERNAL" if "8000" in made else "SELECT 1"
    )
    for each in others:
        await race.observer.execute(each)
    assert await race.direct(race.observer, f"{update} WHERE order_id = 'k1'", 91) == "ok"
    stored = await race.observer.fetchval("SELECT pg_column_size(o.*) FROM orders o WHERE order_id = 'k1'")
    await gateway.catalog.reload()
    tasks = await gathered(sent, gateway, "k1", "k2", "k1")
    found = await shown_of(tasks)
    large = [len(each[0][0]) for each in found if isinstance(each, tuple)]
    assert (large[0] == large[2], large[1] == large[3]) == (True, True)
    assert large[0] < 100
    assert large[1] > MOST_JSON
    assert stored < 9000
    assert sent.sizes[1] == [None, None, large[2]], "PostgreSQL has sent the small one only"


async def test_a_locked_table_is_waited_for_once(race: Race, sent: Statements) -> None:
    async with open_gateway(race.dsn, pool_size=4, lock_timeout=0.3) as gateway:
        transaction = await race.begin(race.observer)
        await race.observer.execute("LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
        tasks = await gathered(sent, gateway, "k1", "k2", "k3", "k4")
        found = await asyncio.gather(*tasks)
        await transaction.rollback()
    assert {each.name if isinstance(each, Problem) else None for each in found} == {"55P03"}
    assert len(sent.keys) == 2, "it is not asked again in halves"


@pytest.mark.parametrize("error", [asyncpg.QueryCanceledError, asyncpg.DivisionByZeroError])
async def test_what_fails_for_many_is_asked_for_by_each_alone(
    gateway: Gateway, sent: Statements, error: type[asyncpg.PostgresError]
) -> None:
    """Not in halves: the statement's time limit would pass for each of them."""
    sent.fails = error
    tasks = await gathered(sent, gateway, "k1", "k2", "k3")
    expected = [([f'{{"order_id":"k{n}","status":"new","n":{n}}}'], 30 + n) for n in range(4)]
    assert await shown_of(tasks) == expected
    assert [len(keys) for keys in sent.keys] == [1, 3]


async def test_each_row_is_found_by_its_index(connect: Connect, database: str) -> None:
    """Whatever PostgreSQL thinks of the number of keys: a plan that reads the whole table would wait for all of it."""
    observer = await owner(connect)
    await observer.execute(
        "CREATE TABLE many (id bigint PRIMARY KEY, t text);"
        " INSERT INTO many SELECT n, 't' FROM generate_series(1, 50000) n; ANALYZE many"
    )
    await protect(observer, "many")
    async with open_gateway(database) as gateway:
        table = gateway.catalog.current.tables["many"]
        assert isinstance(table, ProtectedTable)
        sql = keyed_reads(table, None, table.visible).statement.sql
        for mode in ("force_generic_plan", "force_custom_plan"):
            await observer.execute(f"SET plan_cache_mode = {mode}")
            await observer.execute(f"PREPARE p AS {sql}")
            keys = ",".join(str(n) for n in range(1, 257))
            plan = [row[0] for row in await observer.fetch(f"EXPLAIN EXECUTE p('{{{keys}}}')")]
            await observer.execute("DEALLOCATE p")
            assert any("Index Scan using many_pkey" in line for line in plan), plan
            assert not any("Seq Scan" in line for line in plan), plan


async def test_an_answer_has_its_bound_in_company_too(gateway: Gateway) -> None:
    few = replace(gateway, max_answer_bytes=37)
    assert await shown_of(reading(few, "k1", "k2")) == ["FP016", "FP016"]
    gateway.catalog.current.tables["orders"].plans.clear()
    assert [isinstance(each, tuple) for each in await shown_of(reading(replace(few, max_answer_bytes=38), "k1"))] == [
        True
    ]


async def test_a_document_of_some_size_is_read_alone(race: Race, gateway: Gateway, sent: Statements) -> None:
    """How long it is as text, PostgreSQL would have to find out: 1e100000 has a few bytes."""
    await race.observer.execute("ALTER TABLE orders ADD x jsonb")
    for key, most in (("k1", 90), ("k2", 3)):
        document = f"(SELECT jsonb_agg(i) FROM generate_series(1, {most}) i)"
        update = f"UPDATE orders SET x = {document} WHERE order_id = '{key}'"
        assert await race.direct(race.observer, update, 91) == "ok"
    await gateway.catalog.reload()
    found = await shown_of(reading(gateway, "k1", "k2"))
    assert all(isinstance(each, tuple) for each in found)
    sizes = [size for each in sent.sizes for size in each]
    assert [size is None for size in sizes] == [True, False]
