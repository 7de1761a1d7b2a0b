"""What `protect --source builtin` must see before tokens are drawn (R12): the next token is above every mark."""

from collections.abc import Awaitable

import asyncpg
from tests.support.interleave import Connect, Connection, run_plan, start
from tests.support.racing import outcome, owner

from fencepost.server.ops.protect import plan_protect, protect
from fencepost.server.ops.schema import settle_sql

HIGH = 5000
"""The highest mark that another source left; the built-in one has issued nothing."""


async def table(connect: Connect) -> Connection:
    """Make t, which takes external tokens; gives its owner's connection."""
    connection = await owner(connect, "CREATE TABLE public.t (id int PRIMARY KEY, v text)")
    await protect(connection, "t")
    return connection


async def with_token(connection: Connection, token: int, sql: str) -> str:
    """Run SQL under a token, in a transaction of its own; "ok" or the SQLSTATE."""

    async def run() -> str:
        async with connection.transaction():
            await connection.execute(f"SET LOCAL fencepost.token = '{token}'")
            await connection.execute(sql)
        return "ok"

    return await outcome(run())


async def issued(connection: Connection) -> int:
    """How far the built-in source is."""
    number: int = await connection.fetchval("SELECT fencepost.issued()")
    return number


async def refusal_of(work: Awaitable[object]) -> str:
    """PostgreSQL's error; "" when there is none."""
    try:
        await work
    except asyncpg.PostgresError as error:
        return str(error)
    return ""


async def draw(connection: Connection) -> int:
    """Draw a token, as a grant does."""
    number: int = await connection.fetchval("SELECT nextval('fencepost.tokens')")
    return number


async def becomes_builtin(db: Connection, name: str = "t") -> None:
    """Assert that the next token is just above the highest mark, and passes where it stands."""
    await protect(db, name, source="builtin")
    token = await draw(db)
    assert token == HIGH + 1, token
    present = await db.fetchval(f"SELECT EXISTS (SELECT FROM {name} WHERE id = 2)")
    write = f"UPDATE {name} SET v = 'y' WHERE id = 2" if present else f"INSERT INTO {name} VALUES (2, 'y')"
    assert await with_token(db, token, write) == "ok"
    assert await with_token(db, HIGH + 2, f"DELETE FROM {name}") == "FP018"


async def test_the_mark_of_a_row(connect: Connect) -> None:
    """Rows are asked."""
    db = await table(connect)
    await with_token(db, 30, "INSERT INTO t (id) VALUES (1), (2), (3)")
    await with_token(db, HIGH, "UPDATE t SET v = 'x' WHERE id = 2")
    await becomes_builtin(db)


async def test_the_mark_of_a_deleted_row(connect: Connect) -> None:
    """So are marks without a row."""
    db = await table(connect)
    await with_token(db, 30, "INSERT INTO t (id) VALUES (2)")
    await with_token(db, HIGH, "DELETE FROM t")
    await becomes_builtin(db)


async def test_the_mark_of_a_claim(connect: Connect) -> None:
    """However they came about."""
    db = await table(connect)
    await db.execute(f"SELECT fencepost.raise_mark('t/2', {HIGH}, 'strict', true)")
    await becomes_builtin(db)


async def test_the_floor_of_pruned_marks(connect: Connect) -> None:
    """And the floor, which stands for the marks that were forgotten."""
    db = await table(connect)
    await with_token(db, HIGH, "INSERT INTO t (id) VALUES (2); DELETE FROM t")
    assert await db.fetchval(f"SELECT fencepost.prune('t', {HIGH})") == 1
    await becomes_builtin(db)


async def test_the_marks_of_partitions(connect: Connect) -> None:
    """A partitioned table is one table."""
    db = await owner(connect, "CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)")
    await db.execute("CREATE TABLE p_1 PARTITION OF p FOR VALUES FROM (0) TO (2)")
    await db.execute("CREATE TABLE p_2 PARTITION OF p FOR VALUES FROM (2) TO (9)")
    await protect(db, "p")
    await with_token(db, 30, "INSERT INTO p (id) VALUES (2)")
    await with_token(db, HIGH, "UPDATE p SET v = 'x'")
    await becomes_builtin(db, "p")


async def test_a_mark_that_a_policy_hides_is_not_overlooked(connect: Connect) -> None:
    """FORCE ROW LEVEL SECURITY hides rows from their owner: refused, rather than overlooked. `protect` looks for that
    first; here it comes after.
    """
    db = await table(connect)
    await with_token(db, HIGH, "INSERT INTO t (id) VALUES (2)")
    await db.execute("CREATE ROLE keeper; GRANT keeper TO CURRENT_USER; ALTER TABLE t OWNER TO keeper")
    try:
        await db.execute("ALTER TABLE t ENABLE ROW LEVEL SECURITY")
        await db.execute("CREATE POLICY low ON t USING (id < 2)")
        await db.execute("GRANT ALL ON SCHEMA public TO keeper")
        await db.execute(settle_sql("keeper"))
        await db.execute("SET ROLE keeper")
        plan = await plan_protect(db, "t", source="builtin")
        await db.execute("ALTER TABLE t FORCE ROW LEVEL SECURITY")
        output = await refusal_of(run_plan(db, plan))
        assert "row-level security" in output, output
    finally:
        await db.execute("RESET ROLE")
        await db.execute(settle_sql(await db.fetchval("SELECT current_user::text")))
        await db.execute("DROP OWNED BY keeper CASCADE; DROP ROLE keeper")


async def test_a_write_under_way_is_waited_for(connect: Connect) -> None:
    """A write that began before: protect waits for it, and sees its mark whatever isolation its role prefers."""
    db, writer, observer = await table(connect), await connect(), await connect()
    await with_token(db, 30, "INSERT INTO t (id) VALUES (2)")
    await db.execute("SET default_transaction_isolation = 'repeatable read'")
    await writer.execute(f"BEGIN; UPDATE public.t SET v = 'x', last_fence_token = {HIGH}")
    protecting = await start(observer, becomes_builtin(db), db.get_server_pid())
    assert not protecting.done()
    await writer.execute("COMMIT")
    await protecting


async def test_a_claim_under_way_is_waited_for(connect: Connect) -> None:
    """A claim of an absent key that was judged as external, and has looked at the table."""
    db, claimer, observer = await table(connect), await connect(), await connect()
    await claimer.execute(f"BEGIN; SELECT fencepost.raise_mark('t/2', {HIGH}, 'strict', true); SELECT FROM public.t")
    protecting = await start(observer, becomes_builtin(db), db.get_server_pid())
    assert not protecting.done()
    await claimer.execute("COMMIT")
    await protecting
