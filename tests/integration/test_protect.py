"""`protect` and `unprotect`: what they check, what they do, and what they leave alone."""

import asyncio
import subprocess

import asyncpg
import pytest
from tests.support.interleave import Connect, Connection, start

from fencepost.server.ops.checks import ProtectError
from fencepost.server.ops.doctor_tables import examine_tables
from fencepost.server.ops.embedded_files import embedded_bin_dir
from fencepost.server.ops.protect import plan_protect, plan_unprotect, protect, unprotect
from fencepost.server.postgres.upkeep import ResetError, reset
from fencepost.testing.servers.processes import PATIENCE

# What protect may change of a table: columns, constraints, triggers (of partitions too), functions, its own registers.
STATE = """
SELECT 'column ' || a.attrelid::regclass || '.' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
       || a.attnotnull || coalesce(pg_get_expr(d.adbin, d.adrelid), '')
       || coalesce(col_description(a.attrelid, a.attnum), '')
  FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
  LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
 WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND a.attnum > 0 AND NOT a.attisdropped
UNION ALL
SELECT 'constraint ' || conrelid::regclass || ' ' || conname || ' ' || pg_get_constraintdef(oid) || convalidated
  FROM pg_constraint WHERE connamespace = 'public'::regnamespace
UNION ALL SELECT 'trigger ' || tgenabled::text || ' ' || pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
UNION ALL SELECT 'function ' || pg_get_functiondef(oid) FROM pg_proc
 WHERE pronamespace = 'fencepost'::regnamespace AND prokind = 'f'
UNION ALL
SELECT 'protected ' || name || ' ' || relation || ' ' || rule || ' ' || source || ' ' || key_columns::text || functions
  FROM fencepost.protected
UNION ALL SELECT 'floor ' || name || floor FROM fencepost.floors
UNION ALL SELECT 'mark ' || resource || last_fence_token || row_absent FROM fencepost.marks
ORDER BY 1"""


async def state(connection: Connection) -> list[str]:
    return [row[0] for row in await connection.fetch(STATE)]


@pytest.fixture
async def owner(connect: Connect) -> Connection:
    connection = await connect()
    await connection.execute("SET search_path = public")
    return connection


async def reasons(connection: Connection, table: str) -> str:
    before = await state(connection)
    with pytest.raises(ProtectError) as caught:
        await protect(connection, table)
    assert await state(connection) == before, "a refusal changes nothing"
    return " ".join(caught.value.reasons)


CANNOT = [
    ("SELECT 1", "nowhere", "no such table"),
    ("SELECT 1", "T", "spelled as in the catalog"),
    ("CREATE TABLE t (a int)", "t", "no primary key"),
    ("CREATE TABLE t (a int PRIMARY KEY DEFERRABLE)", "t", "DEFERRABLE"),
    ("CREATE UNLOGGED TABLE t (a int PRIMARY KEY)", "t", "unlogged"),
    ("CREATE TABLE t (a float8 PRIMARY KEY)", "t", "key column a is of type double precision"),
    ("CREATE TABLE t (a jsonb PRIMARY KEY)", "t", "several texts"),
    ("CREATE DOMAIN d AS float8; CREATE TABLE t (a d PRIMARY KEY)", "t", "several texts"),
    ("CREATE TYPE c AS (x int); CREATE TABLE t (a c PRIMARY KEY)", "t", "several texts"),
    ("CREATE TYPE e AS ENUM ('x'); CREATE DOMAIN d AS e; CREATE TABLE t (a d PRIMARY KEY)", "t", "domain over an enum"),
    ("CREATE TYPE public.text AS ENUM ('a'); CREATE TABLE t (k public.text PRIMARY KEY)", "t",
        "like one of PostgreSQL's own types"),
    ("CREATE TABLE t (n int, a int GENERATED ALWAYS AS (n * 2) STORED PRIMARY KEY)", "t",
        "its key column a is generated from other columns"),
    ("CREATE TABLE t (n int, a int GENERATED ALWAYS AS (n * 2) STORED, PRIMARY KEY (n, a))", "t",
        "key column a is gen"),
    ("CREATE VIEW t AS SELECT 1 AS a", "t", "it is a view"),
    ("CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w; CREATE FOREIGN TABLE t (a int) SERVER s",
        "t", "it is a foreign table"),
    ("CREATE TABLE p (a int PRIMARY KEY) PARTITION BY LIST (a); CREATE TABLE t PARTITION OF p DEFAULT", "t",
        "its parent"),
    ("CREATE TABLE t (a int PRIMARY KEY); CREATE TABLE c () INHERITS (t)", "t", "inheritance"),
    ("CREATE TABLE t (a int PRIMARY KEY, last_fence_token int)", "t",
        "last_fence_token (integer) that Fencepost did not"),
    ("CREATE TABLE t (a int PRIMARY KEY, last_fence_token bigint NOT NULL)", "t", "did not make"),
    ("SELECT 1", "fencepost.marks", "system tables"),
    ('CREATE SCHEMA s; CREATE TABLE s.t (a int PRIMARY KEY); CREATE TABLE "s.t" (a int PRIMARY KEY)', "s.t",
        "two tables"),
]  # fmt: skip


