"""R14: how a row and a table are called changes no verdict, whatever the session has set."""

from tests.direct_sql.evil_schema import evil
from tests.support.interleave import Connect
from tests.support.racing import outcome, owner

from fencepost.storage.inspecting.ceilings import examine_marks
from fencepost.storage.protecting.protect import protect, unprotect

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
COLUMNS = "(d, dd, ts, tz, n, b, u, t, c, v, o, i, m)"
SPELLINGS = {
    "DateStyle": ["German, DMY", "SQL, MDY", "Postgres, DMY", "ISO, YMD"],
    "IntervalStyle": ["iso_8601", "sql_standard"],
    "TimeZone": ["Asia/Kolkata", "America/New_York", "UTC"],
    "bytea_output": ["escape", "hex"],
    "extra_float_digits": ["-15", "3"],
    "standard_conforming_strings": ["off"],
    "lc_numeric": ["C"],
    "lc_monetary": ["C"],
    "lc_time": ["C"],
    "client_encoding": ["LATIN1"],
    "quote_all_identifiers": ["on"],
    "search_path": ["", "evil, pg_catalog, public"],
}


async def test_the_name_of_a_row_does_not_depend_on_the_session(connect: Connect) -> None:
    db = await owner(connect)
    await evil(db)
    await db.execute(TYPED)
    await protect(db, "typed")
    token = 100
    names = set()
    insert = f"INSERT INTO public.typed {COLUMNS} VALUES {VALUES}"
    for setting, values in {"application_name": ["x"], **SPELLINGS}.items():
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


async def test_a_table_with_a_hostile_name_is_protected_by_it(connect: Connect) -> None:
    for number, name in enumerate(
        ('a"b', "a'b", "a\\b", "$fn$", "a;--", "x%s%L", "ä ö", "A" * 63, "marks", "=", "a=b", "new", "old")
    ):
        db = await owner(connect)
        quoted = '"' + name.replace('"', '""') + '"'
        await db.execute(f'CREATE TABLE {quoted} (k text PRIMARY KEY, "NEW" int, "token" int, "tab" int, "r" int)')
        await protect(db, name)
        for value in ("off", "on"):
            fresh = await connect()
            await fresh.execute(f"SET standard_conforming_strings = {value}; SET search_path = public")
            key = f"k{value}"
            for statement, token, expected in (
                (f"INSERT INTO {quoted} (k) VALUES ('{key}')", None, "FP428"),
                (f"INSERT INTO {quoted} (k) VALUES ('{key}')", 30, "INSERT 0 1"),
                (f'UPDATE {quoted} SET "NEW" = 1, token = 2', 29, "FP409"),
                (f"UPDATE {quoted} SET \"NEW\" = 1, token = 2, tab = 3, r = 4 WHERE k = '{key}'", 31, "UPDATE 1"),
                (f"DELETE FROM {quoted} WHERE k = '{key}'", 31, "FP409"),
                (f"DELETE FROM {quoted} WHERE k = '{key}'", 32, "DELETE 1"),
                (f"INSERT INTO {quoted} (k) VALUES ('{key}')", 32, "FP409"),
            ):
                await fresh.execute("SELECT set_config('fencepost.token', $1, false)", str(token or ""))
                assert await outcome(fresh.execute(statement)) == expected, (name, value, statement)
            await fresh.close()
        assert await db.fetchval("SELECT count(*) FROM fencepost.marks WHERE last_fence_token = 32") == 2 * (number + 1)
        await db.execute("SELECT set_config('fencepost.token', '33', false)")
        await db.execute(f"INSERT INTO {quoted} (k, r) VALUES ('left', 5)")
        assert await examine_marks(db) == []
        # All that reads the rows with their names: what leaves marks, takes them up, and meets them.
        await unprotect(db, name)
        assert await db.fetchval("SELECT count(*) FROM fencepost.marks WHERE last_fence_token = 33") == number + 1
        await protect(db, name)
        await protect(db, name, source="builtin")
        await db.close()
