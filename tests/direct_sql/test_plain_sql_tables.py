"""R14 where one statement reaches several tables: partitions, foreign keys. Where no floor is seen nothing passes, and
a default of last_fence_token is no token.
"""

import asyncpg
import pytest
from tests.direct_sql.drivers import session
from tests.support.interleave import Connect, Connection
from tests.support.postgres import Unmade
from tests.support.racing import Race, open_race, outcome, owner

from fencepost.server.fence.token import Rule
from fencepost.server.ops.checks import EVENT_TRIGGERS
from fencepost.server.ops.doctor_tables import examine_tables
from fencepost.server.ops.protect import protect

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


async def family(connect: Connect, action: str, *, parents: bool = True) -> Connection:
    """Parent p and its children a (mark 50) and b (mark 40)."""
    db = await owner(connect)
    await db.execute(FAMILY.format(action))
    await protect(db, "child")
    if parents:
        await protect(db, "parent")
    mark = ", 30" if parents else ""
    await db.execute(f"INSERT INTO parent VALUES ('p', 0{mark}), ('q', 0{mark})")
    await db.execute("INSERT INTO child VALUES ('a', 'p', 50), ('b', 'p', 40)")
    return db


async def children(db: Connection) -> list[tuple[object, ...]]:
    return [tuple(row) for row in await db.fetch("SELECT id, p, last_fence_token FROM child ORDER BY id")]


@pytest.mark.versions
@pytest.mark.parametrize(("action", "parents"), [("CASCADE", True), ("SET NULL", False)])
async def test_what_a_foreign_key_does_to_a_protected_child_needs_a_token_for_it(
    connect: Connect, database: str, action: str, *, parents: bool
) -> None:
    db = await family(connect, action, parents=parents)
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
async def race(connect: Connect, unmade: Unmade) -> Race:
    return await open_race(connect, unmade, "strict")


async def test_an_insert_without_a_floor_to_judge_it_by_is_refused(race: Race) -> None:
    await race.observer.execute("DELETE FROM fencepost.floors")
    assert await race.direct(race.a, "INSERT INTO public.orders (order_id) VALUES ('k')", 36) == "FP000"
    await protect(race.observer, "orders")
    assert await race.direct(race.a, "INSERT INTO public.orders (order_id) VALUES ('k')", 36) == "ok"


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


async def test_a_scope_without_a_floor_is_not_entered(race: Race) -> None:
    await race.observer.execute("CREATE TABLE public.items (id integer PRIMARY KEY, account integer NOT NULL)")
    await protect(race.observer, "items", scope="account/{account}")
    await race.observer.execute("DELETE FROM fencepost.floors WHERE name = 'account'")
    assert await race.direct(race.a, "INSERT INTO public.items VALUES (1, 7)", 36) == "FP000"
    await protect(race.observer, "items", scope="account/{account}")
    assert await race.direct(race.a, "INSERT INTO public.items VALUES (1, 7)", 36) == "ok"


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
    return [finding.text for finding in await examine_tables(connection) if finding.level == "error"]


async def disable(connection: Connection) -> None:
    for trigger in EVENT_TRIGGERS:
        await connection.execute(f"ALTER EVENT TRIGGER {trigger} DISABLE")


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
    await disable(items)
    await items.execute("ALTER TABLE public.items ALTER last_fence_token SET DEFAULT 999")
    assert any("the default of last_fence_token is not 0 in items" in text for text in await found(items))
    await protect(items, "items")
    assert await found(items) == []
    with pytest.raises(asyncpg.PostgresError) as refused:
        await items.execute(WITHOUT_A_TOKEN)
    assert refused.value.sqlstate == "FP428"
