"""R14 where one statement reaches several tables: partitions, foreign keys, inheritance of privileges."""

import asyncpg
import pytest
from tests.direct_sql.drivers import Driver, session
from tests.support.interleave import Connect, Connection
from tests.support.racing import Race, open_race, outcome, owner

from fencepost.storage.protecting.protect import protect

pytestmark = pytest.mark.versions

PARTITIONED = """
CREATE TABLE public.parts (region text, id int, v text, n int DEFAULT 0, PRIMARY KEY (region, id))
  PARTITION BY LIST (region);
CREATE TABLE public.parts_eu PARTITION OF public.parts FOR VALUES IN ('eu');
CREATE TABLE public.parts_us (n int DEFAULT 0, v text, dropped int, id int, region text, PRIMARY KEY (region, id));
ALTER TABLE public.parts_us DROP COLUMN dropped;
"""


async def partitions(connect: Connect, database: str, rule: str = "strict") -> Race:
    """One partition has its columns in another order than the parent, and a hole among them."""
    db = await owner(connect)
    await db.execute(PARTITIONED + "ALTER TABLE public.parts ATTACH PARTITION public.parts_us FOR VALUES IN ('us')")
    race = await open_race(connect, database, "epoch" if rule == "epoch" else "strict", ddl="SELECT", name="parts")
    for region in ("eu", "us"):
        assert await race.direct(race.a, f"INSERT INTO parts VALUES ('{region}', 1, 'a')", 30) == "ok", region
    return race


@pytest.mark.parametrize(("rule", "target"), [("strict", "parts_us"), ("epoch", "parts_eu")])
async def test_writing_straight_into_a_partition_is_judged_under_the_parents_names(
    connect: Connect, database: str, rule: str, target: str
) -> None:
    race = await partitions(connect, database, rule)
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


async def test_a_row_does_not_move_to_another_partition(connect: Connect, database: str) -> None:
    """Its key would change with it: the mark of the old key stays behind, and a new one begins."""
    race = await partitions(connect, database)
    for statement in (
        "UPDATE parts SET region = 'us', id = 2 WHERE region = 'eu'",
        "UPDATE parts SET region = 'us', id = 2, last_fence_token = 40 WHERE region = 'eu'",
        "MERGE INTO parts t USING (SELECT 'eu') s(r) ON t.region = s.r"
        " WHEN MATCHED THEN UPDATE SET region = 'us', id = 2",
    ):
        for token in (None, 29, 40):
            assert await race.direct(race.a, statement, token) == "FP400", (statement, token)
    with pytest.raises(asyncpg.PostgresError) as refused:
        await race.observer.execute("UPDATE parts SET region = 'us', id = 2 WHERE region = 'eu'")
    assert getattr(refused.value, "message", "") == "parts/eu,1: the primary key of a protected row cannot change"
    assert "Delete the row and insert it under its new key" in getattr(refused.value, "hint", "")
    # And that is possible, in one statement.
    move = (
        "WITH gone AS (DELETE FROM parts WHERE region = 'eu' RETURNING v)"
        " INSERT INTO parts (region, id, v) SELECT 'us', 2, v FROM gone"
    )
    assert await race.direct(race.a, move, 29) == "FP409"
    assert await race.direct(race.a, move, 40) == "ok"
    assert await race.recorded(("eu", "1")) == (40, True)
    assert await race.live_mark(("us", "2")) == 40


async def test_one_transaction_is_one_operation_in_partitions_too(connect: Connect, database: str) -> None:
    """Whatever the layout of the partition, and whether it is written directly or through its parent."""
    race = await partitions(connect, database)
    for token, (first, second) in enumerate((("parts", "parts"), ("parts", "parts_us"), ("parts_us", "parts")), 31):
        flushes = [f"UPDATE {table} SET n = n + 1 WHERE region = 'us'" for table in (first, second, first)]
        again = f"INSERT INTO {second} (region, id) VALUES ('us', 1)"
        work = [*flushes, f"DELETE FROM {first} WHERE region = 'us'", again, flushes[1]]
        assert await race.direct(race.a, "; ".join(work), token) == "ok", (first, second)
        assert await race.live_mark(("us", "1")) == token
        assert await race.direct(race.b, flushes[0], token) == "FP409", "another transaction"


