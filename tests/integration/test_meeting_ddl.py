"""Requests that meet DDL, rows that are made meanwhile, and filters compared with Python."""

import json
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote_plus

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.filter_oracle import ORDERS, ROWS, THINGS, Leaf, Tree, ordered, trees
from tests.support.interleave import Connect, Connection, run_plan
from tests.support.postgres import Unmade
from tests.support.racing import Race, entered, meanwhile, mutate, open_race, scoped_race
from tests.support.use_cases import open_gateway

from fencepost.server.fence.problems import Problem
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.outcomes import Done, Outcome
from fencepost.server.gateway.use_cases import MOST_DOUBTS, on_table
from fencepost.server.http.query import parse_query
from fencepost.server.observe import events
from fencepost.server.ops.protect import plan_unprotect, protect, unprotect
from fencepost.server.ops.schema import settle_sql
from fencepost.server.postgres.catalog_cache import load
from fencepost.server.postgres.connection import Bound, compiled
from fencepost.server.postgres.errors import RefusedError
from fencepost.server.postgres.query import render_filters, render_order, render_select
from fencepost.server.postgres.tables import EVERYTHING, Table
from fencepost.server.serve import Configured
from fencepost.server.serve import open_gateway as serve_gateway
from fencepost.server.settings import Settings

# A request that failed because of DDL is run again, on the table as it is then, and a few times at most.


@pytest.fixture
async def race(connect: Connect, unmade: Unmade) -> Race:
    return await open_race(connect, unmade)


class Changing:
    """A request whose table gets a column each time that it runs; it needs all that are there at the end."""

    def __init__(self, race: Race, gateway: Gateway, times: int) -> None:
        self._race, self._gateway, self._times = race, gateway, times
        self.runs = 0

    async def use(self, table: Table) -> Outcome:
        self.runs += 1
        if self.runs <= self._times:
            await self._gateway.catalog.reload()  # as another request may have it: it is too old soon
            await self._race.observer.execute(f"ALTER TABLE public.orders ADD later_{self.runs} int")
            raise RefusedError(asyncpg.UndefinedColumnError("the table was changed"))
        assert f"later_{self._times}" in table.columns
        return Done(())