async def test_what_is_in_the_way_is_reported(owner: Connection) -> None:
    for sql, table, reason in CANNOT:
        await owner.execute(sql)
        assert reason in await reasons(owner, table), sql
        await owner.execute("DROP SCHEMA IF EXISTS s CASCADE; DROP SCHEMA public CASCADE; CREATE SCHEMA public")


async def test_a_name_that_belongs_to_another_table(owner: Connection) -> None:
    await owner.execute("CREATE TABLE t (a int PRIMARY KEY)")
    await protect(owner, "t")
    await owner.execute("ALTER TABLE t RENAME TO u; CREATE TABLE t (a int PRIMARY KEY)")
    assert "the name t belongs to the protected table" in await reasons(owner, "t")
    await protect(owner, "u")
    await protect(owner, "t")
    assert [row[0] for row in await owner.fetch("SELECT name FROM fencepost.protected ORDER BY 1")] == ["t", "u"]


async def test_only_the_owner_may(owner: Connection) -> None:
    await owner.execute("CREATE TABLE t (a int PRIMARY KEY); CREATE ROLE somebody")
    try:
        await owner.execute("GRANT ALL ON t TO somebody; GRANT SELECT ON fencepost.protected TO somebody")
        await owner.execute("SET ROLE somebody")
        with pytest.raises(ProtectError) as caught:
            await protect(owner, "t")
        output = " ".join(caught.value.reasons)
        assert "it belongs to postgres; somebody is not a member of that role" in output
        assert "somebody may not act as that role: run this as a member of it" in output
    finally:
        await owner.execute("RESET ROLE; DROP OWNED BY somebody; DROP ROLE somebody")


async def test_every_command_names_an_owner_whom_policies_rule(owner: Connection) -> None:
    await owner.execute(
        "CREATE ROLE ruled IN ROLE postgres; GRANT ALL ON SCHEMA public TO ruled; CREATE TABLE t (a int PRIMARY KEY);"
        " INSERT INTO t VALUES (1); ALTER TABLE t OWNER TO ruled, ENABLE ROW LEVEL SECURITY; SET ROLE ruled"
    )
    way_out = 'ALTER TABLE "public"."t" NO FORCE ROW LEVEL SECURITY'
    try:
        await protect(owner, "t")  # no policy rules an owner who does not want it
        await owner.execute("ALTER TABLE t FORCE ROW LEVEL SECURITY")
        for change in ({}, {"source": "builtin"}, {"max_token": 1000}, {"scope": "a/{a}"}, None):
            with pytest.raises(ProtectError, match="row security rules ruled there") as caught:
                await (unprotect(owner, "t") if change is None else protect(owner, "t", **change))
            assert way_out in caught.value.reasons[0]
        with pytest.raises(ResetError, match="row security rules this role in t") as refused:
            await reset(owner, "t/1", 5, "INC-1")
        assert way_out in f"{refused.value}"
        (found,) = await examine_tables(owner)
        assert (found.level, "row security rules ruled" in found.text) == ("warning", True)
        await owner.execute(way_out)
        await unprotect(owner, "t")
        await owner.execute("ALTER TABLE t DROP COLUMN last_fence_token; ALTER TABLE t FORCE ROW LEVEL SECURITY")
        await protect(owner, "t", scope="a/{a}")  # no row has a mark
        await unprotect(owner, "t")
    finally:
        await owner.execute("RESET ROLE; DROP OWNED BY ruled CASCADE; DROP ROLE ruled")


TABLES = """
CREATE TABLE plain (id int PRIMARY KEY, v text); INSERT INTO plain VALUES (1, 'a'), (2, 'b');
CREATE TABLE "Od d ""$fn$ %"" 'x'" ("K " text, "select" int, PRIMARY KEY ("select", "K "));
CREATE TYPE e AS ENUM ('x'); CREATE DOMAIN code AS varchar(5);
CREATE TABLE parts (a e, b code, PRIMARY KEY (a, b)) PARTITION BY LIST (a);
CREATE TABLE part_x PARTITION OF parts FOR VALUES IN ('x') PARTITION BY HASH (b);
CREATE TABLE part_x_0 PARTITION OF part_x FOR VALUES WITH (MODULUS 1, REMAINDER 0);
"""
NAMES = ("plain", "Od d \"$fn$ %\" 'x'", "parts")


