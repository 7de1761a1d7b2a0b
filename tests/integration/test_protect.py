"""`protect` and `unprotect`: checks, queues, tokens, scopes, ceilings, and what they leave alone."""

import asyncio
import json
import re
import subprocess
from typing import Any

import asyncpg
import pytest
from tests.races.test_moved_tokens import HIGH, draw, issued, table, with_token
from tests.support.interleave import Connect, Connection, blocked, run_plan, start
from tests.support.postgres import Unmade
from tests.support.racing import Race, entered, mark, meanwhile, open_race, outcome, scoped_race
from tests.support.racing import owner as connected
from tests.support.servers import command
from tests.support.use_cases import keyed, open_gateway, patch, result_of

from fencepost.server.ops.doctor import examine
from fencepost.server.ops.doctor_tables import FAR, TABLES
from fencepost.server.ops.embedded_files import embedded_bin_dir
from fencepost.server.ops.protect import ProtectError, ProtectOptions, plan_protect, plan_unprotect, protect, unprotect
from fencepost.server.postgres import queues, sources
from fencepost.server.postgres.catalog_cache import load
from fencepost.server.postgres.tables import EVERYTHING
from fencepost.server.postgres.upkeep import ResetError, reset
from fencepost.testing.servers.processes import PATIENCE

# `protect` and `unprotect`: what they check, what they do, and what they leave alone.


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
    return await connected(connect)


async def reasons(connection: Connection, table: str) -> str:
    before = await state(connection)
    with pytest.raises(ProtectError) as caught:
        await protect(connection, table)
    assert await state(connection) == before, "a refusal changes nothing"
    return " ".join(caught.value.reasons)


async def test_what_is_in_the_way_is_reported(owner: Connection) -> None:
    cannot = [
        ("SELECT 1", "nowhere", "no such table"),
        ("SELECT 1", "T", "spelled as in the catalog"),
        ("CREATE TABLE t (a int)", "t", "no primary key"),
        ("CREATE TABLE t (a int PRIMARY KEY DEFERRABLE)", "t", "DEFERRABLE"),
        ("CREATE UNLOGGED TABLE t (a int PRIMARY KEY)", "t", "unlogged"),
        ("CREATE TABLE t (a float8 PRIMARY KEY)", "t", "key column a is of type double precision"),
        ("CREATE TABLE t (a jsonb PRIMARY KEY)", "t", "several texts"),
        ("CREATE DOMAIN d AS float8; CREATE TABLE t (a d PRIMARY KEY)", "t", "several texts"),
        ("CREATE TYPE c AS (x int); CREATE TABLE t (a c PRIMARY KEY)", "t", "several texts"),
        ("CREATE TYPE e AS ENUM ('x'); CREATE DOMAIN d AS e; CREATE TABLE t (a d PRIMARY KEY)", "t",
            "domain over an enum"),
        ("CREATE TYPE public.text AS ENUM ('a'); CREATE TABLE t (k public.text PRIMARY KEY)", "t",
            "like one of PostgreSQL's own types"),
        ("CREATE TABLE t (n int, a int GENERATED ALWAYS AS (n * 2) STORED PRIMARY KEY)", "t",
            "its key column a is generated from other columns"),
        ("CREATE TABLE t (n int, a int GENERATED ALWAYS AS (n * 2) STORED, PRIMARY KEY (n, a))", "t",
            "key column a is gen"),
        ("CREATE VIEW t AS SELECT 1 AS a", "t", "it is a view"),
        ("CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w;"
            " CREATE FOREIGN TABLE t (a int) SERVER s",
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
    for sql, name, reason in cannot:
        await owner.execute(sql)
        assert reason in await reasons(owner, name), sql
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
        (found,) = await examine(TABLES, owner)
        assert (found.level, "row security rules ruled" in found.text) == ("warning", True)
        await owner.execute(way_out)
        await unprotect(owner, "t")
        await owner.execute("ALTER TABLE t DROP COLUMN last_fence_token; ALTER TABLE t FORCE ROW LEVEL SECURITY")
        await protect(owner, "t", scope="a/{a}")  # no row has a mark
        await unprotect(owner, "t")
    finally:
        await owner.execute("RESET ROLE; DROP OWNED BY ruled CASCADE; DROP ROLE ruled")


KINDS_OF_TABLES = """
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
    await owner.execute(KINDS_OF_TABLES)
    before = await state(owner)
    script = (await plan_protect(owner, table, rule="epoch", work=True)).script()
    assert await state(owner) == before
    await by_psql(database, script)
    printed = await state(owner)
    await by_psql(database, (await plan_unprotect(owner, table)).script())
    undone = await state(owner)
    await protect(owner, table, rule="epoch", work=True)
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
    await owner.execute(KINDS_OF_TABLES)
    before = [each for each in await state(owner) if not each.startswith("floor")]
    await protect(owner, table, work=True)
    made = await state(owner)
    await protect(owner, table)
    assert await state(owner) == made
    assert [finding.level for finding in await examine(TABLES, owner)] == ["ok"]
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
    await meanwhile(owner, "t", "INSERT INTO t VALUES (2, 'back, while nobody watched'); UPDATE t SET v = 'x'")
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
    assert (await protecting).name == "t"


async def test_protect_gives_up_in_the_end_and_changes_nothing(owner: Connection, connect: Connect) -> None:
    await owner.execute("CREATE TABLE t (id int PRIMARY KEY)")
    holder = await connect()
    await holder.execute("BEGIN; SELECT * FROM t")
    before = await state(owner)
    with pytest.raises(ProtectError, match="another transaction has held a lock on it"):
        await protect(owner, "t", wait=0)
    assert await state(owner) == before


# `protect --queue`: a table that takes all its writes by a queue, and how it changes over (R12).

QUEUE = "kafka:Orders.eu-1"
ABOVE = 1 << 48


@pytest.fixture
async def queue_owner(connect: Connect) -> asyncpg.Connection:
    return await connected(connect, "CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL DEFAULT 0)")


async def look(connection: asyncpg.Connection, *ends: int) -> None:
    """Let the queue's log have got so far."""
    nothing = (None,) * len(ends)
    again = await queues.check(connection, QUEUE, "x", ends, nothing)
    await queues.check(connection, QUEUE, "x", ends, nothing, before=again.recorded)


async def insert(connection: asyncpg.Connection, token: int, key: int = 1) -> str:
    async def write() -> str:
        async with connection.transaction():
            await connection.execute(f"SET LOCAL fencepost.token = '{token}'")
            await connection.execute(f"INSERT INTO t VALUES ({key}) ON CONFLICT (id) DO UPDATE SET n = t.n + 1")
        return "written"

    return await outcome(write())


async def source_of(connection: asyncpg.Connection) -> str:
    return str(await connection.fetchval("SELECT source FROM fencepost.protected"))


async def generation(connection: asyncpg.Connection) -> int:
    return next(each.generation for each in await sources.list_known(connection) if each.name == QUEUE)


async def test_a_table_takes_positions_of_its_queue(queue_owner: asyncpg.Connection) -> None:
    """It need not have been registered, and only what the log has reached is a token."""
    await protect(queue_owner, "t", queue=QUEUE)
    assert await source_of(queue_owner) == QUEUE
    assert await insert(queue_owner, 1) == "FP018"
    await look(queue_owner, 3, 5)
    assert await insert(queue_owner, 5) == "written"
    assert await insert(queue_owner, 4) == "FP409"
    assert await insert(queue_owner, 6) == "FP018"
    await protect(queue_owner, "t", rule="epoch")
    assert await source_of(queue_owner) == QUEUE, "what is not given stays"
    assert await insert(queue_owner, 5) == "written"


async def test_what_a_queues_table_cannot_have_is_refused(queue_owner: asyncpg.Connection) -> None:
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"source": "builtin"}, "--queue and --source exclude each other"),
        ({"scope": "account/{n}"}, "--queue and --scope exclude each other"),
        ({"verify": True}, "--queue and --verify exclude each other"),
        ({"max_token": 5, "max_jump": 5}, "--queue and --max-token, --max-jump exclude each other"),
        ({"queue": "kafka"}, "a queue is postgres:default, kafka:TOPIC or redis:STREAM"),
        ({"queue": "postgres:other"}, "a queue is postgres:default, kafka:TOPIC or redis:STREAM"),
        ({"queue": None, "source": QUEUE}, f"a queue orders writes and is no lock: --queue {QUEUE}"),
    )
    for given, message in cases:
        with pytest.raises(ProtectError, match=message):
            await protect(queue_owner, "t", **{"queue": QUEUE, **given})
        assert await queue_owner.fetchval("SELECT count(*) FROM fencepost.protected") == 0, given
    await protect(queue_owner, "t", queue=QUEUE)
    for given, _ in cases[1:4]:
        with pytest.raises(ProtectError):  # nor later
            await protect(queue_owner, "t", **given)


