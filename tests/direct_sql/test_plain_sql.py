"""R14: whatever SQL writes a row, and by whichever client, one rule judges it: statements, sessions, errors."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import asyncpg
import pytest
from tests.direct_sql.drivers import CLERK, OWNER, Session, people, session
from tests.support.interleave import Connect, Connection
from tests.support.postgres import Unmade
from tests.support.racing import OPERATOR, REASON, STRANGER, Race, open_race, operators, outcome, owner

from fencepost.server.fence.token import Rule
from fencepost.server.ops.doctor import examine
from fencepost.server.ops.doctor_tables import TABLES
from fencepost.server.ops.protect import protect
from fencepost.server.ops.schema import EVENT_TRIGGERS
from fencepost.server.postgres import upkeep

# R14: whatever SQL writes a row, and by whichever client, the same rule judges it.
# Each statement is run without a token, below the mark and above it, and the plain ones at it, too; once by a role
# that may just write to the table, under strict, and once by the table's owner, under epoch.

MARK = 30

MORE = """
CREATE TABLE public.source (id text PRIMARY KEY, n int);
INSERT INTO public.source VALUES ('k', 5), ('gone', 6);
CREATE VIEW public.shown AS SELECT order_id AS id, n FROM public.orders WHERE order_id <> 'hidden';
CREATE FUNCTION public.touch(p_id text) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
  m int;
BEGIN
  UPDATE public.orders o SET n = o.n + 1 WHERE o.order_id = p_id RETURNING o.n INTO m;
  RETURN m;
END $$;
CREATE FUNCTION public.put_away(p_id text) RETURNS SETOF public.orders LANGUAGE sql AS
$$ DELETE FROM public.orders WHERE order_id = p_id RETURNING * $$;
CREATE FUNCTION public.add(p_id text) RETURNS void LANGUAGE sql BEGIN ATOMIC
  INSERT INTO public.orders (order_id, n) VALUES (p_id, 7); END;
"""

DELETES = {
    "DELETE": "DELETE FROM public.orders WHERE order_id = 'k'",
    "DELETE USING": "DELETE FROM public.orders o USING public.source s WHERE s.id = o.order_id",
    "DELETE in a CTE": "WITH d AS (DELETE FROM public.orders RETURNING *) SELECT count(*) FROM d",
    "DELETE in a function": "SELECT * FROM public.put_away('k')",
    "MERGE DELETE": "MERGE INTO public.orders o USING public.source s ON s.id = o.order_id WHEN MATCHED THEN DELETE",
    "UPDATE, DELETE": "UPDATE public.orders SET n = 8; DELETE FROM public.orders",
}


@pytest.fixture(params=["strict-external", "epoch-builtin"])
async def race(request: pytest.FixtureRequest, connect: Connect, unmade: Unmade) -> AsyncIterator[Race]:
    rule, _, source = request.param.partition("-")
    race = await open_race(connect, unmade, rule, source=source)
    await race.observer.execute(MORE)
    async with people(race.observer, "public.orders", "public.source", "public.shown"):
        yield race


async def start_over(race: Race) -> None:
    """Row k at the mark, key gone deleted at the mark, and nothing else: behind the triggers' back."""
    await race.observer.execute(f"""
        SET session_replication_role = replica;
        DELETE FROM public.orders;
        INSERT INTO public.orders VALUES ('k', 'new', 0, {MARK});
        TRUNCATE fencepost.marks;
        INSERT INTO fencepost.marks (resource, last_fence_token, xid, row_absent)
        VALUES ('orders/k', {MARK}, '3', false), ('orders/gone', {MARK}, '3', true);
        RESET session_replication_role""")


async def state(race: Race) -> list[tuple[object, ...]]:
    rows = await race.observer.fetch("SELECT order_id, status, n, last_fence_token FROM public.orders ORDER BY 1")
    return [tuple(row) for row in rows]


async def written(sql: Session, statement: str, token: object) -> str:
    if not statement:
        return await sql.copy("orders", ("order_id", "n"), ("gone", 5), token=token)
    return await sql.run(statement, token=token)


