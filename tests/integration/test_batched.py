"""Rows that one batch writes: verdicts, shares of callers, tables, waiting, and the order of a batch's lines."""

import asyncio
import itertools
import json
import random
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest
from tests.support.asking import asked_by
from tests.support.gateways import in_process
from tests.support.interleave import Connect, connection_to
from tests.support.postgres import Unmade
from tests.support.racing import BOTH_RULES, ISSUED, Race, mark, open_race, scoped_race
from tests.support.use_cases import delete, gateway_pid, keyed, listed, once, open_gateway, patch, post, put, result_of

from fencepost.server.fence.problems import Problem
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.group_commit import GroupCommit
from fencepost.server.gateway.idempotency import Replayed
from fencepost.server.gateway.outcomes import Done, Outcome, Turns
from fencepost.server.ops.protect import protect
from fencepost.server.postgres import keyed as keyed_statements
from fencepost.server.postgres.catalog_cache import load
from fencepost.server.postgres.connection import Batch, Connection, FencedRow, WriteStatement
from fencepost.server.postgres.tables import EVERYTHING
from fencepost.testing.servers.processes import PATIENCE, eventually

# Six rows that one batch writes.

LOADED = """
CREATE TABLE public.customers (id int PRIMARY KEY);
INSERT INTO public.customers VALUES (1);
CREATE TABLE public.orders (
  order_id text PRIMARY KEY, status text NOT NULL DEFAULT 'new' CHECK (status <> 'bad'), n integer NOT NULL DEFAULT 0,
  number int UNIQUE, customer int REFERENCES public.customers DEFERRABLE INITIALLY DEFERRED)"""


@pytest.fixture
async def race(request: pytest.FixtureRequest, connect: Connect, unmade: Unmade) -> Race:
    race = await open_race(connect, unmade, getattr(request, "param", "strict"), ddl=LOADED)
    for key in ("a", "b", "c", "d", "e", "f"):
        await race.insert(race.a, key, 30)
    return race


# Requests that are sent at the same moment, so that they are one batch.


async def together(*works: Coroutine[Any, Any, Outcome]) -> list[str]:
    return [result_of(answer) for answer in await asyncio.gather(*works)]


# A caller whose writes wait for locked rows leaves turns, and places of those that wait, to others.

LOCK = "SELECT FROM orders WHERE order_id = $1 FOR UPDATE"
LONG = 4 * PATIENCE


def patches(gateway: Gateway, who: str, keys: Sequence[str], first: int = 40) -> list[asyncio.Task[Outcome]]:
    return [asked_by(who, patch(gateway, keyed(key, first + at, n=1))) for at, key in enumerate(keys)]


async def wait_for_turns(gateway: Gateway, many: int) -> None:
    async def so_many() -> bool:
        return gateway.turns.waiting.count == many

    await eventually(so_many, what=f"{many} writes whose rows are locked")


async def test_whose_writes_wait_for_a_row_leaves_room_for_others_to_wait(race: Race, connect: Connect) -> None:
    other = await connect()
    anns, bobs = race.a.transaction(), other.transaction()
    await anns.start()
    await bobs.start()
    await race.a.execute(LOCK, "a")
    await other.execute(LOCK, "b")
    async with open_gateway(race.dsn, pool_size=4, lock_timeout=LONG) as opened:
        gateway = replace(opened, turns=Turns(at_once=4, wait=LONG, most_waiting=4))
        asked = patches(gateway, "ann", "aaa")
        await wait_for_turns(gateway, 3)
        (late,) = patches(gateway, "ann", "a", first=50)
        refused = await asyncio.wait_for(late, PATIENCE)
        assert isinstance(refused, Problem)
        assert (refused.http_status, refused.retry_after) == (503, 1)
        assert "3 of ann already (three quarters of FENCEPOST_MAX_WAITING)" in refused.detail
        (bob,) = patches(gateway, "bob", "b")
        await wait_for_turns(gateway, 4)
        await bobs.commit()
        assert result_of(await asyncio.wait_for(bob, PATIENCE)) == "ok"
        assert not any(each.done() for each in asked)
        await anns.commit()
        await asyncio.gather(*asked)
        assert gateway.turns.waiting.count == len(gateway.turns) == 0


async def test_whose_writes_wait_for_rows_leaves_a_turn_to_others(race: Race, connect: Connect) -> None:
    """Also at a row that a write of the same caller would wait for if it had a turn."""
    other = await connect()
    anns, bobs = race.a.transaction(), other.transaction()
    await anns.start()
    await bobs.start()
    for key in "ab":
        await race.a.execute(LOCK, key)
    await other.execute(LOCK, "c")
    async with open_gateway(race.dsn, pool_size=4, lock_timeout=LONG) as opened:
        gateway = replace(opened, turns=Turns(at_once=2, wait=LONG))
        asked = patches(gateway, "ann", "a")
        await wait_for_turns(gateway, 1)
        asked += patches(gateway, "ann", "bc")
        await wait_for_turns(gateway, 3)
        (bob,) = patches(gateway, "bob", "c", first=50)
        await wait_for_turns(gateway, 4)
        await bobs.commit()
        assert result_of(await asyncio.wait_for(bob, PATIENCE)) == "ok"
        assert not any(each.done() for each in asked)
        await anns.commit()
        assert [result_of(each) for each in await asyncio.gather(*asked)] == ["ok", "ok", "FP001"]
        assert gateway.turns.waiting.count == len(gateway.turns) == 0