async def test_a_table_of_a_scope_leaves_it_first(queue_owner: asyncpg.Connection) -> None:
    await protect(queue_owner, "t", scope="account/{n}")
    with pytest.raises(ProtectError, match="--no-scope"):
        await protect(queue_owner, "t", queue=QUEUE)
    await protect(queue_owner, "t", queue=QUEUE, scope="")
    assert await source_of(queue_owner) == QUEUE


async def marked(owner: asyncpg.Connection, mark: int) -> None:
    """Protect the table for holders of locks, and let one of them write."""
    await protect(owner, "t")
    assert await insert(owner, mark) == "written"


async def test_a_queue_that_is_not_in_use_begins_above_the_marks_of_holders(queue_owner: asyncpg.Connection) -> None:
    await marked(queue_owner, 500)
    await protect(queue_owner, "t", queue=QUEUE)
    assert await generation(queue_owner) == 1
    await look(queue_owner, 1, 1)
    assert await insert(queue_owner, ABOVE + 1) == "written"


async def test_a_queue_in_use_needs_a_new_generation_where_a_position_may_be_below_a_mark(
    queue_owner: asyncpg.Connection,
) -> None:
    """Its highest token is above the mark; that of the next message of partition 0 is not."""
    await queues.register(queue_owner, QUEUE)
    await look(queue_owner, 20, 1000)
    await marked(queue_owner, 500)
    with pytest.raises(asyncpg.PostgresError, match="which is in use") as refused:
        await protect(queue_owner, "t", queue=QUEUE)
    assert f"fencepost source raise {QUEUE} --above 500" in (refused.value.hint or "")
    assert await sources.raise_source(queue_owner, QUEUE, "t takes its writes by it", 500) == 1
    await protect(queue_owner, "t", queue=QUEUE)
    await look(queue_owner, 21, 1000)
    assert await insert(queue_owner, ABOVE + 21) == "written"


async def test_a_queue_of_which_every_partition_is_past_the_marks_takes_the_table_as_it_is(
    queue_owner: asyncpg.Connection,
) -> None:
    await queues.register(queue_owner, QUEUE)
    await look(queue_owner, 500, 1000)
    await marked(queue_owner, 500)
    await protect(queue_owner, "t", queue=QUEUE)
    assert await generation(queue_owner) == 0
    await look(queue_owner, 501, 1000)
    assert await insert(queue_owner, 501) == "written"


async def test_a_table_goes_back_to_a_lock_service_above_the_queues_positions(queue_owner: asyncpg.Connection) -> None:
    await protect(queue_owner, "t", queue=QUEUE)
    await look(queue_owner, 9)
    assert await insert(queue_owner, 9) == "written"
    await sources.register(queue_owner, "redis", "redis", "source", verifies=True)
    await protect(queue_owner, "t", source="redis")
    now = next(each for each in await sources.list_known(queue_owner) if each.name == "redis")
    assert now.generation == 1
    await sources.record_verified(queue_owner, "redis", ABOVE + 1)
    assert await insert(queue_owner, 10) == "FP409"
    assert await insert(queue_owner, ABOVE + 1) == "written"


