"""No statement lowers a mark or a floor; one statement may, which names it (R6)."""

import asyncpg
import pytest
from tests.support.interleave import Connect
from tests.support.postgres import Unmade
from tests.support.racing import Race, open_race

from fencepost.server.ops.protect import protect

LOWERINGS = {
    "marks": "UPDATE fencepost.marks SET last_fence_token = last_fence_token - 1 WHERE resource = 't/1'",
    "marks by an upsert": "INSERT INTO fencepost.marks AS k VALUES ('t/1', 3, '0', true) ON CONFLICT (resource)"
    " DO UPDATE SET last_fence_token = excluded.last_fence_token",
    "floors": "UPDATE fencepost.floors SET floor = floor - 1 WHERE name = 't'",
}


@pytest.fixture
async def race(connect: Connect, unmade: Unmade) -> Race:
    race = await open_race(connect, unmade, "strict")
    await race.observer.execute("SET search_path = public")
    return race


async def made(race: Race, table: str) -> None:
    await race.observer.execute(f"CREATE TABLE {table} (id int PRIMARY KEY)")
    await protect(race.observer, table)


async def deleted_under(race: Race, table: str, token: int) -> None:
    assert await race.direct(race.a, f"INSERT INTO {table} (id) VALUES (1)", token - 1) == "ok"
    assert await race.direct(race.a, f"DELETE FROM {table} WHERE id = 1", token) == "ok"


async def test_no_statement_lowers_a_mark_or_a_floor(race: Race) -> None:
    """But one that names the mark that is to fall, which lowers this one and no other."""
    await made(race, "t")
    await deleted_under(race, "t", 50)
    await race.observer.execute("UPDATE fencepost.floors SET floor = 40 WHERE name = 't'")
    for what, lowering in LOWERINGS.items():
        with pytest.raises(asyncpg.ObjectNotInPrerequisiteStateError, match="marks never fall"):
            await race.observer.execute(lowering)
        for named, answer in (("t/2", "55000"), ("t" if what == "floors" else "t/1", "ok")):
            sql = f"SET LOCAL fencepost.lowering = '{named}'; {lowering}"
            assert await race.direct(race.observer, sql) == answer, (what, named)
