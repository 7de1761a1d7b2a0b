"""Reads that share a statement: each sees what it would have seen alone."""

import asyncio

import pytest
from tests.integration.gathered_reads.conftest import TABLES, Statements, alone, gathered, reading, shown, shown_of
from tests.support.interleave import Connect
from tests.support.racing import Race, owner
from tests.support.use_cases import keyed, open_gateway, patch

from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.outcomes import Done
from fencepost.server.gateway.read import ReadOne
from fencepost.server.gateway.use_cases import read_one
from fencepost.server.ops.protect import protect
from fencepost.server.postgres.query import Field, Select, Selected
from fencepost.server.postgres.row_sql import Key


async def test_reads_that_come_meanwhile_are_one_statement(gateway: Gateway, sent: Statements) -> None:
    first, *others = await gathered(sent, gateway, "k3", "k1", "k2", "nowhere", "k1")
    expected = [([f'{{"order_id":"k{n}","status":"new","n":{n}}}'], 30 + n) for n in (3, 1, 2)]
    assert await shown_of(others) == [*expected, "FP006", expected[1]]
    assert isinstance(await first, Done)
    assert sent.keys == [[("k0",)], [("k1",), ("k1",), ("k2",), ("k3",), ("nowhere",)]]


async def test_a_read_sees_what_was_acknowledged_before_it_was_asked(
    race: Race, gateway: Gateway, sent: Statements
) -> None:
    """Also of a row that a statement under way has read already, and when another gateway wrote it."""
    sent.stop = "after"
    old = reading(gateway, "k0")
    await sent.stopped.wait()
    async with open_gateway(race.dsn) as other:
        assert isinstance(await patch(other, keyed("k0", 90, n=7)), Done)
    new = reading(gateway, "k0")
    await asyncio.sleep(0)
    sent.go.set()
    assert await shown_of(old) == [(['{"order_id":"k0","status":"new","n":0}'], 30)]
    assert await shown_of(new) == [(['{"order_id":"k0","status":"new","n":7}'], 90)]


KEYS: dict[str, list[Key]] = {
    "numbers": [("7",), ("07",), ("-1",), ("8",), ("x",), ("99999999999",), ("",), ("7 ",)],
    "pairs": [("1", "x"), ("1", "y,z"), ("01", "x"), ("9223372036854775807", ""), ("9223372036854775808", "")],
    "ids": [("00000000-0000-0000-0000-00000000000a",), ("00000000-0000-0000-0000-00000000000A",), ("0",)],
    "days": [("2026-01-31",), ("31 Jan 2026",), ("yesterday",), ("no day",)],
    "moods": [("sad",), ("glad",), ("angry",)],
    'Odd "a" b': [("k",), ("k ",), ("kkkkkkkkkkkkk",), ("a\0b",)],
    "parts": [("3",), ("13",), ("4",), ("30",)],
}


@pytest.mark.versions
async def test_together_or_alone_the_answer_is_the_same(
    connect: Connect, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    observer = await owner(connect)
    await observer.execute(TABLES)
    for table in KEYS:
        await protect(observer, table)
    async with open_gateway(database, pool_size=4) as gateway:
        for table, keys in KEYS.items():
            expected = [shown(await alone(gateway, ReadOne(table, key), monkeypatch)) for key in keys]
            found = await asyncio.gather(*(read_one(gateway, ReadOne(table, key)) for key in keys))
            assert [shown(each) for each in found] == expected, table
            assert any(isinstance(each, tuple) for each in expected), table
        await gateway.gathered.close()


@pytest.mark.parametrize(
    ("select", "gathers"),
    [
        (None, True),
        (("*",), True),
        ((Selected(Field("n")), Selected(Field("status"), alias="s")), True),
        ((Selected(Field("n")), Selected(Field("n"), alias="again")), False),
        ((Selected(Field("last_fence_token")),), True),
        ((Selected(Field("n"), cast="text"),), False),
    ],
)
async def test_selects(
    gateway: Gateway, sent: Statements, select: Select, *, gathers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = shown(await alone(gateway, ReadOne("orders", ("k1",), select), monkeypatch))
    assert await shown_of(reading(gateway, "k1", select=select)) == [expected]
    assert bool(sent.keys) is gathers


async def test_a_table_that_has_changed_is_read_as_it_is_now(race: Race, gateway: Gateway) -> None:
    await shown_of(reading(gateway, "k0", "k1"))
    await race.observer.execute("ALTER TABLE orders ALTER n TYPE bigint, ADD extra text DEFAULT 'e'")
    found = await shown_of(reading(gateway, "k0", "k1", "k2"))
    assert all(isinstance(each, tuple) for each in found), found
    await race.observer.execute("ALTER TABLE orders DROP n")
    found = await shown_of(reading(gateway, "k0", "k1", "k2"))
    assert all(isinstance(each, tuple) and '"n"' not in each[0][0] for each in found), found


async def test_a_key_that_may_be_none_goes_alone(connect: Connect, database: str, sent: Statements) -> None:
    """In company it would fail for all, and each would be asked for again."""
    observer = await owner(connect)
    await observer.execute(TABLES)
    keys = (("numbers", "x"), ("numbers", "07"), ("days", "2026-01-31"), ("ids", "0"))
    for table in ("numbers", "days", "ids"):
        await protect(observer, table)
    async with open_gateway(database) as gateway:
        for table, key in keys:
            await shown_of(reading(gateway, key, table=table))
            assert sent.keys == [], (table, key)
