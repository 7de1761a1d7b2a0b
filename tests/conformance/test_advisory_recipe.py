"""The SQL of docs/sources/postgres-advisory.md, for programs that take advisory locks themselves, runs."""

import asyncpg
import pytest
from tests.conformance.test_row_locks import ROOT, cut, recipes_of
from tests.support.interleave import Connect, Connection, start

RECIPES = recipes_of(ROOT / "docs" / "sources" / "postgres-advisory.md")


async def draw(connection: Connection) -> int:
    """Take the lock and draw, a statement at a time; returns the number."""
    lock, number = RECIPES["draw"].strip().splitlines()
    await connection.execute(lock)
    drawn: int = await connection.fetchval(number)
    return drawn


async def test_the_number_rises_and_who_lost_the_lock_draws_no_more(connect: Connect) -> None:
    assert set(RECIPES) == {"fences", "draw"}
    observer, first, second = await connect(), await connect(), await connect()
    await observer.execute(RECIPES["fences"])
    assert await draw(first) == 1
    waiting = await start(observer, draw(second), second.get_server_pid())
    assert not waiting.done()
    await cut(first, by=observer)
    assert await waiting == 2
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        await draw(first)
    assert await observer.fetchval("SELECT fence FROM fences") == 2