async def test_the_picture_is_from_after_the_failure(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        for times in range(1, MOST_DOUBTS + 1):
            request = Changing(race, gateway, times)
            assert isinstance(await on_table(gateway, "orders", "patch", request.use), Done)
            assert request.runs == times + 1
            for n in range(1, times + 1):
                await race.observer.execute(f"ALTER TABLE public.orders DROP later_{n}")


async def test_it_is_not_run_for_ever(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        request = Changing(race, gateway, 100)
        assert isinstance(await on_table(gateway, "orders", "patch", request.use), Problem)
        assert request.runs == MOST_DOUBTS + 1


async def test_a_look_that_finds_nothing_new_keeps_the_picture_and_is_no_news(race: Race) -> None:
    settings = Settings.model_validate({"database_url": race.dsn, "consume_here": False})
    found: list[events.Event] = []
    async with serve_gateway(settings, Configured(race.dsn), found.append) as gateway:
        catalog, before = gateway.catalog, gateway.catalog.current
        again = await catalog.reload()
        assert (again.version, again.tables is before.tables, again.begun > before.begun) == (
            before.version,
            True,
            True,
        )
        await race.observer.execute("ALTER TABLE public.orders ADD later int")
        assert (await catalog.reload()).version == before.version + 1
    changed = [event.changed for event in found if isinstance(event, events.CatalogLoaded)]
    assert (changed[:2], changed.count(True)) == ([True, False], 2)


# A key without a row is fenced by the floor of its table. So is a row that is made while nothing protects it.

UPDATE = "UPDATE {} SET n = n + 1 WHERE id = {}"


@pytest.fixture
async def items_race(connect: Connect, unmade: Unmade) -> Race:
    race = await open_race(connect, unmade, "strict")
    await race.observer.execute("SET search_path = public; CREATE TABLE t (id int PRIMARY KEY, n int DEFAULT 0)")
    await protect(race.observer, "t")
    return race


async def pruned(race: Race) -> None:
    """Row 1 has the mark 10, row 2 none; the mark of key 3 was 90, and is part of the floor 100."""
    assert await race.direct(race.a, "INSERT INTO t VALUES (1)", 10) == "ok"
    await race.observer.execute("BEGIN; SET LOCAL session_replication_role = replica; INSERT INTO t VALUES (2); COMMIT")
    assert await race.direct(race.a, "INSERT INTO t VALUES (3)", 80) == "ok"
    assert await race.direct(race.a, "DELETE FROM t WHERE id = 3", 90) == "ok"
    assert await race.observer.fetchval("SELECT fencepost.prune('t', 100)") == 1


async def refused_up_to_the_floor(race: Race, key: int, table: str = "t") -> None:
    assert await race.direct(race.a, UPDATE.format(table, key), 95) == "FP409"
    assert await race.direct(race.a, f"DELETE FROM {table} WHERE id = {key}", 100) == "FP409"
    assert await race.direct(race.a, UPDATE.format(table, key), 101) == "ok"


async def made_meanwhile(race: Race) -> None:
    await pruned(race)
    await meanwhile(race.observer, "t", "INSERT INTO t VALUES (3); INSERT INTO t (id, last_fence_token) VALUES (4, 7)")
    for key in (3, 4):
        await refused_up_to_the_floor(race, key)


async def was_there(race: Race) -> None:
    """The floor is not about rows that are there: of these the marks are known."""
    await pruned(race)
    await meanwhile(race.observer, "t", "DELETE FROM t WHERE id = 1; INSERT INTO t VALUES (1)")
    assert await race.direct(race.a, UPDATE.format("t", 1), 10) == "FP409"
    assert await race.direct(race.a, UPDATE.format("t", 1), 11) == "ok"


async def test_a_row_that_had_no_mark_takes_up_the_floor(items_race: Race) -> None:
    """Nothing was written down of it, so it may as well have been made meanwhile."""
    await pruned(items_race)
    await unprotect(items_race.observer, "t")
    await protect(items_race.observer, "t")
    await refused_up_to_the_floor(items_race, 2)


async def test_while_it_is_protected_no_row_takes_up_the_floor(items_race: Race) -> None:
    await pruned(items_race)
    await protect(items_race.observer, "t", rule="epoch")
    assert await items_race.direct(items_race.a, UPDATE.format("t", 2), 5) == "ok"


async def test_a_row_whose_key_had_left_a_scope_without_it(connect: Connect, unmade: Unmade) -> None:
    """Seen by the storm of DDL: nothing but the floor shows what the scope had accepted."""
    race = await scoped_race(connect, unmade, "strict")
    assert await entered(race, race.a, 200, "account/42") == {"account/42": None}
    await protect(race.observer, "items", scope="")
    await unprotect(race.observer, "items")
    await protect(race.observer, "items", source="builtin")
    await unprotect(race.observer, "items")
    await race.observer.execute("INSERT INTO items VALUES (9, 42)")
    await protect(race.observer, "items", rule="epoch", scope="")
    assert await race.direct(race.a, "DELETE FROM items WHERE id = 9", 199) == "FP409"
    assert await race.direct(race.a, "DELETE FROM items WHERE id = 9", 200) == "ok"


async def deleted_in_a_scope(race: Race) -> None:
    """Its own mark is older than what the scope accepted after it."""
    assert await race.direct(race.a, "INSERT INTO t VALUES (1)", 10) == "ok"
    await protect(race.observer, "t", scope="of/{id}")
    assert await race.direct(race.a, "DELETE FROM t", 50) == "ok"
    await protect(race.observer, "t", scope="")
    await meanwhile(race.observer, "t", "INSERT INTO t VALUES (1)")
    assert await race.direct(race.a, UPDATE.format("t", 1), 40) == "FP409"
    assert await race.direct(race.a, UPDATE.format("t", 1), 51) == "ok"


async def took_a_name_with_marks(race: Race) -> None:
    """Another table has left a mark of the same key under the name that this one takes."""
    await race.observer.execute("CREATE TABLE u (id int PRIMARY KEY, n int DEFAULT 0)")
    await protect(race.observer, "u")
    assert await race.direct(race.a, "INSERT INTO u VALUES (3)", 10) == "ok"
    await unprotect(race.observer, "u")
    await race.observer.execute("DROP TABLE u")
    assert await race.observer.fetchval("SELECT fencepost.prune('t', 100)") == 0
    await unprotect(race.observer, "t")
    await race.observer.execute("ALTER TABLE t RENAME TO u; INSERT INTO u VALUES (3)")
    await protect(race.observer, "u")
    await refused_up_to_the_floor(race, 3, "u")


async def replaced(race: Race) -> None:
    """Nothing has recorded the marks of the rows of a table that was dropped."""
    await pruned(race)
    await race.observer.execute("DROP TABLE t CASCADE; CREATE TABLE t (id int PRIMARY KEY, n int DEFAULT 0)")
    await race.observer.execute("INSERT INTO t VALUES (1), (3)")
    await protect(race.observer, "t")
    for key in (1, 3):
        await refused_up_to_the_floor(race, key)


async def renamed(race: Race) -> None:
    """The floor that another table has left is not for this one's rows; its own is."""
    await race.observer.execute("CREATE TABLE u (id int PRIMARY KEY, n int DEFAULT 0); INSERT INTO u VALUES (3)")
    await pruned(race)
    await meanwhile(
        race.observer, "t", "ALTER TABLE t RENAME TO v; ALTER TABLE u RENAME TO t; INSERT INTO v VALUES (3)"
    )
    await protect(race.observer, "v")
    assert await race.direct(race.a, UPDATE.format("t", 3), 5) == "ok"
    await refused_up_to_the_floor(race, 3, "v")


async def of_another_type(race: Race) -> None:
    assert await race.observer.fetchval("SELECT fencepost.prune('t', 100)") == 0
    await meanwhile(race.observer, "t", "INSERT INTO t VALUES (3); ALTER TABLE t ALTER id TYPE text")
    await refused_up_to_the_floor(race, key="'3'")  # type: ignore[arg-type]


async def of_another_order(race: Race) -> None:
    """What is not known by name any more is fenced up to the highest mark of a row that was there."""
    db = race.observer
    await db.execute("CREATE TABLE w (id int, b int, n int DEFAULT 0, PRIMARY KEY (id, b))")
    await protect(db, "w")
    assert await race.direct(race.a, "INSERT INTO w VALUES (3, 4)", 100) == "ok"
    await unprotect(db, "w")
    await db.execute("DELETE FROM w; ALTER TABLE w DROP CONSTRAINT w_pkey, ADD PRIMARY KEY (b, id)")
    await db.execute("INSERT INTO w VALUES (3, 4)")
    await protect(db, "w")
    await refused_up_to_the_floor(race, 3, "w")


ALL = (
    made_meanwhile,
    was_there,
    deleted_in_a_scope,
    took_a_name_with_marks,
    replaced,
    renamed,
    of_another_type,
    of_another_order,
)


@pytest.mark.parametrize("how", ALL, ids=lambda each: each.__name__)
async def test_a_row_that_was_made_meanwhile_takes_up_the_floor(
    items_race: Race, how: Callable[[Race], Awaitable[None]]
) -> None:
    await how(items_race)


async def test_the_table_s_triggers_find_their_names_while_marks_are_written(items_race: Race) -> None:
    await pruned(items_race)
    await meanwhile(
        items_race.observer,
        "t",
        "CREATE TABLE seen (id int); CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN INSERT INTO seen VALUES (NEW.id); RETURN NEW; END'; INSERT INTO t VALUES (3);"
        "CREATE TRIGGER note BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION note()",
    )
    assert await items_race.observer.fetchval("SELECT array_agg(id ORDER BY id) FROM seen") == [2, 3]


async def test_marks_that_a_policy_hides_are_not_overlooked(items_race: Race) -> None:
    """`unprotect` looks for such a policy first; here it comes after."""
    await pruned(items_race)
    db = items_race.observer
    await db.execute("CREATE ROLE hider; GRANT hider TO CURRENT_USER; GRANT ALL ON SCHEMA public TO hider")
    try:
        await db.execute("ALTER TABLE t OWNER TO hider; CREATE POLICY low ON t USING (id > 1)")
        await db.execute(settle_sql("hider"))
        await db.execute("SET ROLE hider")
        plan = await plan_unprotect(db, "t")
        await db.execute("ALTER TABLE t ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="row-level security"):
            await run_plan(db, plan)
    finally:
        await db.execute("RESET ROLE")
        await db.execute(settle_sql(await db.fetchval("SELECT current_user::text")))
        await db.execute("DROP OWNED BY hider CASCADE; DROP ROLE hider")


async def test_a_function_that_deletes_by_a_key_of_other_types_goes(items_race: Race) -> None:
    functions = "FROM pg_proc WHERE pronamespace = 'fencepost'::regnamespace AND proname ~ '^t_.*_delete$'"
    name = await items_race.observer.fetchval(f"SELECT proname {functions}")
    await items_race.observer.execute(f'CREATE FUNCTION fencepost."{name}"(text) RETURNS int LANGUAGE sql RETURN 1')
    await protect(items_race.observer, "t")
    assert await items_race.observer.fetchval(f"SELECT count(*) {functions}") == 1


async def test_the_mutant_that_trusts_another_table_s_mark_is_seen(items_race: Race) -> None:
    await mutate(
        items_race, "fencepost.copy_marks(text, text)", "SET row_absent = true WHERE", "SET row_absent = false WHERE"
    )
    with pytest.raises(AssertionError):
        await took_a_name_with_marks(items_race)


# What a query string selects, on real PostgreSQL, compared with the same filters evaluated in Python.


class Things:
    """The table, and the question that each test asks of it."""

    def __init__(self, connection: Connection, table: Table) -> None:
        self.connection = connection
        self.table = table

    async def rows(self, raw: str) -> list[dict[str, Any]]:
        query, bound = parse_query(raw.encode()), Bound()
        target = render_select(self.table, query.select, bound)
        where = render_filters(self.table, query.filters, bound)
        order = render_order(self.table, query.order, bound)
        by = f"{order}, r.id" if order else "r.id"
        sql = (
            f"SELECT row_to_json(x) FROM (SELECT {target} FROM {self.table.sql_name} r WHERE {where}"
            f" ORDER BY {by} LIMIT {'ALL' if query.limit is None else query.limit} OFFSET {query.offset}) x"
        )
        return [json.loads(row[0]) for row in await compiled(sql, bound.parameters).fetch(self.connection, None)]

    async def ids(self, raw: str) -> list[int]:
        return [row["id"] for row in await self.rows(raw)]


@pytest.fixture
async def things(connect: Connect) -> Things:
    connection = await connect()
    await connection.execute("SET search_path = public")  # else a user called fencepost creates in its own schema
    await connection.execute(THINGS)
    return Things(connection, (await load(connection, EVERYTHING, 1)).tables["things"])


@given(
    filters=st.lists(trees(), max_size=3),
    order=ORDERS,
    limit=st.none() | st.integers(0, 9),
    offset=st.none() | st.integers(0, 9),
)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_random_queries_select_what_the_oracle_selects(
    things: Things, filters: list[Leaf | Tree], order: list[tuple[str, str, str]], limit: int | None, offset: int | None
) -> None:
    pairs = [each.pair() if isinstance(each, Leaf) else ("and", f"({each.text()})") for each in filters]
    if order:
        pairs.append(("order", ",".join("".join(term) for term in order)))
    if limit is not None:
        pairs.append(("limit", str(limit)))
    if offset is not None:
        pairs.append(("offset", str(offset)))
    chosen = [row for row in ROWS if all(each.holds(row) is True for each in filters)]
    start = offset or 0
    expected = ordered(chosen, order)[start:][: len(ROWS) if limit is None else limit]
    raw = "&".join(f"{name}={quote_plus(value)}" for name, value in pairs)
    assert await things.ids(raw) == [row["id"] for row in expected]