async def test_the_comparison_is_with_the_lowest_position(queue_owner: asyncpg.Connection) -> None:
    """The test above fails where only the highest one counts."""
    function = "fencepost.source_beyond(text, bigint, boolean)"
    definition = await queue_owner.fetchval("SELECT pg_get_functiondef($1::text::regprocedure)", function)
    assert "min(u.x)" in definition
    await queue_owner.execute(definition.replace("min(u.x)", "max(u.x)"))
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        await test_a_queue_in_use_needs_a_new_generation_where_a_position_may_be_below_a_mark(queue_owner)


# `protect --source builtin`: the tokens move past the marks that are there, whichever session writes or draws then
# (R12).

WRITE = "UPDATE t SET v = v || '!' WHERE id = 2"


@pytest.fixture
async def db(connect: Connect) -> Connection:
    """Give the owner's connection; t takes external tokens and has a row with a high mark."""
    connection = await table(connect)
    await with_token(connection, HIGH, "INSERT INTO t VALUES (2, 'a')")
    return connection


async def test_tokens_that_are_above_all_marks_stay_where_they_are(db: Connection) -> None:
    await db.execute("SELECT setval('fencepost.tokens', 9000)")
    await protect(db, "t", source="builtin")
    assert await draw(db) == 9001
    await db.execute("CREATE TABLE fresh (id int PRIMARY KEY)")
    await protect(db, "fresh", source="builtin")
    assert await draw(db) == 9002


async def test_no_session_draws_while_the_tokens_move(db: Connection, connect: Connect) -> None:
    """The race of a grant with `protect`: its token is drawn before and stays below, or after and is above."""
    grant, observer = await connect(), await connect()
    assert await draw(grant) == 1
    plan = await plan_protect(db, "t", source="builtin")
    moving = db.transaction()
    await moving.start()
    for statement in plan.statements:
        await db.execute(statement)
    drawing = await start(observer, draw(grant), grant.get_server_pid())
    assert not drawing.done()
    await moving.commit()
    assert await drawing == HIGH + 1
    assert await with_token(db, HIGH + 1, WRITE) == "ok"


async def test_who_has_drawn_and_wants_the_table_goes_first(db: Connection, connect: Connect) -> None:
    """A grant has its token and wants the table, which protect has, and protect wants to move the tokens."""
    grant, observer = await connect(), await connect()
    # Half of it at most: a busy machine runs a timer late.
    within_deadlock_timeout = (
        "SELECT 2 * substring(config FROM 'lock_timeout=(.*)ms')::int <= setting::int FROM pg_settings, pg_proc,"
        " unnest(proconfig) AS config WHERE pg_proc.oid = 'fencepost.protect(regclass, jsonb)'::regprocedure"
        " AND config LIKE 'lock_timeout=%' AND name = 'deadlock_timeout' AND unit = 'ms'"
    )
    assert await grant.fetchval(within_deadlock_timeout), "protect gives way, and not the grant"
    await grant.execute("SET deadlock_timeout = '1min'")  # half a second may not be enough on a machine that is busy
    await grant.execute("BEGIN")
    await draw(grant)
    protecting = asyncio.create_task(protect(db, "t", source="builtin"))
    await blocked(db, observer)
    claim = f"UPDATE public.t SET last_fence_token = {HIGH + 7} WHERE id = 2"
    assert await asyncio.wait_for(outcome(grant.execute(claim)), PATIENCE) == "UPDATE 1"
    await grant.execute("COMMIT")
    await protecting
    assert await draw(db) == HIGH + 8


async def test_a_deadlock_with_a_grant_is_tried_again(db: Connection, connect: Connect) -> None:
    """The same, where it is protect that PostgreSQL picks to give way."""
    grant, holder, observer = await connect(), await connect(), await connect()
    await db.execute("SET deadlock_timeout = '10ms'")
    await grant.execute("SET deadlock_timeout = '1min'")
    await grant.execute("BEGIN")
    await draw(grant)
    await holder.execute("BEGIN; SELECT FROM fencepost.protected FOR UPDATE")  # stops protect with the table in hand
    protecting = await start(observer, protect(db, "t", source="builtin"), db.get_server_pid())
    claim = f"UPDATE public.t SET last_fence_token = {HIGH + 7} WHERE id = 2"
    claiming = await start(observer, grant.execute(claim), grant.get_server_pid())
    assert not protecting.done()
    assert not claiming.done()
    await holder.execute("COMMIT")
    assert await asyncio.wait_for(claiming, PATIENCE) == "UPDATE 1"
    await grant.execute("COMMIT")
    await protecting
    assert await draw(db) == HIGH + 8


async def test_a_gateway_that_has_not_loaded_the_change_is_refused_by_triggers(db: Connection, database: str) -> None:
    async with open_gateway(database) as gateway:
        await protect(db, "t", source="builtin")
        stale = gateway.catalog.current.find("t")
        assert stale is not None
        assert stale.fence is not None
        assert not stale.fence.pinned
        assert result_of(await patch(gateway, keyed("2", HIGH + 1, table="t", v="x"))) == "FP018"


@pytest.mark.parametrize(
    ("harm", "text_given"),
    [
        (f"UPDATE t SET last_fence_token = {2**62 + 1}", "t/2 has the mark 4611686018427387905"),
        (f"SELECT fencepost.raise_mark('t/7', {2**63 - 1}, 'strict', true)", "t/7 has the mark 9223372036854775807"),
        (f"SELECT fencepost.prune('t', {2**63 - 1})", "The floor of t has the mark 9223372036854775807"),
    ],
    ids=["row", "without a row", "floor"],
)
async def test_a_mark_with_too_little_above_it_is_in_the_way(db: Connection, harm: str, text_given: str) -> None:
    await protect(db, "t", max_token=2**63 - 1)
    await db.execute(harm)
    with pytest.raises(ProtectError) as caught:
        await protect(db, "t", source="builtin")
    assert text_given in caught.value.reasons[0]
    assert await db.fetchval("SELECT source FROM fencepost.protected") == "external"
    assert await issued(db) == 0
    # What the message advises helps.
    resource = "t" if text_given.startswith("The floor") else text_given.split(maxsplit=1)[0]
    named = resource if resource == "t" else f"'{resource}'"
    assert f"fencepost fence reset {named} --to N" in caught.value.reasons[1]
    await reset(db, resource, HIGH, "INC-7")
    await protect(db, "t", source="builtin")
    assert await with_token(db, await draw(db), WRITE) == "ok"