# Which tables' writes share transactions, and the statement that finds and locks their rows.

TRIGGER = """
CREATE TABLE public.totals (id int PRIMARY KEY, n int NOT NULL DEFAULT 0);
CREATE FUNCTION public.count_up() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM set_config('fencepost.token', NEW.last_fence_token::text, true);
  UPDATE public.totals SET n = n + 1 WHERE id = 1;
  RETURN NULL;
END $$;
CREATE TRIGGER count_up AFTER UPDATE ON public.orders FOR EACH ROW EXECUTE FUNCTION public.count_up();"""


async def test_a_table_whose_triggers_would_see_their_neighbours_shares_no_transaction(
    connect: Connect, unmade: Unmade
) -> None:
    race = await open_race(connect, unmade)
    for key in ("a", "b"):
        await race.insert(race.a, key, 30)
    await race.observer.execute(TRIGGER)
    await protect(race.observer, "totals")
    await race.direct(race.a, "INSERT INTO totals VALUES (1)", token=30)
    async with open_gateway(race.dsn) as gateway:
        # One of them writes the total with its token; for the other one the same token is spent.
        answers = await together(patch(gateway, keyed("a", 40)), patch(gateway, keyed("b", 40)))
    assert sorted(answers) == ["FP002", "ok"]
    assert await race.observer.fetchval("SELECT n FROM totals") == 1


async def test_batches_that_cannot_work_are_reported_once_and_change_no_verdict(race: Race) -> None:
    """As after an upgrade without `migrate --gateway-role`: 42501, or 42883 here."""
    await race.observer.execute("ALTER FUNCTION fencepost.idem_begin_each(text, text[], bytea[]) RENAME TO gone")
    seen: list[str] = []
    async with open_gateway(race.dsn) as opened:
        gateway = replace(opened, group=GroupCommit(opened.database, on_setup_error=seen.append))
        writes = (patch(gateway, replace(keyed(key, 40, status="x"), idempotency_key=once(key))) for key in "abcd")
        assert await together(*writes) == ["ok"] * 4
    assert len(seen) == 1
    assert "idem_begin_each" in seen[0]


TABLES = """
CREATE TABLE t_plain (id int PRIMARY KEY);
CREATE RULE gone AS ON UPDATE TO t_plain DO ALSO NOTHING;
DROP RULE gone ON t_plain;
CREATE TABLE t_parent (id int PRIMARY KEY);
CREATE TABLE t_child (id int PRIMARY KEY, parent int REFERENCES t_parent ON DELETE CASCADE);
CREATE TABLE t_triggered (id int PRIMARY KEY);
CREATE TRIGGER mine BEFORE UPDATE ON t_triggered FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger();
CREATE TABLE t_secured (id int PRIMARY KEY);
ALTER TABLE t_secured ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON t_secured USING (current_setting('a.b', true) = CURRENT_USER AND now() > '1970-01-01');
CREATE TABLE t_ruled (id int PRIMARY KEY);
CREATE RULE mine AS ON UPDATE TO t_ruled DO ALSO NOTHING;
CREATE TABLE t_deferred (id int PRIMARY KEY, n int UNIQUE DEFERRABLE);
CREATE TABLE t_renamed (id int PRIMARY KEY, code text UNIQUE);
CREATE TABLE t_follows (id int PRIMARY KEY, code text REFERENCES t_renamed (code) ON UPDATE CASCADE);
CREATE TABLE t_made (id int PRIMARY KEY, n int, twice int GENERATED ALWAYS AS (n * 2) STORED UNIQUE);
CREATE TABLE t_follows_made (id int PRIMARY KEY, twice int REFERENCES t_made (twice) ON UPDATE CASCADE);
CREATE FUNCTION next_no() RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE TABLE t_numbered (id int PRIMARY KEY, no int DEFAULT next_no());
CREATE TABLE t_serial (id int GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, at timestamptz DEFAULT clock_timestamp());
CREATE TABLE t_parts (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE t_part PARTITION OF t_parts DEFAULT"""


async def test_which_tables_share_transactions(connect: Connect) -> None:
    observer = await connect()
    await observer.execute("SET search_path = public")
    await observer.execute(TABLES)
    sees = ["id IN (SELECT id FROM t_plain)", "id < pg_relation_size('t_plain')", "xmin <> '5'", "(id, 1) < (2, 0)"]
    if observer.get_server_version() >= (17,):
        sees.append("JSON_VALUE('{}', '$.a' RETURNING int) = id")
    for n, each in enumerate(sees):
        ruled = f"FOR UPDATE USING (id > 0) WITH CHECK ({each})" if n else f"USING ({each})"
        await observer.execute(f"CREATE TABLE t_sees_{n} (id int PRIMARY KEY); CREATE POLICY p ON t_sees_{n} {ruled}")
        await observer.execute(f"ALTER TABLE t_sees_{n} ENABLE ROW LEVEL SECURITY")
    tables = {name: t for name, t in (await load(observer, EVERYTHING, 1)).tables.items() if name.startswith("t_")}
    alone = {"t_ruled", "t_deferred", "t_numbered", *(f"t_sees_{n}" for n in range(len(sees)))}
    assert {name for name, t in tables.items() if not t.shares_transactions} == alone
    assert {name for name, t in tables.items() if t.deletes_reach_further} == {"t_parent"}
    assert {name: t.updates_reach_further for name, t in tables.items() if t.updates_reach_further} == {
        "t_renamed": {"code"},
        "t_made": {"id", "n", "twice"},
    }
    await protect(observer, "t_plain")
    await observer.execute(
        "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;"
        "CREATE TRIGGER mine AFTER INSERT ON t_part FOR EACH ROW EXECUTE FUNCTION nothing()"
    )
    tables = dict((await load(observer, EVERYTHING, 1)).tables)
    assert tables["t_plain"].shares_transactions, "our own triggers are none of the user's"
    assert not tables["t_parts"].shares_transactions, "a partition's trigger is one, too"


