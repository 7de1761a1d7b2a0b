"""R14: whatever SQL writes a row, and by whichever client, the same rule judges it.

Each statement is run without a token, below the mark and above it, and the plain ones at it, too; once
by a role that may just write to the table, under strict, and once by the table's owner, under epoch.
"""

from collections.abc import AsyncIterator

import pytest
from tests.direct_sql.drivers import CLERK, OWNER, Session, people, session
from tests.support.interleave import Connect
from tests.support.postgres import Unmade
from tests.support.racing import Race, open_race

pytestmark = pytest.mark.versions

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

UPDATES = {
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
DELETES = {
    "DELETE": "DELETE FROM public.orders WHERE order_id = 'k'",
    "DELETE USING": "DELETE FROM public.orders o USING public.source s WHERE s.id = o.order_id",
    "DELETE in a CTE": "WITH d AS (DELETE FROM public.orders RETURNING *) SELECT count(*) FROM d",
    "DELETE in a function": "SELECT * FROM public.put_away('k')",
    "MERGE DELETE": "MERGE INTO public.orders o USING public.source s ON s.id = o.order_id WHEN MATCHED THEN DELETE",
    "UPDATE, DELETE": "UPDATE public.orders SET n = 8; DELETE FROM public.orders",
}
DELETES_SINCE_17 = {
    "MERGE NOT MATCHED BY SOURCE": "MERGE INTO public.orders o USING public.source s ON s.id = o.order_id || '!'"
    " WHEN NOT MATCHED BY SOURCE THEN DELETE",
    "MERGE RETURNING": "WITH m AS (MERGE INTO public.orders o USING public.source s ON s.id = o.order_id"
    " WHEN MATCHED THEN DELETE RETURNING merge_action()) SELECT count(*) FROM m",
}
INSERTS = {
    "INSERT": "INSERT INTO public.orders (order_id) VALUES ('gone')",
    "INSERT of a mark of 0": "INSERT INTO public.orders (order_id, last_fence_token) VALUES ('gone', 0)",
    "INSERT of a mark of NULL": "INSERT INTO public.orders (order_id, last_fence_token) VALUES ('gone', NULL)",
    "INSERT SELECT": "INSERT INTO public.orders (order_id, n) SELECT id, n FROM public.source WHERE id = 'gone'",
    "INSERT in a CTE": "WITH i AS (INSERT INTO public.orders (order_id) VALUES ('gone') RETURNING n) SELECT n FROM i",
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


async def test_every_statement_is_judged_alike(race: Race) -> None:
    before = [("k", "new", 0, MARK)]
    equal = "FP409" if race.strict else "ok"
    cases = [(None, "FP428"), (MARK - 1, "FP409"), (MARK + 1, "ok")]
    plain = [(MARK, equal), (f"orders={MARK + 1}", "ok"), (f"source={MARK + 1}", "FP428"), ("0", "FP400")]
    newer = race.observer.get_server_version() >= (17,)
    deletes = DELETES | (DELETES_SINCE_17 if newer else {})
    async with session(race.dsn, CLERK if race.strict else OWNER) as sql:
        assert await sql.run("PREPARE prepared AS UPDATE public.orders SET n = 9") == "ok"
        for name, statement in {**UPDATES, **deletes, **INSERTS}.items():
            for token, expected in cases + (plain if name in ("UPDATE", "DELETE", "INSERT", "COPY") else []):
                await start_over(race)
                assert await written(sql, statement, token) == expected, (name, token)
                after = await state(race)
                assert (after != before) == (expected == "ok"), (name, token, after)
                if expected == "ok":
                    mark = MARK if token == MARK else MARK + 1
                    key = "gone" if name in INSERTS else "k"
                    rows = [row for row in after if row[0] == key]
                    assert [row[3] for row in rows] == ([] if name in deletes else [mark]), (name, token, after)
                    if name not in UPDATES:
                        assert await race.recorded(key) == (mark, name in deletes), (name, token)


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
