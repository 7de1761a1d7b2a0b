"""R14: the functions run in other people's sessions. Nothing that a session can set or create changes a verdict.

Nor does how a row and a table are called.
The owner of a table, and a role that may disable its triggers, can take the fence away; that is no accident.
"""

from collections.abc import AsyncIterator

import pytest
from tests.direct_sql.drivers import CLERK, people
from tests.support.interleave import Connect, Connection
from tests.support.postgres import Unmade
from tests.support.racing import REASON, Race, open_race, outcome, owner, run

from fencepost.server.ops.protect import protect
from fencepost.server.postgres import upkeep

COMPARED = ("bigint", "text", "xid8", "integer", "name", "boolean", "numeric", "regclass", "oid")
_FUNCTIONS = {
    "concat": ("text", "evil, not concat"), "format": ("text", "evil"), "strpos": ("int4", "1"),
    "left": ("text", "evil"), "substr": ("text", "99"), "length": ("int4", "99"), "abs": ("int8", "99"),
    "current_setting": ("text", "99"), "set_config": ("text", "99"), "pg_current_xact_id": ("xid8", "3"),
    "pg_xact_status": ("text", "in progress"), "pg_has_role": ("bool", "true"), "enc": ("text", "evil"),
    "replace": ("text", "evil"), "given": ("int8", "99"), "clock_timestamp": ("timestamptz", "2000-01-01"),
    "regexp_replace": ("text", "evil reason"), "json_build_object": ("json", "{}"),
    "to_regclass": ("regclass", "pg_class"), "starts_with": ("bool", "true"),
}  # fmt: skip
_ARGUMENTS = (
    "", "text", "bigint", "text, boolean", "text, text", "text, int", "text, text, text", "xid8", "VARIADIC text[]",
)  # fmt: skip


async def evil(db: Connection) -> None:
    """A schema with operators, functions, types and tables like those that ours use."""
    await db.execute("CREATE SCHEMA evil; GRANT USAGE ON SCHEMA evil TO PUBLIC")
    for number, symbol in enumerate(("=", "<>", "<", "<=", ">", ">=", "~", "!~")):
        for type_ in COMPARED:
            if symbol in ("~", "!~") and type_ != "text":
                continue
            always = symbol != "!~"
            await db.execute(
                f"CREATE FUNCTION evil.op{number}({type_}, {type_}) RETURNS boolean LANGUAGE sql AS 'SELECT {always}';"
                f"CREATE OPERATOR evil.{symbol} (LEFTARG = {type_}, RIGHTARG = {type_}, FUNCTION = evil.op{number})"
            )
    await db.execute("""
        CREATE FUNCTION evil.joined(text, text) RETURNS text LANGUAGE sql AS $$ SELECT 'evil'::text $$;
        CREATE OPERATOR evil.|| (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.joined);
        CREATE FUNCTION evil.negated(bigint) RETURNS bigint LANGUAGE sql AS $$ SELECT 99::bigint $$;
        CREATE OPERATOR evil.- (RIGHTARG = bigint, FUNCTION = evil.negated)""")
    for name, (returned, value) in _FUNCTIONS.items():
        for arguments in _ARGUMENTS:
            await db.execute(
                f"CREATE FUNCTION evil.{name}({arguments}) RETURNS {returned} LANGUAGE sql"
                f" AS $$ SELECT '{value}'::pg_catalog.{returned} $$"
            )
    await db.execute("""
        CREATE TYPE evil.text AS (a int); CREATE TYPE evil.int8 AS (a int); CREATE TYPE evil.xid AS (a int);
        CREATE TYPE evil.xid8 AS (a int); CREATE TYPE evil.regclass AS (a int); CREATE TYPE evil.name AS (a int);
        CREATE TABLE evil.marks (resource pg_catalog.text, last_fence_token bigint, row_absent boolean);
        CREATE TABLE evil.protected (relation pg_catalog.text, name pg_catalog.text, rule pg_catalog.text);
        CREATE TABLE evil.floors (name pg_catalog.text, floor bigint);
        GRANT ALL ON ALL TABLES IN SCHEMA evil TO PUBLIC""")