async def test_a_function_whose_comment_is_no_text_stops_no_catalog(connect: Connect) -> None:
    """A database without encoding (SQL_ASCII), in which a body may have any bytes."""
    observer = await connect()
    await observer.execute("UPDATE pg_database SET encoding = 0 WHERE datname = current_database()")
    latin = await connect()
    await latin.execute(
        "CREATE TABLE public.t (id int PRIMARY KEY, n int); DO $do$ BEGIN EXECUTE"
        " 'CREATE FUNCTION public.f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.n := 1; -- '"
        " || E'\\xe9\\n RETURN NEW; END $$'; END $do$;"
        "CREATE TRIGGER m BEFORE UPDATE ON public.t FOR EACH ROW EXECUTE FUNCTION public.f()"
    )
    assert (await load(latin, EVERYTHING, 1)).tables["t"].shares_transactions


async def test_a_batch_finds_its_row_by_the_key_and_locks_it_before_it_looks(race: Race) -> None:
    statement = keyed_statements.update(race.table, race.change({"status": "x"}), "skip")
    await race.observer.execute("SET enable_seqscan = off; SET plan_cache_mode = force_generic_plan")
    await race.observer.execute(f"PREPARE u AS {statement.sql}")
    rows = await race.observer.fetch("""EXPLAIN (COSTS off) EXECUTE u('a', 40, '{"status": "x"}', 0)""")
    plan = "\n".join(row[0] for row in rows)
    assert plan.count("Index Scan using orders_pkey") == 2, plan
    assert "One-Time Filter" in plan, plan
    assert "LockRows" in plan, plan
    statement = keyed_statements.delete(race.table, race.change(), "skip")
    await race.observer.execute(f"PREPARE d AS {statement.sql}")
    plan = "\n".join(row[0] for row in await race.observer.fetch("EXPLAIN (COSTS off) EXECUTE d('a', 40, 0)"))
    assert "One-Time Filter" in plan, plan
    assert "LockRows" in plan, plan


# Writes that share a transaction get the verdicts that they would get one after the other (group commit).
# `together` sends them at the same moment, so that they are one batch; that it was one is seen by their rows' xmin.