@pytest.mark.versions
async def test_every_statement_is_judged_alike(race: Race) -> None:
    before = [("k", "new", 0, MARK)]
    equal = "FP409" if race.strict else "ok"
    cases = [(None, "FP428"), (MARK - 1, "FP409"), (MARK + 1, "ok")]
    plain = [(MARK, equal), (f"orders={MARK + 1}", "ok"), (f"source={MARK + 1}", "FP428"), ("0", "FP400")]
    newer = race.observer.get_server_version() >= (17,)
    deletes_since_17 = {
        "MERGE NOT MATCHED BY SOURCE": "MERGE INTO public.orders o USING public.source s ON s.id = o.order_id || '!'"
        " WHEN NOT MATCHED BY SOURCE THEN DELETE",
        "MERGE RETURNING": "WITH m AS (MERGE INTO public.orders o USING public.source s ON s.id = o.order_id"
        " WHEN MATCHED THEN DELETE RETURNING merge_action()) SELECT count(*) FROM m",
    }
    deletes = DELETES | (deletes_since_17 if newer else {})
    updates = {
        "UPDATE": "UPDATE public.orders SET n = 9 WHERE order_id = 'k'",
        "UPDATE that echoes the mark": "UPDATE public.orders SET n = 9, last_fence_token = last_fence_token",
        "UPDATE that writes a default": "UPDATE public.orders SET n = 9, last_fence_token = DEFAULT",
        "UPDATE FROM": "UPDATE public.orders o SET n = s.n FROM public.source s WHERE s.id = o.order_id",
        "UPDATE of a view": "UPDATE public.shown SET n = 9 WHERE id = 'k'",
        "UPDATE in a CTE": "WITH u AS (UPDATE public.orders SET n = 9 RETURNING *) SELECT count(*) FROM u",
        "UPDATE in a function": "SELECT public.touch('k')",
        "ON CONFLICT DO UPDATE": "INSERT INTO public.orders (order_id) VALUES ('k')"
        " ON CONFLICT (order_id) DO UPDATE SET n = 9, status = excluded.status",
        "MERGE UPDATE": "MERGE INTO public.orders o USING public.source s ON s.id = o.order_id"
        " WHEN MATCHED THEN UPDATE SET n = s.n",
        "EXECUTE UPDATE": "EXECUTE prepared",
    }
    inserts = {
        "INSERT": "INSERT INTO public.orders (order_id) VALUES ('gone')",
        "INSERT of a mark of 0": "INSERT INTO public.orders (order_id, last_fence_token) VALUES ('gone', 0)",
        "INSERT of a mark of NULL": "INSERT INTO public.orders (order_id, last_fence_token) VALUES ('gone', NULL)",
        "INSERT SELECT": "INSERT INTO public.orders (order_id, n) SELECT id, n FROM public.source WHERE id = 'gone'",
        "INSERT in a CTE": "WITH i AS (INSERT INTO public.orders (order_id) VALUES ('gone') RETURNING n)"
        " SELECT n FROM i",
        "INSERT in a function": "SELECT public.add('gone')",
        "ON CONFLICT DO NOTHING": "INSERT INTO public.orders (order_id) VALUES ('gone') ON CONFLICT DO NOTHING",
        "ON CONFLICT DO UPDATE that inserts": "INSERT INTO public.orders (order_id) VALUES ('gone')"
        " ON CONFLICT (order_id) DO UPDATE SET n = 9",
        "MERGE INSERT": "MERGE INTO public.orders o USING public.source s ON s.id = o.order_id"
        " WHEN NOT MATCHED THEN INSERT (order_id, n) VALUES (s.id, s.n)",
        "INSERT, UPDATE": "INSERT INTO public.orders (order_id) VALUES ('gone');"
        " UPDATE public.orders SET n = 9 WHERE order_id = 'gone'",
        "COPY": "",
    }
    async with session(race.dsn, CLERK if race.strict else OWNER) as sql:
        assert await sql.run("PREPARE prepared AS UPDATE public.orders SET n = 9") == "ok"
        for name, statement in {**updates, **deletes, **inserts}.items():
            for token, expected in cases + (plain if name in ("UPDATE", "DELETE", "INSERT", "COPY") else []):
                await start_over(race)
                assert await written(sql, statement, token) == expected, (name, token)
                after = await state(race)
                assert (after != before) == (expected == "ok"), (name, token, after)
                if expected == "ok":
                    mark = MARK if token == MARK else MARK + 1
                    key = "gone" if name in inserts else "k"
                    rows = [row for row in after if row[0] == key]
                    assert [row[3] for row in rows] == ([] if name in deletes else [mark]), (name, token, after)
                    if name not in updates:
                        assert await race.recorded(key) == (mark, name in deletes), (name, token)


@pytest.mark.versions
async def test_a_token_in_the_column_is_one_too(race: Race) -> None:
    equal = "FP409" if race.strict else "ok"
    # The same number in the column is an echo, whatever the rule; -30 is a token.
    updates = ((29, "FP409"), (-29, "FP409"), (30, "FP428"), (-30, equal), (31, "ok"), (-31, "ok"), ("NULL", "FP428"))
    echoed = "FP409" if race.strict else "FP428"
    inserts = ((29, "FP409"), (-29, "FP409"), (30, echoed), (-30, equal), (31, "ok"), (-31, "ok"), (0, "FP428"))
    async with session(race.dsn, CLERK) as sql:
        for token, expected in updates:
            for statement in (
                f"UPDATE public.orders SET n = 1, last_fence_token = {token}",
                "INSERT INTO public.orders (order_id) VALUES ('k') ON CONFLICT (order_id)"
                f" DO UPDATE SET n = 1, last_fence_token = {token}",
                "MERGE INTO public.orders o USING public.source s ON s.id = o.order_id"
                f" WHEN MATCHED THEN UPDATE SET n = 1, last_fence_token = {token}",
            ):
                await start_over(race)
                # The row that an upsert proposes has no token of its own here, and is refused before its update.
                wanted = "FP428" if statement.startswith("INSERT") else expected
                assert await sql.run(statement) == wanted, (token, statement)
        for token, expected in inserts:
            await start_over(race)
            insert = f"INSERT INTO public.orders (order_id, last_fence_token) VALUES ('gone', {token})"
            assert await sql.run(insert) == expected, token
            await start_over(race)
            copied = await sql.copy("orders", ("order_id", "last_fence_token"), ("gone", token))
            assert copied == expected, token


