"""R14 and how sessions are used: pools, pipelines, savepoints, isolation levels, roles, procedures."""

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from tests.direct_sql.drivers import CLERK, OWNER, people, session
from tests.support.interleave import Connect
from tests.support.postgres import Unmade
from tests.support.racing import Race, open_race, outcome

UPDATE = "UPDATE public.orders SET n = n + 1 WHERE order_id = 'k'"
DELETE = "DELETE FROM public.orders WHERE order_id = 'k'"
INSERT = "INSERT INTO public.orders (order_id) VALUES ('k')"
BOTH_RULES = pytest.mark.parametrize("race", ["strict-external", "epoch-builtin"], indirect=True)
LEVELS = ["READ UNCOMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]


@pytest.fixture
async def race(request: pytest.FixtureRequest, connect: Connect, unmade: Unmade) -> AsyncIterator[Race]:
    """Give a table under strict with tokens of any source, or, in the tests that say so, the other way."""
    param: Any = getattr(request, "param", "strict-external")
    rule, _, source = param.partition("-")
    race = await open_race(connect, unmade, rule, source=source)
    await race.insert(race.a, "k", 30)
    async with people(race.observer, "public.orders"):
        yield race


@BOTH_RULES
async def test_every_isolation_level_has_the_same_answers(race: Race) -> None:
    equal = "FP409" if race.strict else "ok"
    async with session(race.dsn, CLERK) as sql:
        mark = 30
        for level in LEVELS:
            for statement in (UPDATE, DELETE, INSERT):
                assert await sql.run(statement, isolation=level) == "FP428", statement
                assert await sql.run(statement, isolation=level, token=mark - 1) == "FP409", statement
                if statement != INSERT:
                    assert (
                        await sql.run(f"SAVEPOINT s; {statement}; ROLLBACK TO s", isolation=level, token=mark) == equal
                    ), statement
                mark += 1
                assert await sql.run(statement, isolation=level, token=mark) == "ok", (level, statement)


@pytest.mark.parametrize("level", LEVELS[2:])
async def test_an_insert_under_an_old_snapshot_does_not_miss_a_mark(race: Race, level: str) -> None:
    """Of a key that was deleted, claimed or pruned after the snapshot: 40001, whatever breaks the glass."""
    changes = (
        "UPDATE public.orders SET last_fence_token = {0}; SET LOCAL fencepost.token = '{1}'; DELETE FROM public.orders",
        "DELETE FROM fencepost.marks; SELECT fencepost.raise_mark('orders/k', {1}, 'strict', true)",
        "SELECT fencepost.prune('orders', {1})",
    )
    for number, change in enumerate(changes):
        for setting in ("token = '{}'", "break_glass = 'a test'"):
            await race.observer.execute("SET session_replication_role = replica")
            await race.observer.execute("DELETE FROM public.orders; DELETE FROM fencepost.marks")
            if not number:
                await race.observer.execute("INSERT INTO public.orders VALUES ('k', 'new', 0, 30)")
            await race.observer.execute("RESET session_replication_role")
            transaction = race.b.transaction(isolation="serializable" if level == "SERIALIZABLE" else "repeatable_read")
            await transaction.start()
            await race.b.fetch("SELECT FROM public.orders")
            token = 100 * (number + 1)
            assert await race.direct(race.observer, change.format(token, token + 1)) == "ok", setting
            await race.b.execute(f"SET LOCAL fencepost.{setting.format(token - 1)}")
            assert await outcome(race.b.execute(INSERT)) == "40001", (change, setting)
            await transaction.rollback()


@BOTH_RULES
async def test_a_savepoint_gives_its_token_back_and_can_be_tried_again(race: Race) -> None:
    async with session(race.dsn, OWNER) as sql:
        undone = ("SAVEPOINT s", "SET LOCAL fencepost.token = '35'", UPDATE, "ROLLBACK TO s")
        assert await sql.run(*undone, UPDATE) == "FP428", "the setting went with it"
        assert await sql.run(*undone, "SET LOCAL fencepost.token = '34'", UPDATE) == "ok", "and so did the mark"
        assert await race.live_mark("k") == 34
        for token, statement in enumerate((UPDATE, DELETE, INSERT, UPDATE), 35):
            tries = ("SAVEPOINT s", statement, "ROLLBACK TO s", statement, "RELEASE s")
            assert await sql.run(*tries, token=token) == "ok", statement
    assert await race.live_mark("k") == 38


@BOTH_RULES
async def test_a_token_for_the_session_stays_in_a_pooled_connection_and_is_no_newer_for_that(race: Race) -> None:

    async def as_it_is(_connection: object) -> None:
        """Like a pooler in transaction mode: the next one finds the session as it was left."""

    pool = await asyncpg.create_pool(race.dsn, min_size=1, max_size=1, reset=as_it_is)
    try:
        async with pool.acquire() as connection:
            await connection.execute("SET fencepost.token = '31'")
            await connection.execute(UPDATE)
        async with pool.acquire() as connection:
            # Under strict it was good for one operation; under epoch the next one passes for the holder.
            assert await outcome(connection.execute(UPDATE)) == ("FP409" if race.strict else "UPDATE 1")
            await race.update(race.a, "k", 40)
            assert await outcome(connection.execute(UPDATE)) == "FP409"
    finally:
        await pool.close()


async def test_row_security_does_not_hide_a_row_from_its_fence(race: Race) -> None:
    await race.observer.execute("""
        ALTER TABLE orders ENABLE ROW LEVEL SECURITY;
        CREATE POLICY seen ON orders TO plain_clerk USING (status = 'new') WITH CHECK (true)""")
    async with session(race.dsn, CLERK) as sql:
        assert await sql.run(UPDATE, token=29) == "FP409"
        assert await sql.run("UPDATE public.orders SET status = 'hidden'", token=31) in ("ok", "42501")
        # An insert over a row that it cannot see is a unique violation, or stale: never a second row.
        assert await sql.run(INSERT, token=30) in ("23505", "FP409")
    assert await race.observer.fetchval("SELECT count(*) FROM orders") == 1