UPDATE = "UPDATE public.orders SET n = n WHERE order_id = 'k'"
DELETE = "DELETE FROM public.orders WHERE order_id = 'k'"
INSERT = "INSERT INTO public.orders (order_id) VALUES ('k')"
UPSERT = INSERT + " ON CONFLICT (order_id) DO UPDATE SET n = 3"
COLUMN = "UPDATE public.orders SET last_fence_token = {}"


SETTINGS = {
    "standard_conforming_strings": ["off"], "backslash_quote": ["on"], "quote_all_identifiers": ["on"],
    "transform_null_equals": ["on"], "plpgsql.variable_conflict": ["use_column", "use_variable"],
    "plpgsql.extra_errors": ["all"], "plpgsql.check_asserts": ["off"],
    "plan_cache_mode": ["force_generic_plan", "force_custom_plan"], "row_security": ["off"], "array_nulls": ["off"],
    "xmloption": ["document"], "enable_indexscan": ["off"], "enable_seqscan": ["off"],
    "client_encoding": ["LATIN1", "SQL_ASCII"], "default_transaction_deferrable": ["on"],
    "check_function_bodies": ["off"],
    "search_path": ["", "evil", "evil, pg_catalog, public", "pg_temp, evil, public", '"$user"', "fencepost, public"],
}  # fmt: skip


@pytest.fixture
async def race(request: pytest.FixtureRequest, connect: Connect, unmade: Unmade) -> AsyncIterator[Race]:
    race = await open_race(connect, unmade, source=getattr(request, "param", "builtin"))
    await race.insert(race.a, "k", 30)
    async with people(race.observer, "public.orders"):
        yield race


async def assert_judged(race: Race, connection: Connection, mark: int = 30) -> int:
    """Every verb is judged as it should be, and the mark afterwards is what it should be. Returns it."""
    direct = race.direct
    for statement in (UPDATE, DELETE, UPSERT):
        assert await direct(connection, statement) == "FP428", statement
        assert await direct(connection, statement, mark - 1) == "FP409", statement
        assert await direct(connection, statement, mark) == "FP409", statement
        assert await direct(connection, statement, f"orders2={mark + 1}") == "FP428", statement
        assert await direct(connection, statement, "99x") == "FP400", statement
    for value in (mark - 1, -mark, f"- {mark}"):
        assert await direct(connection, COLUMN.format(value)) == "FP409", value
    for value in ("last_fence_token", "0", "DEFAULT", "NULL"):
        assert await direct(connection, COLUMN.format(value)) == "FP428", value
    assert await direct(connection, "UPDATE public.orders SET order_id = 'z'", mark + 1) == "FP400"
    assert await direct(connection, "TRUNCATE public.orders", mark + 1) in ("FP428", "42501")
    assert await direct(connection, f"SET LOCAL fencepost.break_glass = 'a b'; {UPDATE}") in ("FP400", "42501")
    assert await direct(connection, UPDATE, mark + 1) == "ok"
    assert await direct(connection, DELETE, mark + 2) == "ok"
    assert await direct(connection, INSERT, mark + 1) == "FP409"
    assert await direct(connection, INSERT) == "FP428"
    assert await direct(connection, INSERT, mark + 3) == "ok"
    assert await race.live_mark("k") == mark + 3
    assert await race.recorded("k") == (mark + 3, False)
    if race.fence.pinned:
        assert await direct(connection, UPDATE, 5000) == "FP018"
        assert await direct(connection, COLUMN.format(5000)) == "FP018"
        assert (
            await direct(connection, INSERT.replace("(order_id) VALUES ('k'", "VALUES ('new', '', 0, 5000")) == "FP018"
        )
        assert await direct(connection, DELETE, 5000) == "FP018"
        assert await direct(connection, INSERT.replace("'k'", "'new'"), 5000) == "FP018"
    assert await race.observer.fetchval("SELECT count(*) FROM fencepost.marks") == 1
    return mark + 3


# For what meets the texts of a table's own functions: they differ by the source.
@pytest.mark.parametrize("race", ["external", "builtin"], indirect=True)
async def test_settings_of_a_session_change_no_verdict(race: Race) -> None:
    await evil(race.observer)
    mark = 30
    for name, values in SETTINGS.items():
        for value in values:
            await race.c.execute("SELECT set_config($1, $2, false)", name, value)
            # New plans, as a new session has them: functions are parsed under the settings of their first caller.
            await race.c.execute("DISCARD PLANS")
            mark = await assert_judged(race, race.c, mark)
            await race.c.execute(f"RESET {name}")


