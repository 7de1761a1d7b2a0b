"""What was done once for many databases is in each of them, and nothing that was done to another copy."""

import asyncpg
from tests.support.ready_made import ReadyMade, Unmade

from fencepost.testing.servers.databases import run_on


async def rows(dsn: str) -> int:
    connection = await asyncpg.connect(dsn)
    try:
        count: int = await connection.fetchval("SELECT count(*) FROM made")
    finally:
        await connection.close()
    return count


async def test_a_copy_is_as_it_was_made_whatever_became_of_the_others(databases: ReadyMade) -> None:
    prepared: list[str] = []

    async def prepare(dsn: str) -> str:
        await run_on(dsn, "CREATE TABLE made (n int); INSERT INTO made VALUES (1)")
        prepared.append(dsn)
        return dsn

    first, second, early = (Unmade(databases) for _ in "123")
    assert await first.made_with(prepare, prepare) == prepared[0]
    await run_on(first.url, "DELETE FROM made")
    await run_on(early.url, "SELECT 'it is there already, and empty'")
    assert await second.made_with(prepare, prepare) == prepared[0], "made once"
    assert await early.made_with(prepare, prepare) == early.url, "and here, where no copy can be"
    assert [await rows(each.url) for each in (first, second, early)] == [0, 1, 1]
    for each in (first, second, early):
        each.drop()
