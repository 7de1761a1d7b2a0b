"""Reads of several callers that share a statement: roles, and row security."""

import asyncio
from dataclasses import replace

import pytest
from tests.integration.gathered_reads.conftest import TABLES, Statements, reading, shown_of
from tests.support.asking import NOTHING, READER, WEB, acting
from tests.support.interleave import Connect
from tests.support.postgres import Unmade
from tests.support.racing import open_race, owner
from tests.support.use_cases import open_gateway

from fencepost.server.fence.problems import Problem
from fencepost.server.gateway.gathered import read_lanes
from fencepost.server.ops.protect import protect
from fencepost.server.postgres.query import Field, Selected
from fencepost.server.postgres.reading import MOST_JSON


async def test_roles_share_no_statement_and_have_their_own_rights(
    connect: Connect, unmade: Unmade, sent: Statements
) -> None:
    race = await open_race(connect, unmade)
    for number in range(3):
        await race.insert(race.a, f"k{number}", 30, n=number)
    granted = f"""
    GRANT SELECT ON orders TO {WEB}; GRANT SELECT (order_id, n, last_fence_token) ON orders TO {READER}"""
    async with acting(race.observer, race.dsn, granted, pool_size=4) as stage:
        of = {role: stage.of(role) for role in (WEB, READER, NOTHING)}
        narrow = (Selected(Field("n")),)
        sent.stop = "before"
        first = reading(of[WEB], "k0")
        await sent.stopped.wait()
        tasks = reading(of[WEB], "k1", "k2") + reading(of[READER], "k1", "k2", select=narrow)
        tasks += reading(of[READER], "k1", "k2") + reading(of[NOTHING], "k1", "k2")
        await asyncio.sleep(0)
        sent.go.set()
        found = await asyncio.gather(*tasks)
        await asyncio.gather(*first)
        codes = [each.name if isinstance(each, Problem) else "" for each in found]
        assert codes == ["", "", "", "", "42501", "42501", "42501", "42501"]
        await stage.gateway.gathered.close()
        await stage.assert_own_name()


SECURED = """
ALTER TABLE {0} ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON {0} USING (order_id = NULLIF(current_setting('request.jwt.claims', true), '')::json ->> 'sub')"""
SWAPPED = f"""
CREATE TABLE later (LIKE orders INCLUDING ALL); INSERT INTO later SELECT * FROM orders; {SECURED.format("later")};
GRANT SELECT ON later TO {WEB}; ALTER TABLE orders RENAME TO earlier; ALTER TABLE later RENAME TO orders"""


@pytest.mark.parametrize("made", [SECURED.format("orders"), SWAPPED], ids=["enabled", "by another table"])
async def test_row_security_that_came_without_a_notification_is_judged_with_the_claims(
    connect: Connect, unmade: Unmade, sent: Statements, made: str
) -> None:
    """None of these fails a request: the catalog learns of it by and by."""
    race = await open_race(connect, unmade)
    for number in range(3):
        await race.insert(race.a, f"k{number}", 30, n=number)
    async with acting(race.observer, race.dsn, f"GRANT SELECT ON orders TO {WEB}", pool_size=4) as stage:
        await shown_of(reading(stage.of(WEB), "k1"))
        await race.observer.execute(made)
        mine = stage.of(WEB, claims='{"sub": "k1"}')
        found = await shown_of(reading(mine, "k1", "k2"))
        assert [isinstance(found[0], tuple), found[1]] == [True, "FP006"]
        assert len(sent.keys) > 1, "they were sent together at first"
        await stage.gateway.gathered.close()


async def test_what_may_look_at_the_caller_goes_alone(connect: Connect, database: str) -> None:
    observer = await owner(connect)
    await observer.execute(TABLES)
    await observer.execute(
        "CREATE VIEW seen AS SELECT * FROM numbers; ALTER TABLE pairs ENABLE ROW LEVEL SECURITY;"
        " CREATE TYPE point2 AS (x int, y int); CREATE TABLE points (id int PRIMARY KEY, p point2);"
        " CREATE TABLE bare (id int PRIMARY KEY)"
    )
    for table in ("numbers", "pairs", "points", "parts"):
        await protect(observer, table)
    async with open_gateway(database) as gateway:
        tables = gateway.catalog.current.tables
        assert read_lanes(tables["bare"], None, MOST_JSON) is None, "it may have heirs"
        assert read_lanes(tables["parts"], None, MOST_JSON) is None, "a statement locks all partitions"
        assert read_lanes(tables["seen"], None, MOST_JSON) is None
        assert read_lanes(tables["pairs"], None, MOST_JSON) is None
        points = read_lanes(tables["points"], None, MOST_JSON)
        assert points is not None
        assert points.of(gateway.caller, ("1",)) is not None
        with_role = replace(gateway.caller, name="c", role=WEB)
        assert points.of(with_role, ("1",)) is None
        numbers = read_lanes(tables["numbers"], None, MOST_JSON)
        assert numbers is not None
        assert numbers.of(with_role, ("1",)) is not numbers.of(gateway.caller, ("1",))