@pytest.mark.versions
async def test_a_statement_that_writes_no_row_needs_no_token(race: Race) -> None:
    """As SQL has it: no row, no verdict. Of an upsert the proposed row is one, whatever becomes of it."""
    merge = "MERGE INTO public.orders o USING public.source s ON s.id = o.order_id WHEN "
    async with session(race.dsn, CLERK) as sql:
        for token in (None, MARK - 1):
            for statement, expected in (
                ("UPDATE public.orders SET n = 1 WHERE order_id = 'nobody'", "ok"),
                (merge + "MATCHED THEN DO NOTHING", "ok"),
                (merge + "MATCHED AND o.n = 77 THEN DELETE", "ok"),
                (
                    "INSERT INTO public.orders (order_id) VALUES ('k') ON CONFLICT DO NOTHING",
                    "FP428" if token is None else "ok",
                ),
                ("SELECT * FROM public.orders FOR UPDATE", "ok"),
            ):
                await start_over(race)
                assert await sql.run(statement, token=token) == expected, (statement, token)
                assert await state(race) == [("k", "new", 0, MARK)], statement
                assert await race.recorded("k") == (MARK, False), statement
                assert await race.recorded("gone") == (MARK, True), statement


# R14 and how sessions are used: pools, pipelines, savepoints, isolation levels, roles, procedures.