async def test_an_update_that_stays_in_its_partition_may_name_the_key(connect: Connect, database: str) -> None:
    race = await partitions(connect, database)
    assert await race.direct(race.a, "UPDATE parts SET region = region, id = id, n = 5", 31) == "ok"
    assert await race.update(race.a, ("us", "1"), 31, n=6) is None
    assert await race.update(race.a, ("us", "1"), 32, n=6)
    assert await race.delete(race.a, ("us", "1"), 32) is None
    assert await race.delete(race.a, ("us", "1"), 33)


async def test_a_partition_that_is_attached_later_is_judged(connect: Connect, database: str) -> None:
    race = await partitions(connect, database)
    db = race.observer
    await db.execute("CREATE TABLE parts_new PARTITION OF parts FOR VALUES IN ('new')")
    await db.execute("CREATE TABLE parts_old (LIKE parts INCLUDING ALL)")
    await db.execute("INSERT INTO parts_old VALUES ('old', 1, 'brought', 0, 50), ('old', 2, 'brought', 0, DEFAULT)")
    await db.execute("ALTER TABLE parts ATTACH PARTITION parts_old FOR VALUES IN ('old')")
    assert await race.direct(race.a, "INSERT INTO parts_new VALUES ('new', 1)") == "FP428"
    assert await race.direct(race.a, "INSERT INTO parts VALUES ('new', 1)", 31) == "ok"
    assert await race.direct(race.a, "UPDATE parts_old SET n = 1") == "FP428"
    # Rows bring the marks with them that stand in their columns.
    assert await race.direct(race.a, "UPDATE parts_old SET n = 1 WHERE id = 1", 49) == "FP409"
    assert await race.direct(race.a, "UPDATE parts SET n = 1 WHERE region = 'old' AND id = 1", 51) == "ok"
    assert await race.direct(race.a, "UPDATE parts SET n = 1 WHERE region = 'old' AND id = 2", 1) == "ok"
    assert await race.direct(race.a, "DELETE FROM parts WHERE region = 'old'", 51) == "FP409"
    # A table that lacks our column, or its check, cannot be attached by accident.
    await db.execute("CREATE TABLE parts_bare (region text, id int, v text, n int, PRIMARY KEY (region, id))")
    attach = "ALTER TABLE parts ATTACH PARTITION parts_bare FOR VALUES IN ('bare')"
    assert await outcome(db.execute(attach)) == "42804"
    # Who is detached is free, and takes its marks along.
    await db.execute("ALTER TABLE parts DETACH PARTITION parts_old")
    assert await race.direct(race.a, "UPDATE parts_old SET n = 2") == "ok"
    assert await db.fetchval("SELECT max(last_fence_token) FROM parts_old") == 51


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


@pytest.mark.parametrize(("action", "parents"), [("CASCADE", True), ("SET NULL", False)])
async def test_what_a_foreign_key_does_to_a_protected_child_needs_a_token_for_it(
    connect: Connect, database: str, action: str, *, parents: bool
) -> None:
    db = await family(connect, action, parents=parents)
    delete = "DELETE FROM public.parent WHERE id = 'p'"
    before = await children(db)
    async with session("psycopg", database) as sql:
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


async def test_a_token_for_the_child_alone_serves_an_unprotected_parent(connect: Connect, database: str) -> None:
    db = await family(connect, "CASCADE", parents=False)
    async with session("asyncpg", database) as sql:
        assert await sql.run("DELETE FROM public.parent WHERE id = 'p'", token="child=60") == "ok"
        assert await sql.run("UPDATE public.parent SET id = 'r' WHERE id = 'q'") == "ok", "no child, no token"
    assert await children(db) == []


async def test_a_key_that_follows_its_parents_is_a_write_of_the_child(connect: Connect, database: str) -> None:
    db = await family(connect, "CASCADE", parents=False)
    rename = "UPDATE public.parent SET id = 'z' WHERE id = 'p'"
    async with session("psycopg", database) as sql:
        assert await sql.run(rename) == "FP428"
        assert await sql.run(rename, token=45) == "FP409"
        assert await sql.run(rename, token="child=60") == "ok"
    assert await children(db) == [("a", "z", 60), ("b", "z", 60)]