async def test_settings_that_a_session_begins_with_change_no_verdict(race: Race, connect: Connect) -> None:
    """The functions are compiled once in a session, under the settings of then."""
    await evil(race.observer)
    mark = 30
    for name in ("standard_conforming_strings", "plpgsql.variable_conflict", "plpgsql.extra_errors", "search_path"):
        for value in SETTINGS[name]:
            fresh = await connect()
            await fresh.execute("SELECT set_config($1, $2, false)", name, value)
            mark = await assert_judged(race, fresh, mark)
            # The gateway's DELETE is a function, too.
            delete = f"SELECT pg_catalog.count(*) FROM {race.fence.delete_function}('k'::pg_catalog.text, $1, NULL)"
            assert [await fresh.fetchval(delete, token) for token in (mark, mark + 1)] == [0, 1], name
            await fresh.execute("RESET search_path")
            assert await race.insert(fresh, "k", mark + 2), name
            mark += 2
            await fresh.close()


async def test_a_plain_role_with_a_schema_of_its_own_gets_nothing_past(race: Race, connect: Connect) -> None:
    await evil(race.observer)
    await race.observer.execute(
        f"GRANT ALL ON SCHEMA evil TO {CLERK}; GRANT TEMPORARY ON DATABASE {await name_of(race)} TO {CLERK}"
    )
    mark = 30
    temporary = """
        CREATE TEMP TABLE marks (resource text PRIMARY KEY, last_fence_token bigint, xid xid8, row_absent boolean);
        CREATE TEMP TABLE protected (relation regclass, name text, rule text, source text, functions text, scope text);
        CREATE TEMP TABLE floors (name text, floor bigint);
        CREATE TEMP TABLE tokens (last_value bigint, is_called boolean);
        CREATE TEMP TABLE orders (order_id text PRIMARY KEY, status text, n int, last_fence_token bigint);
        CREATE TEMP TABLE pg_roles (rolname name); CREATE TEMP TABLE pg_namespace (nspname name, nspowner oid);
        INSERT INTO orders VALUES ('k', 'temp', 0, 0)"""
    for path in (
        "evil, public", "evil, pg_catalog, public", "evil, fencepost, pg_catalog, public", "pg_temp, evil, public",
    ):  # fmt: skip
        fresh = await connect()
        await fresh.execute(f"SET SESSION AUTHORIZATION {CLERK}; {temporary}; SET search_path = {path}")
        mark = await assert_judged(race, fresh, mark)
        assert await fresh.fetchval("SELECT pg_catalog.count(*) FROM pg_temp.marks") == 0, path
        assert await fresh.fetchval("SELECT pg_catalog.count(*) FROM evil.marks") == 0, path
        await fresh.close()


async def test_a_token_of_an_earlier_generation_is_refused_wherever_operators_come_from(
    connect: Connect, unmade: Unmade
) -> None:
    race = await open_race(connect, unmade, source="builtin")
    await race.insert(race.a, "k", 30)
    await upkeep.raise_generation(race.observer, "test")
    await evil(race.observer)
    await race.c.execute("SET search_path = evil, pg_catalog, public")
    for statement, token in (
        (UPDATE, 40), (DELETE, 40), (UPSERT, 40), (COLUMN.format(40), None), (COLUMN.format(-40), None),
    ):  # fmt: skip
        assert await race.direct(race.c, statement, token) == "FP409", statement
    assert await race.live_mark("k") == 30


async def test_every_function_has_its_own_search_path(race: Race) -> None:
    """But these, whose parts are named in full: in a table's own two a SET clause would cost more than what they do,
    the event trigger's hands the session's search_path on, and one resets the session.
    """
    await protect(race.observer, "orders", rule="epoch")
    await race.observer.execute("CREATE TABLE items (id int PRIMARY KEY, account int NOT NULL)")
    await protect(race.observer, "items", scope="account/{account}")
    open_ = await race.observer.fetch("""
        SELECT p.proname FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
         WHERE p.pronamespace = 'fencepost'::regnamespace AND l.lanname IN ('plpgsql', 'sql') AND p.prosqlbody IS NULL
           AND NOT coalesce('search_path=pg_catalog, pg_temp' = ANY (p.proconfig), false) ORDER BY 1""")
    stem = race.fence.delete_function.removeprefix('fencepost."').removesuffix('_delete"')
    assert [row[0] for row in open_] == ["on_partitions", f"{stem}_delete", f"{stem}_upd", "restore_session"]