@pytest.mark.versions
@pytest.mark.parametrize("table", NAMES)
async def test_the_printed_sql_touches_nothing_and_does_the_same_through_psql(
    owner: Connection, database: str, table: str
) -> None:
    await owner.execute(TABLES)
    before = await state(owner)
    script = (await plan_protect(owner, table, "epoch", None)).script()
    assert await state(owner) == before
    await by_psql(database, script)
    printed = await state(owner)
    await by_psql(database, (await plan_unprotect(owner, table)).script())
    undone = await state(owner)
    await protect(owner, table, rule="epoch")
    assert await state(owner) == printed
    await unprotect(owner, table)
    assert await state(owner) == undone


async def by_psql(database: str, script: str) -> None:
    psql = [str(embedded_bin_dir() / "psql"), "--no-psqlrc", "--set=ON_ERROR_STOP=1", "--quiet", database]
    run = await asyncio.to_thread(subprocess.run, psql, input=script, text=True, capture_output=True, check=False)
    assert run.returncode == 0, run.stderr


@pytest.mark.versions
@pytest.mark.parametrize("table", NAMES)
async def test_protect_can_be_repeated_and_undone(owner: Connection, table: str) -> None:
    await owner.execute(TABLES)
    before = [each for each in await state(owner) if not each.startswith("floor")]
    await protect(owner, table)
    made = await state(owner)
    await protect(owner, table)
    assert await state(owner) == made
    assert [finding.level for finding in await examine_tables(owner)] == ["ok"]
    await unprotect(owner, table)
    left = [each for each in await state(owner) if not each.startswith("floor")]
    assert [each for each in left if not stays(each)] == before
    with pytest.raises(ProtectError, match="not protected"):
        await unprotect(owner, table)


def stays(each: str) -> bool:
    """Return whether unprotect leaves it on purpose: the column and its constraints."""
    return each.startswith(("column", "constraint")) and ("last_fence_token" in each or "fencepost_mark" in each)


async def test_a_later_protect_goes_on_from_the_marks(owner: Connection) -> None:
    await owner.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    await protect(owner, "t")
    await owner.execute("INSERT INTO t (id, last_fence_token) VALUES (1, 50), (2, 60)")
    await owner.execute("BEGIN; SET LOCAL fencepost.token = '70'; DELETE FROM t WHERE id = 2; COMMIT")
    await unprotect(owner, "t")
    await owner.execute("INSERT INTO t VALUES (2, 'back, while nobody watched'); UPDATE t SET v = 'x'")
    await protect(owner, "t")
    rows = await owner.fetch("SELECT id, last_fence_token FROM t ORDER BY id")
    assert [tuple(row) for row in rows] == [(1, 50), (2, 70)]
    for token, row in ((49, 1), (69, 2)):
        with pytest.raises(asyncpg.PostgresError) as refused:
            await owner.execute(f"BEGIN; SET LOCAL fencepost.token = '{token}'; UPDATE t SET v = 'y' WHERE id = {row}")
        await owner.execute("ROLLBACK")
        assert refused.value.sqlstate == "FP409", (token, row)


async def test_the_rule_can_change(owner: Connection) -> None:
    await owner.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    await protect(owner, "t")
    await owner.execute("INSERT INTO t (id, last_fence_token) VALUES (1, 5)")
    again = "BEGIN; SET LOCAL fencepost.token = '5'; UPDATE t SET v = 'x' WHERE id = 1; COMMIT"
    with pytest.raises(asyncpg.PostgresError, match="spent token 5"):
        await owner.execute(again)
    await owner.execute("ROLLBACK")
    await protect(owner, "t", rule="epoch")
    await owner.execute(again)
    await protect(owner, "t")
    assert await owner.fetchval("SELECT rule FROM fencepost.protected") == "epoch", "what is, is kept"
    await protect(owner, "t", rule="strict")
    with pytest.raises(asyncpg.PostgresError, match="spent token 5"):
        await owner.execute(again)


async def test_others_get_through_while_protect_waits_for_the_table(owner: Connection, connect: Connect) -> None:
    await owner.execute("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a')")
    holder, reader, observer = await connect(), await connect(), await connect()
    await holder.execute("BEGIN; SELECT * FROM t")
    protecting = await start(observer, protect(owner, "t"), owner.get_server_pid())
    assert not protecting.done()
    # A waiting lock makes this reader wait behind it; protect's own lock_timeout lets it through.
    assert await asyncio.wait_for(reader.fetchval("SELECT v FROM t"), PATIENCE) == "a"
    assert not protecting.done()
    await holder.execute("COMMIT")
    assert await protecting == "t"


async def test_protect_gives_up_in_the_end_and_changes_nothing(owner: Connection, connect: Connect) -> None:
    await owner.execute("CREATE TABLE t (id int PRIMARY KEY)")
    holder = await connect()
    await holder.execute("BEGIN; SELECT * FROM t")
    before = await state(owner)
    with pytest.raises(ProtectError, match="another transaction has held a lock on it"):
        await protect(owner, "t", wait=0)
    assert await state(owner) == before