async def test_a_child_whose_key_is_its_parents_cannot_follow_it(connect: Connect, database: str) -> None:
    db = await owner(connect)
    await db.execute("""
        CREATE TABLE parent (id int PRIMARY KEY);
        CREATE TABLE child (id int PRIMARY KEY REFERENCES parent ON UPDATE CASCADE ON DELETE CASCADE);
        INSERT INTO parent VALUES (1); INSERT INTO child VALUES (1)""")
    await protect(db, "child")
    async with session("asyncpg", database) as sql:
        assert await sql.run("UPDATE public.parent SET id = 2", token=60) == "FP400"
        assert await sql.run("DELETE FROM public.parent", token=60) == "ok"
    assert await db.fetchval("SELECT count(*) FROM child") == 0


async def test_a_deferred_cascade_check_judges_by_the_token_of_its_transaction(connect: Connect, database: str) -> None:
    """A deferred constraint's check writes nothing; its actions never wait for the commit."""
    db = await owner(connect)
    await db.execute("""
        CREATE TABLE parent (id int PRIMARY KEY);
        CREATE TABLE child (id int PRIMARY KEY,
                            p int REFERENCES parent ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED);""")
    await protect(db, "child")
    async with session("psycopg", database) as sql:
        add = ("INSERT INTO public.child VALUES (1, 7)", "INSERT INTO public.parent VALUES (7)")
        assert await sql.run(*add, token=30) == "ok"
        swap = ("SET LOCAL fencepost.token = '31'", "DELETE FROM public.parent", "SET LOCAL fencepost.token = ''")
        assert await sql.run(*swap) == "ok"
    assert await db.fetchval("SELECT last_fence_token FROM fencepost.marks WHERE row_absent") == 31


async def test_tables_that_a_view_joins_or_a_rule_reaches_are_judged_by_themselves(
    connect: Connect, database: str
) -> None:
    db = await owner(connect)
    await db.execute("""
        CREATE TABLE a (id int PRIMARY KEY, n int); CREATE TABLE b (id int PRIMARY KEY, n int);
        CREATE VIEW both_of AS SELECT a.id, a.n AS an, b.n AS bn FROM a JOIN b USING (id);
        CREATE FUNCTION write_both() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
          UPDATE public.a SET n = NEW.an WHERE id = NEW.id;
          UPDATE public.b SET n = NEW.bn WHERE id = NEW.id; RETURN NEW;
        END $$;
        CREATE TRIGGER write_both INSTEAD OF UPDATE ON both_of FOR EACH ROW EXECUTE FUNCTION write_both();
        INSERT INTO a VALUES (1, 0); INSERT INTO b VALUES (1, 0)""")
    for table in ("a", "b"):
        await protect(db, table)
    update = "UPDATE public.both_of SET an = 1, bn = 1"
    async with session("asyncpg", database) as sql:
        assert await sql.run(update, token="a=5") == "FP428"
        assert await sql.run(update, token=5) == "ok"
        assert await sql.run("UPDATE public.a SET n = 2", token=9) == "ok"
        assert await sql.run(update, token=8) == "FP409"
    assert await db.fetchval("SELECT n FROM b") == 1


@pytest.mark.parametrize("target", ["parts", "parts_us"])
async def test_a_copy_of_many_rows_is_all_or_nothing(connect: Connect, database: str, target: str) -> None:
    race = await partitions(connect, database)
    columns = ("region", "id", "v")
    rows = [("us", number, "x") for number in range(100, 400)]
    assert await race.direct(race.a, "INSERT INTO parts VALUES ('us', 399)", 50) == "ok"
    assert await race.direct(race.a, "DELETE FROM parts WHERE id = 399", 51) == "ok"
    drivers: tuple[Driver, ...] = ("asyncpg", "psycopg")
    for driver in drivers:
        async with session(driver, database) as sql:
            assert await sql.copy(target, columns, *rows) == "FP428"
            assert await sql.copy(target, columns, *rows, token=51) == "FP409", "the last one is stale"
            assert await sql.copy(target, columns, *rows, token="parts_us=52") == "FP428"
            assert await race.observer.fetchval("SELECT count(*) FROM parts") == 2
    async with session("psycopg", database) as sql:
        assert await sql.copy(target, columns, *rows, token=52) == "ok"
    found = await race.observer.fetchrow("SELECT count(*), min(last_fence_token) FROM parts WHERE id >= 100")
    assert tuple(found or ()) == (300, 52)
    assert await race.observer.fetchval("SELECT count(*) FROM fencepost.marks WHERE last_fence_token = 52") == 300