@BOTH_RULES
async def test_a_row_several_times_is_judged_one_after_the_other(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        tokens = (33, 35, 34, 36, 36)
        answers = await together(*(patch(gateway, keyed("a", t, status=f"by {t}")) for t in tokens))
    assert answers == ["ok", "ok", "FP001", "ok", "FP002" if race.strict else "ok"]
    row = await race.row("a") or {}
    assert (row["last_fence_token"], row["status"]) == (36, "by 36")


@BOTH_RULES
async def test_all_verbs_in_one_moment(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        answers = await together(
            patch(gateway, keyed("a", 40, status="x")),
            patch(gateway, keyed("b", 40, status="x")),
            patch(gateway, keyed("gone", 40, status="x")),
            put(gateway, keyed("c", 40, status="x")),
            put(gateway, keyed("new", 40, status="x")),
            delete(gateway, keyed("d", 40)),
            delete(gateway, keyed("e", 29)),
            post(gateway, listed(40, {"order_id": "p", "n": 1})),
            post(gateway, listed(40, {"order_id": "q", "n": 1})),
            post(gateway, listed(40, {"order_id": "a", "n": 1})),
        )
    assert answers[:5] == ["ok", "ok", "FP006", "ok", "created"]
    assert answers[5:] == ["ok", "FP001", "created", "created", "FP002" if race.strict else "23505"]
    assert (await race.live_mark("d"), await race.recorded("d")) == (None, (40, True))
    assert [await race.live_mark(key) for key in ("a", "b", "c", "new", "p", "q")] == [40] * 6
    xmins = await race.observer.fetch("SELECT xmin::text FROM orders WHERE order_id IN ('a', 'b')")
    assert len(set(xmins)) == 1, "they did not share a transaction: this test proves nothing"


async def test_a_neighbours_fault_changes_no_verdict(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        assert await together(
            patch(gateway, keyed("a", 41, status="ok")),
            patch(gateway, keyed("b", 41, status="bad")),  # a CHECK
            patch(gateway, keyed("c", 41, status=None)),  # NOT NULL
            patch(gateway, keyed("d", 29, status="late")),
            patch(gateway, keyed("e", 41, status="ok")),
        ) == ["ok", "23514", "23502", "FP001", "ok"]
        first, *others, second = await together(
            patch(gateway, keyed("a", 42, number=1)),
            patch(gateway, keyed("b", 42, number="one")),  # no integer
            patch(gateway, keyed("d", 42, number=2)),
            patch(gateway, keyed("c", 42, number=1)),  # only one of them can have it
        )
        assert others == ["22P02", "ok"]
        assert sorted((first, second)) == ["23505", "ok"]
        assert await together(
            patch(gateway, keyed("e", 43, customer=1)),
            patch(gateway, keyed("f", 43, customer=2)),  # there is none, and that is found at COMMIT
        ) == ["ok", "23503"]
    assert [await race.live_mark(key) for key in "bdef"] == [30, 42, 43, 30]


async def test_a_row_that_cannot_be_created_leaves_its_neighbours_what_they_are(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        assert await together(
            put(gateway, keyed("a", 40, status="x")),
            put(gateway, keyed("new", 40, status="bad")),
            put(gateway, keyed("b", 40, status="x")),
            put(gateway, keyed("new too", 40, status="x")),
        ) == ["ok", "23514", "ok", "created"]


async def test_a_connection_that_breaks_under_a_put_that_creates_leaves_nothing_behind(
    race: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are written by themselves then, and see nothing of what the batch had done."""
    run = WriteStatement.run

    async def broken(statement: WriteStatement, connection: Connection, batch: Batch) -> list[FencedRow | None]:
        rows = await run(statement, connection, batch)
        if statement.sql.startswith("INSERT"):
            await connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        return rows

    monkeypatch.setattr(WriteStatement, "run", broken)
    async with open_gateway(race.dsn) as gateway:
        puts = (put(gateway, keyed("c", 40, status="x")), put(gateway, keyed("new", 40, status="x")))
        assert await together(*puts) == ["ok", "created"]
    assert [await race.live_mark(key) for key in ("c", "new")] == [40, 40]


async def test_what_was_written_is_reported_even_if_the_others_cannot_be_asked_about(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        await race.observer.execute("ALTER FUNCTION fencepost.mark_without_row(text, text) RENAME TO gone")
        assert await together(
            patch(gateway, keyed("a", 40, status="x")), patch(gateway, keyed("b", 29, status="x"))
        ) == ["ok", "42883"]
        assert await race.live_mark("a") == 40


async def test_a_deleted_keys_mark_refuses_one_and_not_its_neighbours(race: Race) -> None:
    await race.delete(race.a, "a", 50)
    async with open_gateway(race.dsn) as gateway:
        assert await together(
            post(gateway, listed(49, {"order_id": "a"})),
            post(gateway, listed(49, {"order_id": "x"})),
            post(gateway, listed(49, {"order_id": "y"})),
        ) == ["FP001", "created", "created"]
        assert await together(
            put(gateway, keyed("a", 49)), put(gateway, keyed("b", 49)), put(gateway, keyed("z", 49))
        ) == ["FP001", "ok", "created"]
    assert await race.live_mark("a") is None


async def test_an_unissued_token_is_no_neighbours_matter(connect: Connect, unmade: Unmade) -> None:
    race = await open_race(connect, unmade, source="builtin")
    for key in ("a", "b"):
        await race.insert(race.a, key, 30)
    async with open_gateway(race.dsn) as gateway:
        assert await together(
            patch(gateway, keyed("a", 31)),
            patch(gateway, keyed("b", ISSUED + 1)),
            patch(gateway, keyed("no", ISSUED + 1)),
        ) == ["ok", "FP018", "FP018"]


# A write that waits for a row, or for its turn, keeps none of its neighbours waiting.

WAITING = """
SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"""


@asynccontextmanager
async def held(race: Race, key: str, mark: int | None = None) -> AsyncIterator[None]:
    """Lock a row in another transaction; `mark` is what it leaves."""
    transaction = await race.begin(race.a)
    if mark is None:
        await race.a.execute("SELECT FROM orders WHERE order_id = $1 FOR UPDATE", key)
    else:
        await race.update(race.a, key, mark)
    try:
        yield
    finally:
        await transaction.commit()


@pytest.mark.parametrize(("mark", "expected"), [(None, "ok"), (35, "ok"), (50, "FP001")])
async def test_a_held_row_keeps_no_other_waiting(race: Race, mark: int | None, expected: str) -> None:
    async with open_gateway(race.dsn) as gateway:
        async with held(race, "a", mark):
            waiter = await race.waits_at(await gateway_pid(gateway), patch(gateway, keyed("a", 40, status="x")))
            assert await together(
                patch(gateway, keyed("b", 40)), put(gateway, keyed("c", 40)), delete(gateway, keyed("d", 40)),
                patch(gateway, keyed("e", 29)),
            ) == ["ok", "ok", "ok", "FP001"]  # fmt: skip
            assert not waiter.done()
        assert result_of(await waiter) == expected


async def test_those_who_wait_for_a_held_row_leave_connections_to_others(race: Race) -> None:
    async with open_gateway(race.dsn, pool_size=2) as gateway:
        async with held(race, "a"):
            works = [asyncio.create_task(patch(gateway, keyed("a", token, n=token))) for token in range(40, 50)]

            async def one_waits() -> bool:
                waiting = await race.observer.fetchval(WAITING)
                return bool(waiting == 1 and len(gateway.turns) == 1)

            await eventually(one_waits, what="one of them waits in PostgreSQL")
            async with gateway.database.connection() as connection:
                assert await connection.fetchval("SELECT 1") == 1
        answers = [result_of(answer) for answer in await asyncio.gather(*works)]
    assert set(answers) <= {"ok", "FP001"}
    assert "ok" in answers
    assert await race.live_mark("a") == 49


async def test_who_is_refused_does_not_wait_for_those_who_wait_for_others(race: Race) -> None:
    holder = await race.begin(race.a)
    await race.a.execute("SELECT FROM orders WHERE order_id IN ('a', 'b') FOR UPDATE")
    async with open_gateway(race.dsn, pool_size=3) as gateway:
        few = replace(gateway, turns=Turns(at_once=2, wait=30, most_waiting=4))
        waiting = [asyncio.create_task(patch(few, keyed(key, 40, n=1))) for key in "ab"]

        async def both_wait() -> bool:
            return bool(await race.observer.fetchval(WAITING) == 2)

        await eventually(both_wait, what="there is no room for a third")
        assert result_of(await asyncio.wait_for(patch(few, keyed("c", 40, status="bad")), PATIENCE)) == "23514"
        third = asyncio.create_task(patch(few, keyed("a", 41, n=1)))

        async def it_waits() -> bool:
            return few.turns.waiting.count == 3

        await eventually(it_waits, what="a third waits for its turn")
        crowded = await patch(few, keyed("a", 42, n=1))
        assert isinstance(crowded, Problem)
        assert (crowded.http_status, crowded.retry_after) == (503, 1)
        await holder.commit()
        assert [result_of(answer) for answer in await asyncio.gather(*waiting, third)] == ["ok", "ok", "ok"]


async def test_a_turn_that_does_not_come_is_reported_in_time(race: Race) -> None:
    async with open_gateway(race.dsn, lock_timeout=3) as gateway, held(race, "a"):
        first = await race.waits_at(await gateway_pid(gateway), patch(gateway, keyed("a", 40)))
        second = await patch(gateway, keyed("a", 41))
        assert isinstance(second, Problem)
        assert (second.name, second.http_status) == ("55P03", 503)
        assert result_of(await first) == "55P03"
    assert await race.live_mark("a") == 30


async def test_a_row_that_is_free_is_written_though_the_turn_did_not_come(race: Race) -> None:
    asked, over = asyncio.Event(), asyncio.Event()

    class Late(Turns):
        @asynccontextmanager
        async def of(self, row: object) -> AsyncIterator[bool]:  # noqa: ARG002 - others wait for theirs
            asked.set()
            await over.wait()
            yield False

    async with open_gateway(race.dsn) as gateway:
        async with held(race, "a"):
            write = asyncio.create_task(patch(replace(gateway, turns=Late(at_once=1, wait=1)), keyed("a", 40)))
            await asked.wait()
        over.set()
        assert result_of(await write) == "ok"
    assert await race.live_mark("a") == 40


async def test_a_unique_entry_that_is_locked_stalls_no_other_write(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        holder = await race.begin(race.a)
        await race.insert(race.a, "x", 31)
        waiter = await race.waits_at(await gateway_pid(gateway), post(gateway, listed(40, {"order_id": "x"})))
        assert await together(*(post(gateway, listed(40, {"order_id": key})) for key in ("v", "w"))) == ["created"] * 2
        await holder.rollback()
        assert result_of(await waiter) == "created"


async def test_one_key_twice_in_a_moment_lands_once(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        request = replace(keyed("a", 40, n=1), idempotency_key=once())
        answers = await asyncio.gather(
            patch(gateway, request), patch(gateway, replace(keyed("a", 41, n=2), idempotency_key=once())),
            patch(gateway, replace(keyed("b", 40, n=1), idempotency_key=once("k2"))),
            patch(gateway, replace(keyed("c", 29, n=1), idempotency_key=once("k3"))),
            patch(gateway, replace(keyed("d", 40, status="bad", n=1), idempotency_key=once("k4"))),
        )  # fmt: skip
        assert [result_of(each) for each in answers] == ["ok", "ok", "ok", "FP001", "23514"]
        assert [isinstance(each, Replayed) for each in answers[:3]] == [False, True, False]
        assert (
            result_of(await patch(gateway, replace(keyed("a", 42, n=3), idempotency_key=once(payload=b"other"))))
            == "FP014"
        )
        assert isinstance(await patch(gateway, replace(keyed("a", 42), idempotency_key=once("k2"))), Problem | Replayed)
        assert result_of(await patch(gateway, replace(keyed("c", 40, n=1), idempotency_key=once("k3")))) == "ok", (
            "a refusal is no record"
        )
    row = await race.row("a") or {}
    assert (row["n"], row["last_fence_token"]) == (1, 40)
    assert await race.observer.fetchval("SELECT count(*) FROM fencepost.idempotency") == 3


async def test_a_key_whose_write_waits_is_in_flight_at_once(race: Race) -> None:
    async with open_gateway(race.dsn, pool_size=2) as gateway:
        async with held(race, "a"):
            first = asyncio.create_task(patch(gateway, replace(keyed("a", 40, n=1), idempotency_key=once())))

            async def waits() -> bool:
                return bool(await race.observer.fetchval(WAITING) == 1)

            await eventually(waits, what="the first one waits for the row")
            again = asyncio.wait_for(patch(gateway, replace(keyed("a", 40, n=1), idempotency_key=once())), PATIENCE)
            assert result_of(await again) == "FP013", "it must not wait for its turn"
        assert result_of(await first) == "ok"


async def test_a_key_in_flight_elsewhere_is_answered_and_delays_no_other(race: Race) -> None:
    holder = await race.begin(race.b)
    await race.b.execute("SELECT fencepost.idem_begin('', 'k1', 'payload')")
    async with open_gateway(race.dsn) as gateway:
        assert await together(
            patch(gateway, replace(keyed("a", 40, n=1), idempotency_key=once())),
            patch(gateway, replace(keyed("b", 40, n=1), idempotency_key=once("k2"))),
        ) == ["FP013", "ok"]
    await holder.rollback()


async def test_two_gateways_on_the_same_rows_never_wait_in_a_circle(race: Race) -> None:
    keys, draws = "abcdef", random.Random(5)
    tokens = itertools.count(100)

    def one(gateway: Gateway) -> Coroutine[Any, Any, Outcome]:
        verb, key, token = draws.choice((patch, patch, put, delete)), draws.choice(keys), next(tokens)
        if draws.random() < 0.2:
            return post(gateway, listed(token, {"order_id": key, "n": 1}))
        return verb(gateway, keyed(key, token, n=token))

    async with open_gateway(race.dsn, pool_size=5) as first, open_gateway(race.dsn, pool_size=5) as second:
        for _ in range(25):
            answers = await asyncio.gather(*(one(gateway) for gateway in (first, second) for _ in range(16)))
            assert {result_of(answer) for answer in answers} <= {"ok", "created", "FP001", "FP006", "23505"}
        assert first.group.waiting == second.group.waiting == len(first.turns) == len(second.turns) == 0
    # Statistics are reported when a backend ends, at the latest.
    deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    assert await race.observer.fetchval(deadlocks) == 0
    marks = await race.observer.fetch("SELECT order_id, n, last_fence_token FROM orders WHERE n > 1")
    assert all(row["n"] == row["last_fence_token"] for row in marks), "the last accepted write is the one that stays"


# The order of a batch's lines where it is not that of one row: foreign keys, scopes, triggers, queues.

SQL = """
CREATE TABLE public.parents (id int PRIMARY KEY, note text);
CREATE TABLE public.children (id int PRIMARY KEY, parent int REFERENCES public.parents);
CREATE TABLE public.tree (id int PRIMARY KEY, above int REFERENCES public.tree, note text);
CREATE TABLE public.entries (id int PRIMARY KEY, account int NOT NULL, note text);
CREATE TABLE public.accounts (account int, id int, note text, PRIMARY KEY (account, id));
CREATE TABLE public.cards (id int PRIMARY KEY, account int, owner int,
  FOREIGN KEY (account, owner) REFERENCES public.accounts);
CREATE TABLE public.traced (id int PRIMARY KEY, last int);
CREATE TABLE public.late (id int PRIMARY KEY, parent int REFERENCES public.parents DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE public.queued (id int PRIMARY KEY, note text);
CREATE FUNCTION public.trace() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  NEW.last := (SELECT count(*) FROM public.traced); RETURN NEW; END $$;
CREATE TRIGGER trace BEFORE INSERT ON public.traced FOR EACH ROW EXECUTE FUNCTION public.trace();
"""
MANY = 40


@pytest.fixture
async def http(database: str) -> AsyncIterator[httpx.AsyncClient]:
    async with connection_to(database) as connection:
        await connection.execute(SQL)
        for table in ("parents", "children", "tree", "traced", "cards", "late"):
            await protect(connection, table)
        for table in ("accounts", "entries"):
            await protect(connection, table, scope="account/{account}")
        await protect(connection, "queued", queue="postgres:default")
    async with in_process(database) as client:
        yield client


async def batch(http: httpx.AsyncClient, lines: list[dict[str, Any]], query: str = "") -> list[dict[str, Any]]:
    body = "".join(json.dumps(line) + "\n" for line in lines)
    answer = await http.post(f"/v1/batch{query}", content=body, headers={"Content-Type": "application/x-ndjson"})
    return [json.loads(line) for line in answer.text.splitlines()]


def post_lines(table: str, token: int | None, **row: object) -> dict[str, Any]:
    return {"method": "POST", "path": table, "body": row} | ({} if token is None else {"token": token})


async def test_a_row_follows_the_rows_that_it_refers_to(http: httpx.AsyncClient) -> None:
    # Statements of other columns are in other batches: without the order, they are beside each other.
    lines = [post_lines("tree", 1, id=0)]
    for each in range(1, MANY):
        lines += [
            post_lines("tree", 1, id=-each, above=1 - each, **({"note": "x"} if each % 2 else {})),
            post_lines("parents", 1, id=each),
            post_lines("children", 1, id=-each, parent=each),
            {"method": "DELETE", "path": f"children/{-each}", "token": 2},
            {"method": "DELETE", "path": f"parents/{each}", "token": 2},
        ]
    statuses = [verdict["status"] for verdict in await batch(http, lines)]
    assert statuses == [201] + [201, 201, 201, 204, 204] * (MANY - 1)


async def test_the_lines_of_a_scope_keep_their_order_over_rows_and_tables(http: httpx.AsyncClient) -> None:
    lines: list[dict[str, Any]] = []
    for token in range(1, 5 * MANY, 5):
        lines += [
            post_lines("accounts", token, account=7, id=-token),
            post_lines("entries", token + 1, id=-token, account=7),
            {"claim": "account/7", "token": token + 2},
            {"method": "PATCH", "path": f"accounts/7,{-token}", "token": token + 3, "body": {"note": "a"}},
            {"method": "PATCH", "path": f"entries/{-token}", "token": token + 4, "body": {"note": "b"}},
        ]
    statuses = [verdict["status"] for verdict in await batch(http, lines)]
    assert statuses == [201, 201, 200, 200, 200] * MANY


async def test_what_refers_to_a_table_with_a_scope_follows_it(http: httpx.AsyncClient) -> None:
    lines: list[dict[str, Any]] = []
    for each in range(1, MANY):
        lines += [
            post_lines("accounts", each, account=7, id=each),
            post_lines("cards", 1, id=each, account=7, owner=each),
        ]
    assert [verdict["status"] for verdict in await batch(http, lines)] == [201] * len(lines)


async def test_where_others_code_runs_all_lines_of_the_table_are_in_order(http: httpx.AsyncClient) -> None:
    verdicts = await batch(http, [post_lines("traced", 1, id=MANY - each) for each in range(MANY)])
    assert [verdict["body"][0]["last"] for verdict in verdicts] == list(range(MANY))


async def test_a_table_with_a_queue_takes_its_lines_there(http: httpx.AsyncClient) -> None:
    lines = [
        post_lines("queued", None, id=1, note="a"),
        post_lines("queued", None, note="no key"),
        post_lines("queued", 5, id=2),
    ]
    queued, keyless, tokened = await batch(http, lines)
    assert (queued["status"], keyless["status"], tokened["status"]) == (202, 400, 400)
    done = await http.get(f"{queued['location']}?wait=30")
    assert done.json()["state"] == "applied"


async def test_lines_that_land_as_a_whole_may_share_the_token_of_a_scope(http: httpx.AsyncClient) -> None:
    rows = [
        post_lines("accounts", 7, account=7, id=1),
        post_lines("entries", 7, id=1, account=7),
        {"claim": "account/7", "token": 7},
    ]
    assert [verdict["status"] for verdict in await batch(http, rows, "?atomic=true")] == [201, 201, 200]
    (older,) = await batch(
        http, [post_lines("entries", 8, id=2, account=7), post_lines("entries", 7, id=3, account=7)], "?atomic=true"
    )
    assert (older["code"], older["line"]) == ("FP001", 2)
    (child,) = await batch(http, [post_lines("late", 1, id=1, parent=9)], "?atomic=true")
    assert (child["code"], "line" in child) == ("23503", False), "it is checked at COMMIT"
    metrics = (await http.get("/metrics")).text
    assert 'fencepost_operations_total{table="",verb="batch",verdict="23503"} 1.0' in metrics
    (queued,) = await batch(http, [post_lines("parents", 1, id=1), post_lines("queued", None, id=1)], "?atomic=true")
    assert (queued["status"], queued["line"], "queue" in queued["detail"]) == (400, 2, True)
    assert (await http.get("/v1/data/parents")).json() == []


# Scoped writes that share a transaction (R8): one that has entered a scope must not let a neighbour in with it.


@pytest.fixture
async def scoped_batch(request: pytest.FixtureRequest, connect: Connect, unmade: Unmade) -> Race:
    return await scoped_race(connect, unmade, getattr(request, "param", "strict"))


def change(key: str, token: int, **values: object) -> Any:
    return keyed(key, token, table="items", **values)


@pytest.mark.parametrize("scoped_batch", ["strict", "epoch"], indirect=True)
async def test_one_token_opens_a_scope_to_one_operation(scoped_batch: Race) -> None:
    async with open_gateway(scoped_batch.dsn) as gateway:
        # 1 and 2 are rows of account 42, 3 is of account 7.
        answers = await together(
            patch(gateway, change("1", 40, n=1)),
            patch(gateway, change("2", 40, n=1)),
            patch(gateway, change("3", 40, n=1)),
        )
    assert sorted(answers) == (["FP002", "ok", "ok"] if scoped_batch.strict else ["ok", "ok", "ok"])
    assert answers[2] == "ok"
    written = await scoped_batch.observer.fetchval("SELECT sum(n) FROM items")
    assert written == (2 if scoped_batch.strict else 3)
    assert await mark(scoped_batch) == await mark(scoped_batch, "account/7") == 40


async def test_writes_of_many_scopes_share_a_transaction(scoped_batch: Race) -> None:
    async with open_gateway(scoped_batch.dsn) as gateway:
        answers = await asyncio.gather(patch(gateway, change("1", 40, n=1)), patch(gateway, change("3", 41, n=1)))
    assert [(a.mark, a.scope) for a in answers if isinstance(a, Done)] == [(40, "account/42"), (41, "account/7")]
    assert await scoped_batch.observer.fetchval("SELECT count(DISTINCT xmin::text) FROM items WHERE n = 1") == 1


async def test_all_verbs(scoped_batch: Race) -> None:
    async with open_gateway(scoped_batch.dsn) as gateway:
        assert await together(
            patch(gateway, change("1", 40, n=1)),
            delete(gateway, change("3", 40)),
            put(gateway, change("8", 40, account_id=8, n=1)),
            put(gateway, change("9", 40, account_id=9, n=1)),
            post(gateway, listed(40, {"id": 10, "account_id": 10}, table="items")),
            post(gateway, listed(40, {"id": 11, "account_id": 11}, table="items")),
            patch(gateway, change("404", 40, n=1)),
            post(gateway, listed(40, {"id": 12, "account_id": None}, table="items")),
            post(gateway, listed(40, {"id": 2, "account_id": 2}, table="items")),
            put(gateway, change("2", 40, account_id=5, n=1)),
        ) == ["ok", "ok", "created", "created", "created", "created", "FP006", "FP016", "23505", "FP016"]
    assert await mark(scoped_batch, "account/5") is None, "the row is in another scope: its mark stays what it was"
    assert await mark(scoped_batch, "account/2") is None
    assert await mark(scoped_batch, "account/8") == 40


async def test_a_neighbours_fault_raises_no_mark(scoped_batch: Race) -> None:
    await scoped_batch.observer.execute("ALTER TABLE items ADD CONSTRAINT small CHECK (n < 100)")
    async with open_gateway(scoped_batch.dsn) as gateway:
        assert await together(patch(gateway, change("1", 40, n=100)), patch(gateway, change("3", 40, n=1))) == [
            "23514",
            "ok",
        ]
    assert await mark(scoped_batch) is None
    assert await mark(scoped_batch, "account/7") == 40


async def test_a_held_scope_keeps_no_other_waiting(scoped_batch: Race) -> None:
    async with open_gateway(scoped_batch.dsn) as gateway:
        holder = await scoped_batch.begin(scoped_batch.a)
        await scoped_batch.a.execute("SELECT fencepost.enter('account', ARRAY['account/42'], 50)")
        waiter = await scoped_batch.waits_at(await gateway_pid(gateway), patch(gateway, change("1", 40, n=1)))
        assert await together(patch(gateway, change("3", 40, n=1))) == ["ok"]
        await holder.commit()
        assert result_of(await waiter) == "FP001"


async def test_a_row_that_is_locked_without_its_scope_keeps_no_other_waiting(scoped_batch: Race) -> None:
    async with open_gateway(scoped_batch.dsn) as gateway:
        holder = await scoped_batch.begin(scoped_batch.a)
        await scoped_batch.a.execute("SELECT FROM items WHERE id = 1 FOR UPDATE")
        waiter = asyncio.create_task(patch(gateway, change("1", 40, n=1)))
        assert await together(patch(gateway, change("3", 40, n=1))) == ["ok"]
        assert not waiter.done()
        await holder.commit()
        assert result_of(await waiter) == "ok"


async def test_with_keys(scoped_batch: Race) -> None:
    async with open_gateway(scoped_batch.dsn) as gateway:

        def requests() -> list[Coroutine[Any, Any, Outcome]]:
            return [
                patch(gateway, replace(change("1", 40, n=1), idempotency_key=once("k1"))),
                patch(gateway, replace(change("2", 41, n=1), idempotency_key=once("k1"))),
                patch(gateway, replace(change("3", 40, n=1), idempotency_key=once("k2"))),
            ]

        assert await together(*requests()) == ["ok", "ok", "ok"]
        assert await together(*requests()) == ["ok", "ok", "ok"]
    assert await scoped_batch.observer.fetchval("SELECT sum(n) FROM items") == 2, "k1 landed once"
    assert await mark(scoped_batch) == 40


async def test_a_cascade_does_not_get_into_a_neighbours_scope(scoped_batch: Race) -> None:
    cascade = """
        CREATE TABLE public.parents (id int PRIMARY KEY, account_id int NOT NULL, code text UNIQUE);
        CREATE TABLE public.children (
          id int PRIMARY KEY, account_id int NOT NULL, code text REFERENCES public.parents (code) ON UPDATE CASCADE);
        INSERT INTO public.parents VALUES (1, 1, 'x'), (2, 2, 'z');
        INSERT INTO public.children VALUES (1, 2, 'x')"""
    await scoped_batch.observer.execute(cascade)
    for table in ("parents", "children"):
        await protect(scoped_batch.observer, table, scope="account/{account_id}", rule=scoped_batch.rule)
    async with open_gateway(scoped_batch.dsn) as gateway:
        answers = await together(
            patch(gateway, keyed("1", 40, table="parents", code="y")),  # would write a row of account/2
            patch(gateway, keyed("2", 40, table="parents", code="w")),  # is of account/2
        )
    assert answers == ["FP428", "ok"]
    assert await scoped_batch.observer.fetchval("SELECT code FROM children") == "x"