async def name_of(race: Race) -> str:
    return str(await race.observer.fetchval("SELECT quote_ident(current_database())"))


async def test_break_glass_is_not_fooled_either(race: Race, connect: Connect) -> None:
    await evil(race.observer)
    fresh = await connect()
    await fresh.execute(f"SET SESSION AUTHORIZATION {CLERK}; SET search_path = evil, pg_catalog, public")
    for path in ("evil, pg_catalog, public", "pg_temp, evil, public"):
        await fresh.execute(f"SET search_path = {path}")
        assert await run(fresh, UPDATE, glass=REASON) == "42501", path
        assert await run(fresh, DELETE, glass=REASON) == "42501", path
    await fresh.close()
    strict = await connect()
    await strict.execute("SET standard_conforming_strings = off")
    assert await run(strict, UPDATE, glass="\n\t  ab \n") == "FP400"
    assert await run(strict, UPDATE, glass="sss") == "ok", "letters are letters"


TYPED = """
CREATE TYPE public.mood AS ENUM ('so so', 'fine');
CREATE DOMAIN public.day AS date;
CREATE TABLE public.typed (
  d date, dd public.day, ts timestamp, tz timestamptz, n numeric, b bytea, u uuid, t text, c char(4), v varchar(9),
  o bool, i bigint, m public.mood, x int DEFAULT 0, PRIMARY KEY (d, dd, ts, tz, n, b, u, t, c, v, o, i, m))"""
VALUES = """
  (date '2024-02-03', date '2024-03-02', timestamp '2024-02-03 04:05:06.7', timestamptz '2024-02-03 04:05:06.7+00',
   1.50, decode('00ff5c27', 'hex'), '0189f0a0-1111-7000-8000-000000000001', E'a\\\\b''c',
   'ab', 'x y', true, -5, 'so so')"""


async def test_the_name_of_a_row_does_not_depend_on_the_session(connect: Connect) -> None:
    db = await owner(connect)
    await evil(db)
    await db.execute(TYPED)
    await protect(db, "typed")
    token = 100
    names = set()
    columns = "(d, dd, ts, tz, n, b, u, t, c, v, o, i, m)"
    insert = f"INSERT INTO public.typed {columns} VALUES {VALUES}"
    spellings = {
        "DateStyle": ["German, DMY", "SQL, MDY", "Postgres, DMY", "ISO, YMD"],
        "IntervalStyle": ["iso_8601", "sql_standard"], "TimeZone": ["Asia/Kolkata", "America/New_York", "UTC"],
        "bytea_output": ["escape", "hex"], "extra_float_digits": ["-15", "3"], "standard_conforming_strings": ["off"],
        "lc_numeric": ["C"], "lc_monetary": ["C"], "lc_time": ["C"], "client_encoding": ["LATIN1"],
        "quote_all_identifiers": ["on"], "search_path": ["", "evil, pg_catalog, public"],
    }  # fmt: skip
    for setting, values in {"application_name": ["x"], **spellings}.items():
        for value in values:
            fresh = await connect()
            await fresh.execute("SELECT pg_catalog.set_config($1, $2, false)", setting, value)
            token += 2
            at = f"SET fencepost.token = '{token}'"
            assert await outcome(fresh.execute(f"{at}; {insert}")) == "INSERT 0 1", (setting, value)
            names |= {row[0] for row in await db.fetch("SELECT resource FROM fencepost.marks")}
            await fresh.execute(f"SET fencepost.token = '{token + 1}'; DELETE FROM public.typed")
            assert await outcome(fresh.execute(f"SET fencepost.token = '{token}'; {insert}")) == "FP409"
            await fresh.execute("RESET fencepost.token")
            assert await db.fetchval("SELECT last_fence_token FROM fencepost.marks WHERE row_absent") == token + 1
            await fresh.close()
    assert names == {
        "typed/2024-02-03,2024-03-02,2024-02-03 04:05:06.7,2024-02-03 04:05:06.7+00,1.5,\\x00ff5c27,"
        "0189f0a0-1111-7000-8000-000000000001,a\\b'c,ab,x y,true,-5,so so"
    }
