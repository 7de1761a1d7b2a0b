"""R14 and how sessions are used: pools, pipelines, savepoints, isolation levels, roles, procedures."""

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import psycopg
import pytest
from tests.direct_sql.drivers import CLERK, OWNER, people, session
from tests.support.interleave import Connect
from tests.support.racing import Race, open_race, outcome

UPDATE = "UPDATE public.orders SET n = n + 1 WHERE order_id = 'k'"
DELETE = "DELETE FROM public.orders WHERE order_id = 'k'"
INSERT = "INSERT INTO public.orders (order_id) VALUES ('k')"
BOTH_RULES = pytest.mark.parametrize("race", ["strict-external", "epoch-builtin"], indirect=True)
LEVELS = ["READ UNCOMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]


@pytest.fixture
async def race(request: pytest.FixtureRequest, connect: Connect, database: str) -> AsyncIterator[Race]:
    """Give a table under strict with tokens of any source, or, in the tests that say so, the other way."""
    param: Any = getattr(request, "param", "strict-external")
    rule, _, source = param.partition("-")
    race = await open_race(connect, database, rule, source=source)
    await race.insert(race.a, "k", 30)
    async with people(race.observer, "public.orders"):
        yield race


@BOTH_RULES
async def test_every_isolation_level_has_the_same_answers(race: Race) -> None:
    equal = "FP409" if race.strict else "ok"
    async with session("psycopg" if race.strict else "asyncpg", race.dsn, CLERK) as sql:
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
async def test_an_old_snapshot_fails_to_serialize_and_is_not_called_stale(race: Race, level: str) -> None:
    """R4: 40001 means try again; the answer of the fence comes with the next snapshot."""
    for statement in (UPDATE, DELETE):
        transaction = race.b.transaction(isolation="serializable" if level == "SERIALIZABLE" else "repeatable_read")
        await transaction.start()
        assert await race.b.fetchval("SELECT count(*) FROM public.orders") == 1, statement
        token = (await race.live_mark("k") or 0) + 2
        assert await race.update(race.a, "k", token), statement
        await race.b.execute(f"SET LOCAL fencepost.token = '{token - 1}'")
        assert await outcome(race.b.execute(statement)) == "40001", statement
        await transaction.rollback()
        assert await race.direct(race.b, statement, token - 1) == "FP409", statement


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
async def test_an_orm_that_flushes_twice_is_one_operation(race: Race) -> None:
    async with session("psycopg" if race.strict else "asyncpg", race.dsn, OWNER) as sql:
        assert await sql.run(UPDATE, UPDATE, DELETE, INSERT, UPDATE, token=31) == "ok"
        assert await race.live_mark("k") == 31
        changed = "UPDATE public.orders SET n = n + 1, last_fence_token = 32"
        # The second value is no new one, but the row version is this transaction's own.
        assert await sql.run(changed, changed) == "ok"
        assert await sql.run(UPDATE) == "FP428", "another transaction"
        assert await sql.run(changed.replace("= 32", "= 33"), changed.replace("= 32", "= 34")) == "ok"
        assert await sql.run(UPDATE, token=34) == ("FP409" if race.strict else "ok"), "another transaction"


@BOTH_RULES
async def test_a_savepoint_gives_its_token_back_and_can_be_tried_again(race: Race) -> None:
    async with session("psycopg" if race.strict else "asyncpg", race.dsn, OWNER) as sql:
        undone = ("SAVEPOINT s", "SET LOCAL fencepost.token = '35'", UPDATE, "ROLLBACK TO s")
        assert await sql.run(*undone, UPDATE) == "FP428", "the setting went with it"
        assert await sql.run(*undone, "SET LOCAL fencepost.token = '34'", UPDATE) == "ok", "and so did the mark"
        assert await race.live_mark("k") == 34
        for token, statement in enumerate((UPDATE, DELETE, INSERT, UPDATE), 35):
            tries = ("SAVEPOINT s", statement, "ROLLBACK TO s", statement, "RELEASE s")
            assert await sql.run(*tries, token=token) == "ok", statement
    assert await race.live_mark("k") == 38


async def test_a_refused_statement_leaves_the_rest_of_its_transaction_to_a_savepoint(race: Race) -> None:
    async with (
        await psycopg.AsyncConnection.connect(race.dsn, autocommit=True) as connection,
        connection.transaction(),
    ):

        async def stale() -> None:
            async with connection.transaction():
                await connection.execute("SET LOCAL fencepost.token = '29'")
                await connection.execute(UPDATE.encode())

        await connection.execute("SET LOCAL fencepost.token = '31'")
        await connection.execute("INSERT INTO public.orders (order_id) VALUES ('new')")
        with pytest.raises(psycopg.errors.Error, match="stale token 29"):
            await stale()
        await connection.execute(UPDATE.encode())
    assert (await race.live_mark("k"), await race.live_mark("new")) == (31, 31)


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


async def test_asyncpgs_pool_takes_a_token_of_the_session_back(race: Race) -> None:
    pool = await asyncpg.create_pool(race.dsn, min_size=1, max_size=1)
    try:
        async with pool.acquire() as connection:
            await connection.execute("SET fencepost.token = '31'")
        async with pool.acquire() as connection:
            assert await outcome(connection.execute(UPDATE)) == "FP428"
    finally:
        await pool.close()


async def test_a_pipeline_is_judged_statement_by_statement(race: Race) -> None:
    update = UPDATE.encode()
    async with await psycopg.AsyncConnection.connect(race.dsn, autocommit=True) as connection:
        async with connection.pipeline(), connection.transaction():
            await connection.execute("SET LOCAL fencepost.token = '31'")
            await connection.execute(update)
            await connection.execute(update)
        assert await race.live_mark("k") == 31

        async def stale() -> None:
            async with connection.pipeline(), connection.transaction():
                await connection.execute("INSERT INTO public.orders (order_id, last_fence_token) VALUES ('new', 50)")
                await connection.execute("SET LOCAL fencepost.token = '30'")
                await connection.execute(update)

        with pytest.raises(psycopg.errors.Error, match="stale token 30"):
            await stale()
        # Without a transaction a pipeline is one until it is synced: the setting holds to its end.
        async with connection.pipeline():
            await connection.execute("SELECT set_config('fencepost.token', '32', true)")
            await connection.execute(update)
        assert await race.live_mark("k") == 32
    assert await race.row("new") is None, "all or nothing"


async def test_prepared_statements_read_the_token_of_each_execution(race: Race) -> None:
    """Also once PostgreSQL has settled on a generic plan."""
    insert = "INSERT INTO public.orders (order_id) VALUES ($1)"
    prepared = {
        sql: await race.c.prepare(sql) for sql in (UPDATE, insert, "DELETE FROM public.orders WHERE order_id = $1")
    }
    update, add, remove = prepared.values()
    for token in range(31, 45):
        async with race.c.transaction():
            await race.c.execute(f"SET LOCAL fencepost.token = '{token}'")
            await update.fetch()
            await add.fetch("x")
            await remove.fetch("x")
        assert await outcome(update.fetch()) == "FP428"
    assert await race.live_mark("k") == 44
    assert await race.recorded("x") == (44, True)


async def test_a_procedure_that_commits_gives_its_token_anew(race: Race) -> None:
    await race.observer.execute(f"""
        CREATE PROCEDURE public.nightly(tokens bigint[], again boolean) LANGUAGE plpgsql AS $$
        DECLARE
          t bigint;
        BEGIN
          FOREACH t IN ARRAY tokens LOOP
            PERFORM set_config('fencepost.token', t::text, true);
            {UPDATE};
            COMMIT;
          END LOOP;
          IF again THEN {UPDATE}; END IF;
        END $$""")
    connection = race.observer
    assert await outcome(connection.execute("CALL nightly(ARRAY[31, 32, 33], false)")) == "CALL"
    assert await outcome(connection.execute("CALL nightly(ARRAY[34, 33], false)")) == "FP409"
    assert await outcome(connection.execute("CALL nightly(ARRAY[35], true)")) == "FP428", "LOCAL ends with COMMIT"
    assert ((await race.row("k") or {})["n"], await race.live_mark("k")) == (5, 35)


async def test_a_handler_that_swallows_the_refusal_has_no_effect(race: Race) -> None:
    await race.insert(race.a, "gone", 30)
    await race.delete(race.a, "gone", 50)
    for statement in (UPDATE, DELETE, INSERT.replace("'k'", "'gone'")):
        swallow = f"DO $$ BEGIN {statement}; EXCEPTION WHEN OTHERS THEN NULL; END $$"
        assert await race.direct(race.a, swallow, 29) == "ok", statement
        assert (await race.row("k") or {})["n"] == 0, statement
        assert await race.live_mark("k") == 30, statement
        assert (await race.row("gone"), await race.recorded("gone")) == (None, (50, True)), statement


async def test_who_sets_a_role_is_judged_like_all_others(race: Race) -> None:
    for role in (CLERK, OWNER):
        assert await race.direct(race.observer, f"SET LOCAL ROLE {role}; {UPDATE}") == "FP428", role
        assert await race.direct(race.observer, f"SET LOCAL ROLE {role}; {UPDATE}", 29) == "FP409", role
    assert await race.direct(race.observer, f"SET LOCAL ROLE {CLERK}; {UPDATE}", 31) == "ok"
    assert await race.direct(race.observer, f"SET LOCAL ROLE {CLERK}; {DELETE}", 32) == "ok"
    assert await race.direct(race.observer, f"SET LOCAL ROLE {OWNER}; {INSERT}", 33) == "ok"


async def test_row_security_does_not_hide_a_row_from_its_fence(race: Race) -> None:
    await race.observer.execute("""
        ALTER TABLE orders ENABLE ROW LEVEL SECURITY;
        CREATE POLICY seen ON orders TO plain_clerk USING (status = 'new') WITH CHECK (true)""")
    async with session("asyncpg", race.dsn, CLERK) as sql:
        assert await sql.run(UPDATE, token=29) == "FP409"
        assert await sql.run("UPDATE public.orders SET status = 'hidden'", token=31) in ("ok", "42501")
        # An insert over a row that it cannot see is a unique violation, or stale: never a second row.
        assert await sql.run(INSERT, token=30) in ("23505", "FP409")
    assert await race.observer.fetchval("SELECT count(*) FROM orders") == 1


async def test_a_two_phase_commit_keeps_what_was_judged(race: Race) -> None:
    prepared = await race.observer.fetchval("SELECT current_setting('max_prepared_transactions')::int > 0")
    await race.a.execute(f"BEGIN; SET LOCAL fencepost.token = '31'; {UPDATE}")
    assert await outcome(race.a.execute("PREPARE TRANSACTION 'fence'")) == (
        "PREPARE TRANSACTION" if prepared else "55000"
    )
    if prepared:
        await race.a.execute("COMMIT PREPARED 'fence'")
    assert await race.live_mark("k") == (31 if prepared else 30)