UPDATE = "UPDATE public.orders SET n = n + 1 WHERE order_id = 'k'"
DELETE = "DELETE FROM public.orders WHERE order_id = 'k'"
INSERT = "INSERT INTO public.orders (order_id) VALUES ('k')"
BOTH_RULES = pytest.mark.parametrize("session_race", ["strict-external", "epoch-builtin"], indirect=True)
LEVELS = ["READ UNCOMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]


@pytest.fixture
async def session_race(request: pytest.FixtureRequest, connect: Connect, unmade: Unmade) -> AsyncIterator[Race]:
    """Give a table under strict with tokens of any source, or, in the tests that say so, the other way."""
    param: Any = getattr(request, "param", "strict-external")
    rule, _, source = param.partition("-")
    race = await open_race(connect, unmade, rule, source=source)
    await race.insert(race.a, "k", 30)
    async with people(race.observer, "public.orders"):
        yield race


@BOTH_RULES
async def test_every_isolation_level_has_the_same_answers(session_race: Race) -> None:
    equal = "FP409" if session_race.strict else "ok"
    async with session(session_race.dsn, CLERK) as sql:
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
async def test_an_insert_under_an_old_snapshot_does_not_miss_a_mark(session_race: Race, level: str) -> None:
    """Of a key that was deleted, claimed or pruned after the snapshot: 40001, whatever breaks the glass."""
    changes = (
        "UPDATE public.orders SET last_fence_token = {0}; SET LOCAL fencepost.token = '{1}'; DELETE FROM public.orders",
        "DELETE FROM fencepost.marks; SELECT fencepost.raise_mark('orders/k', {1}, 'strict', true)",
        "SELECT fencepost.prune('orders', {1})",
    )
    for number, change in enumerate(changes):
        for setting in ("token = '{}'", "break_glass = 'a test'"):
            await session_race.observer.execute("SET session_replication_role = replica")
            await session_race.observer.execute("DELETE FROM public.orders; DELETE FROM fencepost.marks")
            if not number:
                await session_race.observer.execute("INSERT INTO public.orders VALUES ('k', 'new', 0, 30)")
            await session_race.observer.execute("RESET session_replication_role")
            transaction = session_race.b.transaction(
                isolation="serializable" if level == "SERIALIZABLE" else "repeatable_read"
            )
            await transaction.start()
            await session_race.b.fetch("SELECT FROM public.orders")
            token = 100 * (number + 1)
            assert await session_race.direct(session_race.observer, change.format(token, token + 1)) == "ok", setting
            await session_race.b.execute(f"SET LOCAL fencepost.{setting.format(token - 1)}")
            assert await outcome(session_race.b.execute(INSERT)) == "40001", (change, setting)
            await transaction.rollback()


@BOTH_RULES
async def test_a_savepoint_gives_its_token_back_and_can_be_tried_again(session_race: Race) -> None:
    async with session(session_race.dsn, OWNER) as sql:
        undone = ("SAVEPOINT s", "SET LOCAL fencepost.token = '35'", UPDATE, "ROLLBACK TO s")
        assert await sql.run(*undone, UPDATE) == "FP428", "the setting went with it"
        assert await sql.run(*undone, "SET LOCAL fencepost.token = '34'", UPDATE) == "ok", "and so did the mark"
        assert await session_race.live_mark("k") == 34
        for token, statement in enumerate((UPDATE, DELETE, INSERT, UPDATE), 35):
            tries = ("SAVEPOINT s", statement, "ROLLBACK TO s", statement, "RELEASE s")
            assert await sql.run(*tries, token=token) == "ok", statement
    assert await session_race.live_mark("k") == 38


@BOTH_RULES
async def test_a_token_for_the_session_stays_in_a_pooled_connection_and_gets_no_newer(session_race: Race) -> None:

    async def as_it_is(_connection: object) -> None:
        """Like a pooler in transaction mode: the next one finds the session as it was left."""

    pool = await asyncpg.create_pool(session_race.dsn, min_size=1, max_size=1, reset=as_it_is)
    try:
        async with pool.acquire() as connection:
            await connection.execute("SET fencepost.token = '31'")
            await connection.execute(UPDATE)
        async with pool.acquire() as connection:
            # Under strict it was good for one operation; under epoch the next one passes for the holder.
            assert await outcome(connection.execute(UPDATE)) == ("FP409" if session_race.strict else "UPDATE 1")
            await session_race.update(session_race.a, "k", 40)
            assert await outcome(connection.execute(UPDATE)) == "FP409"
    finally:
        await pool.close()


async def test_row_security_does_not_hide_a_row_from_its_fence(session_race: Race) -> None:
    await session_race.observer.execute("""
        ALTER TABLE orders ENABLE ROW LEVEL SECURITY;
        CREATE POLICY seen ON orders TO plain_clerk USING (status = 'new') WITH CHECK (true)""")
    async with session(session_race.dsn, CLERK) as sql:
        assert await sql.run(UPDATE, token=29) == "FP409"
        assert await sql.run("UPDATE public.orders SET status = 'hidden'", token=31) in ("ok", "42501")
        # An insert over a row that it cannot see is a unique violation, or stale: never a second row.
        assert await sql.run(INSERT, token=30) in ("23505", "FP409")
    assert await session_race.observer.fetchval("SELECT count(*) FROM orders") == 1


# R14 where one statement reaches several tables: partitions, foreign keys. Where no floor is seen nothing passes, and
# a default of last_fence_token is no token.

PARTITIONED = """
CREATE TABLE public.parts (region text, id int, v text, n int DEFAULT 0, PRIMARY KEY (region, id))
  PARTITION BY LIST (region);
CREATE TABLE public.parts_eu PARTITION OF public.parts FOR VALUES IN ('eu');
CREATE TABLE public.parts_us (n int DEFAULT 0, v text, dropped int, id int, region text, PRIMARY KEY (region, id));
ALTER TABLE public.parts_us DROP COLUMN dropped;
"""


async def partitions(connect: Connect, unmade: Unmade, rule: Rule = "strict") -> Race:
    """One partition has its columns in another order than the parent, and a hole among them."""
    ddl = PARTITIONED + "ALTER TABLE public.parts ATTACH PARTITION public.parts_us FOR VALUES IN ('us')"
    race = await open_race(connect, unmade, rule, ddl=ddl, name="parts")
    for region in ("eu", "us"):
        assert await race.direct(race.a, f"INSERT INTO parts VALUES ('{region}', 1, 'a')", 30) == "ok", region
    return race


@pytest.mark.versions
@pytest.mark.parametrize(("rule", "target"), [("strict", "parts_us"), ("epoch", "parts_eu")])
async def test_writing_straight_into_a_partition_is_judged_under_the_parents_names(
    connect: Connect, unmade: Unmade, rule: Rule, target: str
) -> None:
    race = await partitions(connect, unmade, rule)
    region = target[-2:]
    for number, (statement, gone) in enumerate((
        (f"UPDATE {target} SET n = n + 1", False),
        (f"DELETE FROM {target}", True),
        (f"INSERT INTO {target} (region, id) VALUES ('{region}', 1)", False),
        (f"INSERT INTO {target} (region, id) VALUES ('{region}', 1) ON CONFLICT (id, region) DO UPDATE SET n=8", False),
        (f"MERGE INTO {target} t USING (SELECT 1) s(id) ON t.id = s.id WHEN MATCHED THEN DELETE", True),
    )):  # fmt: skip
        mark = 30 + number
        assert await race.direct(race.a, statement) == "FP428", statement
        assert await race.direct(race.a, statement, mark - 1) == "FP409", statement
        assert await race.direct(race.a, statement, f"{target}={mark + 1}") == "FP428", "it is the parent's token"
        assert await race.direct(race.a, statement, f"parts={mark + 1}") == "ok", statement
        assert (await race.row((region, "1")) is None) == gone
    assert await race.recorded((region, "1")) == (35, True)
    assert await race.direct(race.a, f"TRUNCATE {target}", 99) == "FP428"


@pytest.mark.versions
async def test_one_transaction_is_one_operation_in_partitions_too(connect: Connect, unmade: Unmade) -> None:
    """Whatever the layout of the partition, and whether it is written directly or through its parent."""
    race = await partitions(connect, unmade)
    for token, (first, second) in enumerate((("parts", "parts"), ("parts", "parts_us"), ("parts_us", "parts")), 31):
        flushes = [f"UPDATE {table} SET n = n + 1 WHERE region = 'us'" for table in (first, second, first)]
        again = f"INSERT INTO {second} (region, id) VALUES ('us', 1)"
        work = [*flushes, f"DELETE FROM {first} WHERE region = 'us'", again, flushes[1]]
        assert await race.direct(race.a, "; ".join(work), token) == "ok", (first, second)
        assert await race.live_mark(("us", "1")) == token
        assert await race.direct(race.b, flushes[0], token) == "FP409", "another transaction"


async def test_a_token_names_its_table_as_the_resources_do(connect: Connect) -> None:
    db = await owner(connect)
    await db.execute("""
        CREATE SCHEMA sales; CREATE TABLE sales.leads (id int PRIMARY KEY); CREATE TABLE leads (id int PRIMARY KEY);
        CREATE TABLE "Odd/ Name" (id int PRIMARY KEY)""")
    names = {"sales.leads": "sales.leads", "leads": "public.leads", "Odd/ Name": 'public."Odd/ Name"'}
    for name in names:
        await protect(db, name)
    for name, table in names.items():
        others = (f"public.{name}", name.upper(), name.replace("/", "%2F").replace("Odd", "odd"))
        for number, token in enumerate(dict.fromkeys((*names, *others))):
            await db.execute("SELECT set_config('fencepost.token', $1, false)", f"{token}=31")
            answer = await outcome(db.execute(f"INSERT INTO {table} VALUES ({number})"))
            assert answer == ("INSERT 0 1" if token == name else "FP428"), (name, token)


FAMILY = """
CREATE TABLE public.parent (id text PRIMARY KEY, n int DEFAULT 0);
CREATE TABLE public.child (id text PRIMARY KEY, p text REFERENCES public.parent ON DELETE {} ON UPDATE CASCADE);
"""


async def children(db: Connection) -> list[tuple[object, ...]]:
    return [tuple(row) for row in await db.fetch("SELECT id, p, last_fence_token FROM child ORDER BY id")]


@pytest.mark.versions
@pytest.mark.parametrize(("action", "parents"), [("CASCADE", True), ("SET NULL", False)])
async def test_what_a_foreign_key_does_to_a_protected_child_needs_a_token_for_it(
    connect: Connect, database: str, action: str, *, parents: bool
) -> None:
    # Parent p and its children a (mark 50) and b (mark 40).
    db = await owner(connect, FAMILY.format(action))
    await protect(db, "child")
    if parents:
        await protect(db, "parent")
    raised = ", 30" if parents else ""
    await db.execute(f"INSERT INTO parent VALUES ('p', 0{raised}), ('q', 0{raised})")
    await db.execute("INSERT INTO child VALUES ('a', 'p', 50), ('b', 'p', 40)")
    delete = "DELETE FROM public.parent WHERE id = 'p'"
    before = await children(db)
    async with session(database) as sql:
        # The parent's own token is none for the child; a stale one is stale for the table with a higher mark.
        refusals: list[tuple[object, str]] = [(None, "FP428"), ("parent=60", "FP428"), (45, "FP409"), (50, "FP409")]
        if parents:
            refusals += [("child=60", "FP428"), (29, "FP409")]
        for token, code in refusals:
            assert await sql.run(delete, token=token) == code, token
            assert await children(db) == before, token
        assert await sql.run(delete, token=60) == "ok"
    after = await children(db)
    assert after == ([] if action == "CASCADE" else [("a", None, 60), ("b", None, 60)])
    marks = await db.fetch("SELECT resource, last_fence_token, row_absent FROM fencepost.marks ORDER BY 1")
    gone = action == "CASCADE"
    assert [tuple(mark) for mark in marks][:2] == [
        ("child/a", 60 if gone else 50, gone),
        ("child/b", 60 if gone else 40, gone),
    ]
    assert await outcome(db.execute("INSERT INTO child VALUES ('a', NULL, 59)")) == ("FP409" if gone else "23505")


@pytest.fixture
async def table_race(connect: Connect, unmade: Unmade) -> Race:
    return await open_race(connect, unmade, "strict")


async def test_an_insert_without_a_floor_to_judge_it_by_is_refused(table_race: Race) -> None:
    await table_race.observer.execute("DELETE FROM fencepost.floors")
    assert await table_race.direct(table_race.a, "INSERT INTO public.orders (order_id) VALUES ('k')", 36) == "FP000"
    await protect(table_race.observer, "orders")
    assert await table_race.direct(table_race.a, "INSERT INTO public.orders (order_id) VALUES ('k')", 36) == "ok"


async def test_a_snapshot_from_before_the_protection_sees_no_floor_and_fails(connect: Connect, unmade: Unmade) -> None:
    race = await open_race(connect, unmade, "strict")
    await race.observer.execute("CREATE TABLE public.late (id integer PRIMARY KEY)")
    old = race.c.transaction(isolation="repeatable_read")
    await old.start()
    await race.c.fetch("SELECT 1 FROM public.orders")
    await protect(race.observer, "late")
    assert await race.direct(race.a, "INSERT INTO public.late VALUES (1)", 50) == "ok"
    assert await race.direct(race.a, "DELETE FROM public.late", 51) == "ok"
    await race.observer.execute("SELECT fencepost.prune('late', 60)")
    await race.c.execute("SET LOCAL fencepost.token = '36'")
    assert await outcome(race.c.execute("INSERT INTO public.late VALUES (1)")) == "40001"
    await old.rollback()


async def test_a_scope_without_a_floor_is_not_entered(table_race: Race) -> None:
    await table_race.observer.execute("CREATE TABLE public.items (id integer PRIMARY KEY, account integer NOT NULL)")
    await protect(table_race.observer, "items", scope="account/{account}")
    await table_race.observer.execute("DELETE FROM fencepost.floors WHERE name = 'account'")
    assert await table_race.direct(table_race.a, "INSERT INTO public.items VALUES (1, 7)", 36) == "FP000"
    await protect(table_race.observer, "items", scope="account/{account}")
    assert await table_race.direct(table_race.a, "INSERT INTO public.items VALUES (1, 7)", 36) == "ok"


WITHOUT_A_TOKEN = "INSERT INTO public.items (id) VALUES (1)"


@pytest.fixture(params=["plain", "partitioned"])
async def items(request: pytest.FixtureRequest, connect: Connect) -> Connection:
    connection = await connect()
    table = "CREATE TABLE public.items (id int PRIMARY KEY)"
    if request.param == "partitioned":
        table += " PARTITION BY RANGE (id); CREATE TABLE public.items_1 PARTITION OF public.items DEFAULT"
    await connection.execute(table)
    await protect(connection, "items")
    return connection


async def found(connection: Connection) -> list[str]:
    return [finding.text for finding in await examine(TABLES, connection) if finding.level == "error"]


async def test_another_default_is_refused(items: Connection) -> None:
    for default in ("999", "-999", "(1 - 1)", "'999'", "nextval('fencepost.tokens')"):
        with pytest.raises(asyncpg.PostgresError, match="an INSERT would pass without a token") as refused:
            await items.execute(f"ALTER TABLE public.items ALTER last_fence_token SET DEFAULT {default}")
        assert refused.value.sqlstate == "FP428", default
    assert await found(items) == []


async def test_no_default_and_zero_are_none(items: Connection) -> None:
    for default in ("0", "'0'", "0::bigint", "NULL"):
        await items.execute(f"ALTER TABLE public.items ALTER last_fence_token SET DEFAULT {default}")
        assert await found(items) == [], default
        with pytest.raises(asyncpg.PostgresError) as refused:
            await items.execute(WITHOUT_A_TOKEN)
        assert refused.value.sqlstate == "FP428", default


async def test_without_event_triggers_doctor_finds_it_and_protect_sets_it_back(items: Connection) -> None:
    for trigger in EVENT_TRIGGERS:
        await items.execute(f"ALTER EVENT TRIGGER {trigger} DISABLE")
    await items.execute("ALTER TABLE public.items ALTER last_fence_token SET DEFAULT 999")
    assert any("the default of last_fence_token is not 0 in items" in text for text in await found(items))
    await protect(items, "items")
    assert await found(items) == []
    with pytest.raises(asyncpg.PostgresError) as refused:
        await items.execute(WITHOUT_A_TOKEN)
    assert refused.value.sqlstate == "FP428"


# What a person at psql reads: SQLSTATE, MESSAGE, DETAIL and HINT of every refusal, word by word.
# Scripts and people rely on these texts: a change here is a change of the contract.

MAKE = """
CREATE TABLE public.orders (order_id text PRIMARY KEY, n int DEFAULT 0);
CREATE TABLE public.lines (order_id text, line int, n int DEFAULT 0, PRIMARY KEY (order_id, line));
CREATE TABLE public.issued (id int PRIMARY KEY, n int DEFAULT 0);
CREATE TABLE public.items (id int PRIMARY KEY, account int NOT NULL, n int DEFAULT 0);
CREATE TABLE public."Odd/ Name" (id text PRIMARY KEY);
"""

NO_TOKEN = "In the same transaction: SET LOCAL fencepost.token = '<token>', with the one that the lock service gave."
STALE = "A newer token has been accepted since. Do not retry: acquire the lock anew and read again."
SPENT = "Under the rule strict each token writes a resource once: mint another one."
MALFORMED = "A token is a positive integer of at most 9223372036854775807: SET LOCAL fencepost.token = '<token>'"
ANOTHER_KEY = "Delete the row and insert it under its new key, each with a token."
TRUNCATE = "DELETE the rows with a token, or `fencepost unprotect` the table first."
UNISSUED = "Tokens of this table come from leases: POST /v1/leases, or fencepost lock."
GENERATION = (
    "The database was failed over or restored since this token was drawn. Do not retry: acquire the lock anew and read"
    " again."
)
NULL_SCOPE = "Every row has a scope: give each of its columns a value."
OTHER_SCOPE = "Delete the row and insert it under its new scope, each with a token."
NO_REASON = "It is recorded for those who come after you: SET LOCAL fencepost.break_glass = 'INC-123: what happened'"
BEHIND_GLASS = "Behind broken glass no mark falls: leave last_fence_token out, and the row takes the mark of its key."


@dataclass(frozen=True)
class Refusal:
    """A statement, what is set before it, and PostgreSQL's message."""

    sql: str
    token: str | None
    sqlstate: str
    message: str
    detail: str | None
    hint: str | None
    glass: str | None = None
    login: str | None = None


def stale(resource: str, presented: int, mark: int) -> str:
    return f'{{"resource" : "{resource}", "presented" : "{presented}", "mark" : "{mark}"}}'


def of(resource: str) -> str:
    return f'{{"resource" : "{resource}"}}'


UPDATING = "UPDATE public.orders SET n = 1"
DELETING = "DELETE FROM public.orders"
INSERTING = "INSERT INTO public.orders (order_id) VALUES ('gone')"

UNSEEN = f"DROP TRIGGER zzz_fencepost_ins ON public.orders; {INSERTING}"
TRIGGER_GONE = (
    "Its trigger zzz_fencepost_ins is gone, or one that fires later set last_fence_token: see fencepost doctor."
)

REFUSALS = [
    # No token
    Refusal(UPDATING, None, "FP428", "orders/k is protected: a write needs a fence token", of("orders/k"), NO_TOKEN),
    Refusal(INSERTING, None, "FP428", "orders/gone is protected: a write needs a fence token",
            of("orders/gone"), NO_TOKEN),
    Refusal(UNSEEN, None, "FP428", "orders/gone is protected: the row reached the table without a fence token",
            of("orders/gone"), TRIGGER_GONE),
    Refusal(UPDATING, "lines=31", "FP428", "orders/k is protected: a write needs a fence token",
            of("orders/k"), "fencepost.token is 'lines=31', which is for another table: '<token>' is for all of them,"
            " 'orders=<token>' for the table that Fencepost calls orders."),
    Refusal("UPDATE public.lines SET n = 1", None, "FP428", "lines/a%2Cb,7 is protected: a write needs a fence token",
            of("lines/a%2Cb,7"), NO_TOKEN),
    Refusal("""DELETE FROM public."Odd/ Name" """, None, "FP428",
            "Odd%2F Name/50%25 is protected: a write needs a fence token", of("Odd%2F Name/50%25"), NO_TOKEN),
    Refusal("TRUNCATE public.orders", "99", "FP428",
            "public.orders is protected: TRUNCATE would forget its marks", None, TRUNCATE),
    # Stale and spent
    Refusal(UPDATING, "29", "FP409", "stale token 29 for orders/k: its mark is 30", stale("orders/k", 29, 30), STALE),
    Refusal(INSERTING, "39", "FP409", "stale token 39 for orders/gone: its mark is 40",
            stale("orders/gone", 39, 40), STALE),
    Refusal(UPDATING, "30", "FP409", "spent token 30 for orders/k: its mark is 30", stale("orders/k", 30, 30), SPENT),
    # Malformed
    Refusal(UPDATING, "x", "FP400", "malformed fence token 'x'", None, MALFORMED),
    Refusal("DELETE FROM public.items", "it's", "FP400", "malformed fence token 'it''s'", None, MALFORMED),
    Refusal("INSERT INTO public.orders (order_id) VALUES (repeat('x', 2600))", "50", "FP400",
            f"the name of the resource orders/{33 * 'x'}… has 2607 bytes; a mark can be kept for names of at most 2600",
            None, None),
    # What cannot change
    Refusal("UPDATE public.orders SET order_id = 'z'", "50", "FP400",
            "orders/k: the primary key of a protected row cannot change", None, ANOTHER_KEY),
    Refusal("UPDATE public.items SET account = 7", "50", "FP400",
            "items: the columns of the scope account/{account} cannot change", None, OTHER_SCOPE),
    # Scopes
    Refusal("UPDATE public.items SET n = 1", None, "FP428", "account/42 is protected: a write needs a fence token",
            of("account/42"), NO_TOKEN),
    Refusal("INSERT INTO public.items VALUES (9, NULL)", "50", "FP400",
            "items: a column of the scope account/{account} is null", None, NULL_SCOPE),
    # Of the built-in source
    Refusal("UPDATE public.issued SET n = 1", "281474976715000", "FP018",
            "token 281474976715000 for issued/1 was never issued: the built-in source has issued none above"
            " 281474976710755",
            '{"resource" : "issued/1", "presented" : "281474976715000", "issued" : "281474976710755"}', UNISSUED),
    Refusal("UPDATE public.issued SET n = 1", "40", "FP409",
            "stale token 40 for issued/1: a token of an earlier generation, all of which are void up to"
            " 281474976710655",
            stale("issued/1", 40, (1 << 48) - 1), GENERATION),
    # Break-glass
    Refusal(UPDATING, None, "42501", f"{STRANGER} may not break the glass: fencepost.break_glass is set",
            "That is for roles which may execute fencepost.may_break_glass().",
            "Write with a token: SET LOCAL fencepost.token = '<token>'. Or ask postgres for: GRANT EXECUTE ON FUNCTION"
            f" fencepost.may_break_glass() TO {STRANGER}",
            glass=REASON, login=STRANGER),
    Refusal(DELETING, None, "FP400", "'??' is no reason to break the glass: one has three characters or more that are"
            " not blanks", None, NO_REASON, glass="??", login=OPERATOR),
    Refusal("INSERT INTO public.orders (order_id, last_fence_token) VALUES ('gone', 7)", None, "FP409",
            "stale token 7 for orders/gone: its mark is 40", stale("orders/gone", 7, 40), BEHIND_GLASS, glass=REASON),
    Refusal("DELETE FROM fencepost.break_glass_log", None, "42501",
            "fencepost.break_glass_log is append-only", None, None),
]  # fmt: skip


@pytest.fixture
async def db(connect: Connect) -> AsyncIterator[Connection]:
    """A table of each kind, each with a row whose mark is 30, and keys that were deleted."""
    connection = await owner(connect, MAKE)
    for name in ("orders", "lines", "Odd/ Name"):
        await protect(connection, name)
    await protect(connection, "issued", source="builtin")
    await protect(connection, "items", scope="account/{account}")
    await connection.execute("SELECT setval('fencepost.tokens', 100)")
    await connection.execute("""
        BEGIN; SET LOCAL fencepost.token = '30';
        INSERT INTO orders VALUES ('k'); INSERT INTO lines VALUES ('a,b', 7);
        INSERT INTO issued VALUES (1); INSERT INTO items VALUES (1, 42);
        INSERT INTO "Odd/ Name" VALUES ('50%'); INSERT INTO orders VALUES ('gone');
        COMMIT;
        BEGIN; SET LOCAL fencepost.token = '40'; DELETE FROM orders WHERE order_id = 'gone'; COMMIT""")
    async with operators(connection):
        yield connection


async def refused(db: Connection, refusal: Refusal) -> Refusal:
    """Run it, and return PostgreSQL's error."""
    transaction = db.transaction()
    if refusal.login is not None:
        await db.execute(f"SET SESSION AUTHORIZATION {refusal.login}")
    await transaction.start()
    try:
        for name, value in (("token", refusal.token), ("break_glass", refusal.glass)):
            if value is not None:
                await db.execute("SELECT set_config($1, $2, true)", f"fencepost.{name}", value)
        await db.execute(refusal.sql)
    except asyncpg.PostgresError as error:
        shown = {part: getattr(error, part, None) for part in ("sqlstate", "message", "detail", "hint")}
        return Refusal(
            refusal.sql, refusal.token, str(shown["sqlstate"]), str(shown["message"]), shown["detail"], shown["hint"],
            refusal.glass, refusal.login,
        )  # fmt: skip
    finally:
        await transaction.rollback()
        await db.execute("RESET SESSION AUTHORIZATION")
    raise AssertionError(f"not refused: {refusal}")


@pytest.mark.versions
async def test_every_refusal_has_its_message(db: Connection) -> None:
    # Tokens of the generation before: the row's mark is 30, and 40 is void now.
    await upkeep.raise_generation(db, "test")
    await db.execute(f"ALTER SEQUENCE fencepost.tokens MINVALUE {1 << 48} START {1 << 48} RESTART {1 << 48}")
    await db.execute(f"SELECT setval('fencepost.tokens', {(1 << 48) + 99})")
    for refusal in REFUSALS:
        assert await refused(db, refusal) == refusal