async def test_the_highest_mark_that_can_be_gone_beyond(db: Connection) -> None:
    await protect(db, "t", max_token=2**62)
    await db.execute(f"UPDATE t SET last_fence_token = {2**62}")
    await protect(db, "t", source="builtin")
    assert await with_token(db, await draw(db), WRITE) == "ok"


async def test_a_new_table_is_not_read(db: Connection) -> None:
    """Its column came a moment ago, so no row has a mark: the lock is held for milliseconds however large it is."""
    await db.execute("CREATE TABLE big (id int PRIMARY KEY); INSERT INTO big SELECT generate_series(1, 1000)")

    async def rows_read_by_protect(name: str, source: str | None) -> int:
        count = f"SELECT coalesce(sum(seq_tup_read), 0)::int FROM pg_stat_xact_user_tables WHERE relname = '{name}'"
        plan = await plan_protect(db, name, source=source)
        async with db.transaction():
            before: int = await db.fetchval(count)
            for statement in plan.statements:
                await db.execute(statement)
            after: int = await db.fetchval(count)
        return after - before

    assert await rows_read_by_protect("big", "builtin") == 0
    assert await rows_read_by_protect("t", "builtin") == 1
    assert await rows_read_by_protect("t", None) == 0, "repeating it reads no row"


async def test_only_who_may_move_the_tokens(db: Connection) -> None:
    await db.execute("CREATE ROLE somebody; GRANT USAGE ON SCHEMA fencepost TO somebody; SET ROLE somebody")
    try:
        for statement in ("SELECT fencepost.issue_beyond(9)", "SELECT nextval('fencepost.tokens')"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await db.execute(statement)
        assert await issued(db) == 0, "and everybody may look"
    finally:
        await db.execute("RESET ROLE; DROP OWNED BY somebody; DROP ROLE somebody")


async def test_a_column_that_was_there_is_read(connect: Connect, unmade: Unmade) -> None:
    """The marks of rows that were updated are in that column only."""
    race = await open_race(connect, unmade, "strict")
    await race.insert(race.a, "k", 30)
    await race.update(race.a, "k", 5000)
    with pytest.raises(ProtectError, match="has the mark 5000, above 40"):
        await protect(race.observer, "orders", max_token=40)
    await protect(race.observer, "orders", source="builtin")
    assert await race.observer.fetchval("SELECT fencepost.issued()") >= 5000


# What a table is protected with is stored, and kept by a later `protect` that does not name it.

GIVEN: dict[str, dict[str, Any]] = {
    "rule": {"rule": "epoch"},
    "source": {"source": "builtin"},
    "requires_key": {"requires_key": True},
    "scope": {"scope": "of/{a}"},
    "verify": {"source": "asked", "verify": True},
    "max_token": {"max_token": 5000},
    "max_jump": {"max_jump": 100},
    "queue": {"queue": "postgres:default"},
    "sealed": {"sealed": True},
    "triggers_see_own_row": {"triggers_see_own_row": True},
    "work": {"work": True},
    "max_attempts": {"work": True, "max_attempts": 7, "on_exhausted": {"a": "9"}},
    "on_exhausted": {"work": True, "max_attempts": 7, "on_exhausted": {"a": "9", "b": None}},
}
FIRST: dict[str, Any] = {"max_attempts": 2, "on_exhausted": {"a": "9"}}
"""A value that is not the default, by the argument (FIRST: what it has before); `verify` needs a source to be asked."""


async def stored(db: Connection) -> str:
    row = await db.fetchval(
        "SELECT to_jsonb(p) - '{relation, protected_at, protected_by}'::text[] FROM fencepost.protected p"
    )
    assert isinstance(row, str)
    return row


async def test_any_program_protects_a_table_by_sql(owner: Connection) -> None:
    await owner.execute("CREATE TABLE t (id int PRIMARY KEY); SET standard_conforming_strings = off")
    made = await owner.fetchrow("""SELECT * FROM fencepost.protect('t', '{"rule": "epoch", "max_jump": 7}')""")
    assert made == await owner.fetchrow("SELECT * FROM fencepost.protected")
    assert made is not None
    assert (made["name"], made["rule"], made["max_jump"]) == ("t", "epoch", 7)
    for options, told in (
        ('{"sope": "a/{id}"}', "there is no option sope; there are above, max_attempts"),
        ('{"verify": "yes"}', 'verify is a boolean, and not "yes"'),
        ('{"rule": "lax"}', 'rule is strict or epoch, and not "lax"'),
        ('{"max_jump": 1.5}', "max_jump is a whole number, and not 1.5"),
        ("[]", "the options are a JSON object"),
        ('{"on_exhausted": "a"}', 'on_exhausted is an object, and not "a"'),
        ('{"on_exhausted": {"a": [1]}}', "a text, a number, true, false or null for each of its columns, and not"),
    ):
        with pytest.raises(asyncpg.InvalidParameterValueError, match=re.escape(told)):
            await owner.execute(f"SELECT fencepost.protect('t', '{options}')")
    with pytest.raises(asyncpg.PostgresError, match="use READ COMMITTED"):
        async with owner.transaction(isolation="repeatable_read"):
            await owner.execute("SELECT fencepost.protect('t', '{}')")
    assert await owner.fetchval("SELECT fencepost.unprotect('t')") == "t"


def test_every_argument_is_here() -> None:
    # Arguments that move tokens once, and are not stored.
    at_once = {"above"}
    assert ProtectOptions.__annotations__.keys() == GIVEN.keys() | at_once


@pytest.mark.parametrize("argument", GIVEN)
async def test_what_was_given_is_stored_and_kept(connect: Connect, argument: str) -> None:
    kept_db = await connected(connect, "CREATE TABLE t (id int PRIMARY KEY, a int NOT NULL DEFAULT 1, b int)")
    await sources.register(kept_db, "asked", "mock", "source", verifies=True)
    await protect(kept_db, "t", **{**GIVEN[argument], argument: FIRST.get(argument)})
    without = await stored(kept_db)
    await protect(kept_db, "t", **GIVEN[argument])
    given = await stored(kept_db)
    assert given != without
    await protect(kept_db, "t")
    assert await stored(kept_db) == given


# `protect --scope` and doctor on tables of a scope: what is refused and why, and what is found amiss. Marks go along
# when a table leaves a scope or enters one, whatever it and its columns are called by then (R6, R8).

SCOPED_TABLES = """
CREATE TYPE mood AS ENUM ('fair', 'foul');
CREATE TABLE items (id int PRIMARY KEY, account_id int NOT NULL, note text, ratio float8 NOT NULL DEFAULT 0,
  twice int GENERATED ALWAYS AS (id * 2) STORED NOT NULL,
  mood mood NOT NULL DEFAULT 'fair', place varchar(9) NOT NULL DEFAULT 'fair');
CREATE TABLE notes (account_id bigint, no int, name text NOT NULL DEFAULT '', PRIMARY KEY (account_id, no));
CREATE TABLE account (id int PRIMARY KEY)"""


@pytest.fixture
async def scoped_owner(connect: Connect) -> Connection:
    return await connected(connect, SCOPED_TABLES)


async def test_a_scope_that_cannot_be_is_refused_with_its_reason(scoped_owner: Connection) -> None:
    for wanted, reason in (
        ("account", "a scope is a name, a slash and columns in braces"),
        ("ac count/{id}", "letters, digits"),
        ("a/{id},{id}", "a column is named twice"),
        ("account/{id}", "the scope's name account is that of a table"),
        ("acc/{nothing}", "nothing is no column of items"),
        ("acc/{note}", "note can be null: ALTER TABLE … ALTER COLUMN note SET NOT NULL"),
        ("acc/{ratio}", "ratio is of type double precision, whose equal values have several texts"),
        ("acc/{twice}", "twice is generated"),
        ("acc/{mood}", "mood is of the enum public.mood: renaming one of its values"),
    ):
        with pytest.raises(ProtectError) as refused:
            await protect(scoped_owner, "items", scope=wanted)
        assert reason in str(refused.value), wanted
        assert await scoped_owner.fetchval("SELECT count(*) FROM fencepost.protected") == 0, wanted


async def test_tables_of_a_scope_agree_in_types_rule_and_source(scoped_owner: Connection) -> None:
    await protect(scoped_owner, "items", scope="acc/{account_id}")
    for scope, rule, source, reason in (
        ("acc/{account_id}", "epoch", None, "items has the same scope with the rule strict"),
        ("acc/{account_id}", None, "builtin", "unprotect the others, change this one, and protect them again"),
        ("acc/{name}", None, None, "items has the scope acc/{account_id}, of other types"),
        ("acc/{account_id},{no}", None, None, "another number of columns"),
    ):
        with pytest.raises(ProtectError) as refused:
            await protect(scoped_owner, "notes", scope=scope, rule=rule, source=source)  # type: ignore[arg-type]
        assert reason in str(refused.value), (scope, reason)
    await protect(scoped_owner, "notes", scope="acc/{account_id}")
    await scoped_owner.execute("ALTER TABLE account RENAME TO acc")
    with pytest.raises(ProtectError) as refused:
        await protect(scoped_owner, "acc")
    assert "its name is that of a scope" in str(refused.value)


async def test_two_tables_that_take_a_scope_at_once_agree_too(scoped_owner: Connection) -> None:
    plans = [await plan_protect(scoped_owner, "items", rule="epoch", scope="acc/{account_id}") for _ in "12"]
    await protect(scoped_owner, "notes", scope="acc/{account_id}")
    with pytest.raises(
        asyncpg.PostgresError, match="protected with this scope and another rule, source, seal or ceiling at"
    ):
        await run_plan(scoped_owner, plans[0])
    await unprotect(scoped_owner, "notes")
    await scoped_owner.execute("ALTER TABLE account RENAME TO acc")
    await protect(scoped_owner, "acc")
    with pytest.raises(asyncpg.PostgresError, match="a table with the name of this scope was protected at"):
        await run_plan(scoped_owner, plans[1])


async def test_rows_that_have_left_a_scope_take_no_floor_above_the_ceiling(scoped_owner: Connection) -> None:
    await protect(scoped_owner, "items", scope="acc/{account_id}")
    await scoped_owner.execute("SELECT fencepost.enter('acc', '{acc/7}', 90)")
    await unprotect(scoped_owner, "items")
    with pytest.raises(ProtectError, match="The floor of items is 90, above 80, the highest token that the table is"):
        await protect(scoped_owner, "items", max_token=80)
    await protect(scoped_owner, "items", max_token=90)


@pytest.mark.parametrize(
    ("sql", "answered"),
    [
        ("ALTER TABLE items DISABLE TRIGGER zzz_fencepost_scope", "zzz_fencepost_scope"),
        ("DROP TRIGGER zzz_fencepost_scope_ins ON items", "zzz_fencepost_scope_ins"),
        ("DROP TRIGGER zzz_fencepost_scope_upd ON items", "zzz_fencepost_scope_upd"),
        ("ALTER TABLE items ALTER account_id DROP NOT NULL", "account_id"),
        ("ALTER TABLE items RENAME account_id TO account", "account_id"),
    ],
)
async def test_doctor_finds_it_the_gateway_refuses_it_and_protect_mends_it(
    connect: Connect, database: str, sql: str, answered: str
) -> None:
    race = await scoped_race(connect, database, "strict")
    assert (await command("doctor", database=database)).exit_code == 0
    await race.observer.execute(sql)
    found = await command("doctor", database=database)
    assert found.exit_code == 1
    assert any(line.startswith("ERROR") and answered in line for line in found.output.splitlines()), found.output
    if "TRIGGER" in sql:
        assert (await command("protect", "items", database=database)).exit_code == 0
        assert (await command("doctor", database=database)).exit_code == 0
        await entered(race, race.a, 50, "account/42")
        assert await race.direct(race.a, "UPDATE items SET n = 1 WHERE id = 1", 49) == "FP409"


UPDATE = "UPDATE {} SET n = n + 1"


@pytest.fixture
async def race(connect: Connect, unmade: Unmade) -> Race:
    race = await scoped_race(connect, unmade, "strict")
    await entered(race, race.a, 200, "account/42")
    return race


async def unprotected_and_renamed(race: Race) -> None:
    await unprotect(race.observer, "items")
    await race.observer.execute("ALTER TABLE items RENAME TO things")


async def test_a_table_that_was_renamed_while_unprotected_has_the_marks_of_its_scope(race: Race) -> None:
    await unprotected_and_renamed(race)
    await protect(race.observer, "things")
    assert await race.direct(race.a, UPDATE.format("things"), 150) == "FP409"
    assert await race.direct(race.a, "INSERT INTO things VALUES (9, 42)", 150) == "FP409", (
        "nor do deleted keys lose theirs"
    )
    assert await race.direct(race.a, UPDATE.format("things"), 201) == "ok"
    assert await race.direct(race.a, "INSERT INTO things VALUES (9, 42)", 202) == "ok"
    # Done with: another table of the old name begins anew.
    await race.observer.execute("CREATE TABLE items (id int PRIMARY KEY, n int)")
    await race.observer.execute("INSERT INTO items VALUES (1, 1)")
    await protect(race.observer, "items")
    assert await race.direct(race.a, UPDATE.format("things"), 150) == "FP409"


@pytest.mark.parametrize("scope", ["", "acc/{account_id}"])
async def test_another_table_that_took_the_name_does_not_take_the_marks(race: Race, scope: str) -> None:
    await unprotected_and_renamed(race)
    await race.observer.execute("CREATE TABLE items (id int PRIMARY KEY, n int); INSERT INTO items VALUES (1, 1)")
    await protect(race.observer, "items")
    assert await race.direct(race.a, UPDATE.format("items"), 5) == "ok"
    await protect(race.observer, "things", scope=scope)
    assert await race.direct(race.a, UPDATE.format("things"), 150) == "FP409"
    assert await race.direct(race.a, "INSERT INTO things VALUES (9, 43)", 150) == "FP409"


async def test_what_was_pruned_of_the_scope_goes_along(race: Race) -> None:
    assert await race.observer.fetchval("SELECT fencepost.prune('account', 210)") > 0
    await protect(race.observer, "items", scope="")
    assert await race.direct(race.a, UPDATE.format("items"), 205) == "FP409"
    assert await race.direct(race.a, UPDATE.format("items"), 211) == "ok"


async def test_what_is_written_to_the_column_meanwhile_is_of_no_account(race: Race) -> None:
    """It is left over from a protection by rows; in a scope it judges nothing."""
    await protect(race.observer, "items", scope="")
    await protect(race.observer, "items", scope="account/{account_id}")
    garbage = "UPDATE items SET last_fence_token = 9000000000000000000"
    assert await race.direct(race.a, garbage, 300) == "ok"
    await protect(race.observer, "items", scope="acc/{account_id}")
    assert await mark(race, "acc/42") is None
    assert await race.direct(race.a, UPDATE.format("items"), 300) == "FP409", "below the floor that it brought"
    assert await race.direct(race.a, garbage, 301) == "ok"
    await protect(race.observer, "items", scope="")
    assert await race.direct(race.a, UPDATE.format("items"), 301) == "FP409"
    assert await race.direct(race.a, UPDATE.format("items"), 302) == "ok"


async def test_columns_that_have_swapped_names_fence_every_scope_up_to_the_highest_mark(race: Race) -> None:
    """By now the template means another column: `protect` has no marks where they would belong."""
    await race.observer.execute("ALTER TABLE items ADD other int NOT NULL DEFAULT 7")
    for old, new in (("account_id", "was"), ("other", "account_id")):
        await race.observer.execute(f"ALTER TABLE items RENAME {old} TO {new}")
    broken = [each.text for each in await examine(TABLES, race.observer) if each.level == "error"]
    assert len(broken) == 1
    assert "columns of its scope account/{account_id} are others now: it is read from was" in broken[0]
    await protect(race.observer, "items")
    assert [each for each in await examine(TABLES, race.observer) if each.level == "error"] == []
    assert await race.direct(race.a, UPDATE.format("items"), 150) == "FP409"
    assert await race.direct(race.a, UPDATE.format("items"), 201) == "ok"
    assert await mark(race, "account/7") == 201
    await protect(race.observer, "items")
    assert await race.direct(race.a, "INSERT INTO items (id, was, account_id) VALUES (9, 1, 8)", 190) == "FP409"


# Ceilings and seals as they are given, kept and shown, and marks that are far above all others (R12).


@pytest.fixture
async def ceiling_db(connect: Connect) -> Connection:
    connection = await connected(
        connect, "CREATE TABLE t (id int PRIMARY KEY, a int NOT NULL DEFAULT 1); CREATE TABLE u (a int PRIMARY KEY)"
    )
    await protect(connection, "t")
    return connection


async def ceiling(db: Connection, name: str = "t") -> tuple[int | None, int | None]:
    row = await db.fetchrow("SELECT max_token, max_jump FROM fencepost.protected WHERE name = $1", name)
    assert row is not None
    return (row[0], row[1])


async def test_a_ceiling_is_kept_until_another_is_given(ceiling_db: Connection, database: str) -> None:
    assert await ceiling(ceiling_db) == (2**62 - 1, None)
    assert (await command("protect", "t", "--max-token", "5000", "--max-jump", "100", database=database)).exit_code == 0
    await protect(ceiling_db, "t", rule="epoch")
    assert await ceiling(ceiling_db) == (5000, 100)
    await protect(ceiling_db, "t", max_jump=0)
    assert await ceiling(ceiling_db) == (5000, None)
    await protect(ceiling_db, "t", source="builtin")
    assert await ceiling(ceiling_db) == (None, None)
    await protect(ceiling_db, "t", source="external")
    assert await ceiling(ceiling_db) == (2**62 - 1, None)


async def test_a_source_that_knows_its_tokens_has_no_ceiling(ceiling_db: Connection) -> None:
    for max_token, max_jump in ((5, None), (None, 5)):
        with pytest.raises(ProtectError, match="are for the source external: builtin knows"):
            await protect(ceiling_db, "t", source="builtin", max_token=max_token, max_jump=max_jump)


async def test_a_bound_that_is_none_is_refused(ceiling_db: Connection) -> None:
    for max_token, max_jump in ((0, None), (2**63, None), (None, -1)):
        with pytest.raises(ProtectError, match="--max-token is a token, 1 to 9223372036854775807"):
            await protect(ceiling_db, "t", max_token=max_token, max_jump=max_jump)


async def test_tables_of_a_scope_share_them(ceiling_db: Connection) -> None:
    await protect(ceiling_db, "t", scope="acc/{a}", max_token=5000)
    with pytest.raises(ProtectError, match="t has the same scope with --max-token 5000 and no --max-jump"):
        await protect(ceiling_db, "u", scope="acc/{a}")
    await protect(ceiling_db, "u", scope="acc/{a}", max_token=5000)


async def test_doctor_finds_a_mark_that_would_refuse_everybody(ceiling_db: Connection, database: str) -> None:
    async def found(change: str) -> str:
        await ceiling_db.execute(change)
        return str((await command("doctor", database=database)).output)

    await ceiling_db.execute("INSERT INTO t (id, last_fence_token) VALUES (1, 900), (2, 1000)")
    assert "far above" not in await found(f"UPDATE t SET last_fence_token = {1000 + FAR} WHERE id = 1")
    warned = await found(f"UPDATE t SET last_fence_token = {2**61} WHERE id = 1")
    assert f"WARNING  t: t/1 has the mark {2**61}, far above all others (1000)" in warned
    assert "`fencepost fence reset t/1 --to N --reason" in warned
    restored = f"SET session_replication_role = replica; UPDATE t SET last_fence_token = {2**62} WHERE id = 1"
    assert f"t/1 has the mark {2**62}, above {2**62 - 1}, the highest token that is taken" in await found(restored)


@pytest.fixture
async def sealed_db(connect: Connect) -> Connection:
    connection = await connected(connect, "CREATE TABLE t (id int PRIMARY KEY, a int NOT NULL DEFAULT 1)")
    await connection.execute("CREATE TABLE u (id int PRIMARY KEY, a int NOT NULL DEFAULT 1)")
    return connection


@pytest.mark.usefixtures("sealed_db")
async def test_it_is_given_kept_and_taken_back_by_the_command(database: str) -> None:
    for option, told in (
        ("--sealed", "external (sealed)"),
        ("--triggers-see-own-row", "external (sealed, triggers see own row)"),
        ("--no-sealed", "external (triggers see own row)"),
        ("--work --max-attempts 5 --on-exhausted a=0", "external (triggers see own row, work, put aside after 5)"),
        ("--no-work --max-token 5000 --max-jump 100", "external (to 5000, jumps to 100, triggers see own row)"),
    ):
        assert (await command("protect", "t", *option.split(), database=database)).exit_code == 0
        assert told in (await command("status", database=database)).output
    (shown,) = json.loads((await command("status", "--json", database=database)).output)["protected"]
    assert (shown["max_token"], shown["max_jump"], shown["work"]) == ("5000", "100", False)


async def test_a_queue_has_no_seals_and_says_so_either_way_round(sealed_db: Connection) -> None:
    with pytest.raises(ProtectError, match="--sealed and postgres:default exclude each other"):
        await protect(sealed_db, "t", queue="postgres:default", sealed=True)
    await protect(sealed_db, "t", sealed=True)
    with pytest.raises(ProtectError, match="--no-sealed takes a seal away"):
        await protect(sealed_db, "t", queue="postgres:default")
    await protect(sealed_db, "t", queue="postgres:default", sealed=False)
    with pytest.raises(ProtectError, match="exclude each other"):
        await protect(sealed_db, "t", sealed=True)


async def test_all_tables_of_a_scope_are_sealed_or_none_is(sealed_db: Connection) -> None:
    await protect(sealed_db, "t", scope="of/{a}", sealed=True)
    with pytest.raises(ProtectError, match="t has the same scope with --sealed"):
        await protect(sealed_db, "u", scope="of/{a}")
    await protect(sealed_db, "u", scope="of/{a}", sealed=True)
    with pytest.raises(ProtectError, match="u has the same scope with --sealed"):
        await protect(sealed_db, "t", sealed=False)


# Workers take the next row: the trigger that tells those that wait, and what puts a row aside.


@pytest.fixture
async def jobs_db(connect: Connect) -> Connection:
    columns = "v text NOT NULL, n int GENERATED ALWAYS AS IDENTITY, g int GENERATED ALWAYS AS (id * 2) STORED"
    connection = await connected(
        connect,
        f"CREATE TABLE jobs (id int PRIMARY KEY, {columns}) PARTITION BY RANGE (id); SET fencepost.token = 1;"
        "CREATE TABLE few PARTITION OF jobs FOR VALUES FROM (1) TO (10)",
    )
    await sources.register(connection, "asked", "mock", "source", verifies=True)
    return connection


BOTH: dict[str, Any] = {"max_attempts": 2, "on_exhausted": {"v": "failed"}}
AFTER: dict[str, Any] = {"on_exhausted": BOTH["on_exhausted"]}
UNSET = (("x", "is no column"), ("id", "is a column of the key"), ("n", "is GENERATED"), ("g", "is GENERATED"),
         ("v", "cannot be null"), ("last_fence_token", "is the row's mark"))  # fmt: skip
NOT_FOR_WORKERS: list[tuple[dict[str, Any], str]] = [
    ({"scope": "of/{v}"}, "--work and a scope exclude each other"),
    ({"queue": "postgres:default"}, "--work and postgres:default exclude each other"),
    ({"source": "asked"}, "the table takes those of asked"),
    ({"work": None, "max_attempts": 2}, "are for tables whose rows workers take: --work"),
    ({"work": None, **AFTER}, "are for tables whose rows workers take: --work"),
    *(({**BOTH, "max_attempts": most}, "can be taken 1 to 1000000 times") for most in (-1, 1_000_001)),
    ({"max_attempts": 2}, "what it is then, such as status=failed: give both"),
    (AFTER, "how many times of being taken: give both"),
    *(({**BOTH, "on_exhausted": {name: None}}, f"--on-exhausted: {name} {reason}") for name, reason in UNSET),
]


async def test_what_workers_cannot_have_is_refused(jobs_db: Connection) -> None:
    for given, reason in NOT_FOR_WORKERS:
        with pytest.raises(ProtectError, match=re.escape(reason)):
            await protect(jobs_db, "jobs", **{"work": True, **given})
    nothing: dict[str, Any]
    for nothing in ({"max_attempts": 0}, {"on_exhausted": {}}, {"work": False}, {"scope": "of/{v}"}):
        had = (await protect(jobs_db, "jobs", work=True, **BOTH)).after
        assert (had["max_attempts"], had["on_exhausted"]) == (2, '{"v": "failed"}')
        has = (await protect(jobs_db, "jobs", **nothing)).after
        assert (has["max_attempts"], has["on_exhausted"]) == (None, None), nothing
        assert has["work"] == ("work" not in nothing and "scope" not in nothing)


async def test_those_that_wait_are_told_of_rows_and_nobody_else_is(jobs_db: Connection, connect: Connect) -> None:
    await protect(jobs_db, "jobs", rule="epoch", work=True)
    await jobs_db.execute("CREATE TABLE more PARTITION OF jobs FOR VALUES FROM (10) TO (20)")
    heard: asyncio.Queue[str] = asyncio.Queue()
    listening, end = await connect(), "NOTIFY fencepost_work, 'end'"
    await listening.add_listener("fencepost_work", lambda *told: heard.put_nowait(str(told[-1])))
    jobs = str(await jobs_db.fetchval("SELECT 'jobs'::regclass::oid"))
    watch = "SELECT fencepost.watch('jobs'::regclass, 'b7e23ec2-9af0-4a44-91b0-0c7b7d1b3b7f')"
    for statement, told in (
        (f"{watch.replace('jobs', 'few')}; UPDATE jobs SET v = 'b'", False),
        (f"{watch}; INSERT INTO jobs VALUES (2, 'a'), (11, 'a')", True),
        ("UPDATE few SET v = 'b'", True),
        ("UPDATE more SET v = 'b'", True),
        ("SET ROLE pg_write_all_data; INSERT INTO jobs VALUES (3, 'a'); RESET ROLE", True),
        ("SET fencepost.taking = on; UPDATE jobs SET v = 'c'; SET fencepost.taking = off", False),
        ("UPDATE fencepost.watched SET until = clock_timestamp(); UPDATE jobs SET v = 'd'", False),
        (f"{watch}; UPDATE jobs SET v = 'e'", True),
        ("SELECT fencepost.unwatch('b7e23ec2-9af0-4a44-91b0-0c7b7d1b3b7f'); UPDATE jobs SET v = 'f'", False),
    ):
        await jobs_db.execute(statement)
        await jobs_db.execute(end)
        async with asyncio.timeout(PATIENCE):
            found = [await heard.get() for _ in range(1 + told)]
        assert found == [jobs, "end"][1 - told :], statement
    await jobs_db.execute("ALTER TABLE jobs DETACH PARTITION more")
    on = "SELECT array_agg(tgrelid::regclass::text) FROM pg_trigger WHERE tgname = 'zzz_fencepost_work'"
    assert {*await jobs_db.fetchval(on)} == {"few", "jobs"}
    await protect(jobs_db, "jobs", work=False)
    assert await jobs_db.fetchval(on) is None


async def test_who_waits_no_more_is_swept(jobs_db: Connection) -> None:
    await jobs_db.execute("SELECT fencepost.watch(n::oid, gen_random_uuid()) FROM generate_series(1, 3) n")
    await jobs_db.execute("UPDATE fencepost.watched SET until = until + (relation::int - 2) * interval '1 hour'")
    await jobs_db.execute("SELECT fencepost.sweep()")
    assert await jobs_db.fetchval("SELECT array_agg(relation) FROM fencepost.watched") == [2]


async def test_the_gateway_knows_and_needs_no_such_trigger(jobs_db: Connection) -> None:
    await protect(jobs_db, "jobs", work=True, **BOTH)
    await jobs_db.execute("DROP TRIGGER zzz_fencepost_work ON jobs; ALTER TABLE few DISABLE TRIGGER zzz_fencepost_work")
    table = (await load(jobs_db, EVERYTHING, 1)).tables["jobs"]
    assert table.fence is not None
    assert (table.fence.work, table.fence.max_attempts, table.fence.on_exhausted) == (True, 2, '{"v": "failed"}')
    assert (table.fence.intact, table.shares_transactions, table.may_suppress) == (True, True, False)
