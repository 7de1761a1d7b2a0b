"""Writes that share a transaction get the verdicts that they would get one after the other (group commit, issue 5).

`together` sends them at the same moment, so that they are one batch; that it was one is seen by their rows' xmin.
"""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from tests.scenarios.idempotency import once
from tests.support.interleave import Connect, eventually
from tests.support.racing import ISSUED, Race, gateway_pid, keyed, open_gateway, open_race, posted, told

from fencepost.fencing.problems import Problem
from fencepost.gateway.gateway import Gateway
from fencepost.gateway.outcomes import Outcome
from fencepost.gateway.turns import Turns
from fencepost.gateway.use_cases import delete, insert, patch, put
from fencepost.gateway.writes.idempotency import Replayed
from fencepost.storage.batches.group_commit import GroupCommit
from fencepost.storage.connections.connection import Connection
from fencepost.storage.protecting.protect import protect
from fencepost.storage.statements import keyed as keyed_statements
from fencepost.storage.statements.keyed import Batch, FencedRow, WriteStatement
from fencepost.storage.tables.load import load

LOADED = """
CREATE TABLE public.customers (id int PRIMARY KEY);
INSERT INTO public.customers VALUES (1);
CREATE TABLE public.orders (
  order_id text PRIMARY KEY, status text NOT NULL DEFAULT 'new' CHECK (status <> 'bad'), n integer NOT NULL DEFAULT 0,
  number int UNIQUE, customer int REFERENCES public.customers DEFERRABLE INITIALLY DEFERRED)"""


@pytest.fixture(params=["strict", "epoch"])
async def race(request: pytest.FixtureRequest, connect: Connect, database: str) -> Race:
    race = await open_race(connect, database, request.param, ddl=LOADED)
    for key in ("a", "b", "c", "d", "e", "f"):
        await race.insert(race.a, key, 30)
    return race


async def together(*works: Coroutine[Any, Any, Outcome]) -> list[str]:
    return [told(answer) for answer in await asyncio.gather(*works)]


async def test_a_row_several_times_is_judged_one_after_the_other(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        tokens = (33, 35, 34, 36, 36)
        answers = await together(*(patch(gateway, keyed("a", t, status=f"by {t}")) for t in tokens))
    assert answers == ["ok", "ok", "FP001", "ok", "FP002" if race.strict else "ok"]
    row = await race.row("a") or {}
    assert (row["last_fence_token"], row["status"]) == (36, "by 36")


async def test_all_verbs_in_one_moment(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        assert await together(
            patch(gateway, keyed("a", 40, status="x")),
            patch(gateway, keyed("b", 40, status="x")),
            patch(gateway, keyed("gone", 40, status="x")),
            put(gateway, keyed("c", 40, status="x")),
            put(gateway, keyed("new", 40, status="x")),
            delete(gateway, keyed("d", 40)),
            delete(gateway, keyed("e", 29)),
            insert(gateway, posted(40, {"order_id": "p", "n": 1})),
            insert(gateway, posted(40, {"order_id": "q", "n": 1})),
            insert(gateway, posted(40, {"order_id": "a", "n": 1})),
        ) == [
            "ok",
            "ok",
            "FP006",
            "ok",
            "created",
            "ok",
            "FP001",
            "created",
            "created",
            "FP002" if race.strict else "23505",
        ]
    assert await race.recorded("d") == (40, True)
    assert [await race.live_mark(key) for key in ("a", "b", "c", "d", "new", "p", "q")] == [
        40,
        40,
        40,
        None,
        40,
        40,
        40,
    ]
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
    """Both are written by themselves then, and hear nothing of what the batch had done."""
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


async def test_what_was_written_is_told_even_if_the_others_cannot_be_asked_about(race: Race) -> None:
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
            insert(gateway, posted(49, {"order_id": "a"})),
            insert(gateway, posted(49, {"order_id": "x"})),
            insert(gateway, posted(49, {"order_id": "y"})),
        ) == ["FP001", "created", "created"]
        assert await together(
            put(gateway, keyed("a", 49)), put(gateway, keyed("b", 49)), put(gateway, keyed("z", 49))
        ) == ["FP001", "ok", "created"]
    assert await race.live_mark("a") is None


async def test_an_unissued_token_is_no_neighbours_matter(connect: Connect, database: str) -> None:
    race = await open_race(connect, database, source="builtin")
    for key in ("a", "b"):
        await race.insert(race.a, key, 30)
    async with open_gateway(race.dsn) as gateway:
        assert await together(
            patch(gateway, keyed("a", 31)),
            patch(gateway, keyed("b", ISSUED + 1)),
            patch(gateway, keyed("no", ISSUED + 1)),
        ) == ["ok", "FP018", "FP018"]


WAITING = """
SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"""


@asynccontextmanager
async def held(race: Race, key: str, mark: int | None = None) -> AsyncIterator[None]:
    """Hold a row in a transaction of somebody else's; `mark` is what he leaves."""
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
async def test_a_held_row_keeps_nobody_else_waiting(race: Race, mark: int | None, expected: str) -> None:
    async with open_gateway(race.dsn) as gateway:
        async with held(race, "a", mark):
            waiter = await race.waits_at(await gateway_pid(gateway), patch(gateway, keyed("a", 40, status="x")))
            assert await together(
                patch(gateway, keyed("b", 40)), put(gateway, keyed("c", 40)), delete(gateway, keyed("d", 40)),
                patch(gateway, keyed("e", 29)),
            ) == ["ok", "ok", "ok", "FP001"]  # fmt: skip
            assert not waiter.done()
        assert told(await waiter) == expected


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
        answers = [told(answer) for answer in await asyncio.gather(*works)]
    assert set(answers) <= {"ok", "FP001"}
    assert "ok" in answers
    assert await race.live_mark("a") == 49


async def test_who_is_refused_does_not_wait_for_those_who_wait_for_others(race: Race) -> None:
    holder = await race.begin(race.a)
    await race.a.execute("SELECT FROM orders WHERE order_id IN ('a', 'b') FOR UPDATE")
    async with open_gateway(race.dsn, pool_size=3) as gateway:
        few = replace(gateway, turns=Turns(at_once=2, wait=30, most_waiting=3))
        waiting = [asyncio.create_task(patch(few, keyed(key, 40, n=1))) for key in "ab"]

        async def both_wait() -> bool:
            return bool(await race.observer.fetchval(WAITING) == 2)

        await eventually(both_wait, what="there is no room for a third")
        assert told(await asyncio.wait_for(patch(few, keyed("c", 40, status="bad")), 5)) == "23514"
        third = asyncio.create_task(patch(few, keyed("a", 41, n=1)))

        async def it_waits() -> bool:
            return few.turns.waiting == 3

        await eventually(it_waits, what="a third waits for its turn")
        crowded = await patch(few, keyed("a", 42, n=1))
        assert isinstance(crowded, Problem)
        assert (crowded.http_status, crowded.retry_after) == (503, 1)
        await holder.commit()
        assert [told(answer) for answer in await asyncio.gather(*waiting, third)] == ["ok", "ok", "ok"]


async def test_a_turn_that_does_not_come_is_told_in_time(race: Race) -> None:
    async with open_gateway(race.dsn, lock_timeout=0.5) as gateway, held(race, "a"):
        first = await race.waits_at(await gateway_pid(gateway), patch(gateway, keyed("a", 40)))
        second = await patch(gateway, keyed("a", 41))
        assert isinstance(second, Problem)
        assert (second.name, second.http_status) == ("55P03", 503)
        assert told(await first) == "55P03"
    assert await race.live_mark("a") == 30


async def test_a_unique_entry_that_somebody_holds_stalls_nobody(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        holder = await race.begin(race.a)
        await race.insert(race.a, "x", 31)
        waiter = await race.waits_at(await gateway_pid(gateway), insert(gateway, posted(40, {"order_id": "x"})))
        assert (
            await together(*(insert(gateway, posted(40, {"order_id": key})) for key in ("v", "w"))) == ["created"] * 2
        )
        await holder.rollback()
        assert told(await waiter) == "created"


async def test_a_caller_that_goes_away_takes_no_neighbour_along(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        works = [asyncio.create_task(patch(gateway, keyed(key, 40, status="x"))) for key in "abc"]
        await asyncio.sleep(0)  # each runs up to where it waits for its batch
        assert gateway.group.waiting == 3
        works[1].cancel()
        answers = await asyncio.gather(*works, return_exceptions=True)
        assert isinstance(answers[1], asyncio.CancelledError)
    assert await race.live_mark("a") == await race.live_mark("c") == 40
    assert await race.live_mark("b") in (30, 40)


async def test_one_key_twice_in_a_moment_lands_once(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        request = replace(keyed("a", 40, n=1), once=once())
        answers = await asyncio.gather(
            patch(gateway, request), patch(gateway, replace(keyed("a", 41, n=2), once=once())),
            patch(gateway, replace(keyed("b", 40, n=1), once=once("k2"))),
            patch(gateway, replace(keyed("c", 29, n=1), once=once("k3"))),
            patch(gateway, replace(keyed("d", 40, status="bad", n=1), once=once("k4"))),
        )  # fmt: skip
        assert [told(each) for each in answers] == ["ok", "ok", "ok", "FP001", "23514"]
        assert [isinstance(each, Replayed) for each in answers[:3]] == [False, True, False]
        assert told(await patch(gateway, replace(keyed("a", 42, n=3), once=once(payload=b"other")))) == "FP014"
        assert isinstance(await patch(gateway, replace(keyed("a", 42), once=once("k2"))), Problem | Replayed)
        assert told(await patch(gateway, replace(keyed("c", 40, n=1), once=once("k3")))) == "ok", (
            "a refusal is no record"
        )
    row = await race.row("a") or {}
    assert (row["n"], row["last_fence_token"]) == (1, 40)
    assert await race.observer.fetchval("SELECT count(*) FROM fencepost.idempotency") == 3


async def test_a_key_whose_write_waits_is_in_flight_at_once(race: Race) -> None:
    async with open_gateway(race.dsn, pool_size=2) as gateway:
        async with held(race, "a"):
            first = asyncio.create_task(patch(gateway, replace(keyed("a", 40, n=1), once=once())))

            async def waits() -> bool:
                return bool(await race.observer.fetchval(WAITING) == 1)

            await eventually(waits, what="the first one waits for the row")
            again = asyncio.wait_for(patch(gateway, replace(keyed("a", 40, n=1), once=once())), 5)
            assert told(await again) == "FP013", "it must not wait for its turn"
        assert told(await first) == "ok"


async def test_a_key_in_flight_elsewhere_is_told_and_keeps_nobody(race: Race) -> None:
    holder = await race.begin(race.b)
    await race.b.execute("SELECT fencepost.idem_begin('', 'k1', 'payload')")
    async with open_gateway(race.dsn) as gateway:
        assert await together(
            patch(gateway, replace(keyed("a", 40, n=1), once=once())),
            patch(gateway, replace(keyed("b", 40, n=1), once=once("k2"))),
        ) == ["FP013", "ok"]
    await holder.rollback()


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
    connect: Connect, database: str
) -> None:
    race = await open_race(connect, database)
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


async def test_more_than_may_wait_are_refused_early_and_told_when_to_come_again(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        crowded = replace(gateway, group=GroupCommit(gateway.database, most_waiting=0))
        refused = await patch(crowded, keyed("a", 40))
        assert isinstance(refused, Problem)
        assert (refused.http_status, refused.retry_after, refused.type.retryable) == (503, 1, True)
        assert "nothing was written" in refused.detail
    assert await race.live_mark("a") == 30


async def test_batches_that_cannot_work_are_reported_once_and_change_no_verdict(race: Race) -> None:
    """As after an upgrade without `migrate --gateway-role`: 42501, or 42883 here."""
    await race.observer.execute("ALTER FUNCTION fencepost.idem_begin_each(text, text[], bytea[]) RENAME TO gone")
    heard: list[str] = []
    async with open_gateway(race.dsn) as opened:
        gateway = replace(opened, group=GroupCommit(opened.database, on_setup_error=heard.append))
        writes = (patch(gateway, replace(keyed(key, 40, status="x"), once=once(key))) for key in "abcd")
        assert await together(*writes) == ["ok"] * 4
    assert len(heard) == 1
    assert "idem_begin_each" in heard[0]


async def test_two_gateways_on_the_same_rows_never_wait_in_a_circle(race: Race) -> None:
    keys, draws = "abcdef", random.Random(5)
    tokens = itertools.count(100)

    def one(gateway: Gateway) -> Coroutine[Any, Any, Outcome]:
        verb, key, token = draws.choice((patch, patch, put, delete)), draws.choice(keys), next(tokens)
        if draws.random() < 0.2:
            return insert(gateway, posted(token, {"order_id": key, "n": 1}))
        return verb(gateway, keyed(key, token, n=token))

    async with open_gateway(race.dsn, pool_size=5) as first, open_gateway(race.dsn, pool_size=5) as second:
        for _ in range(25):
            answers = await asyncio.gather(*(one(gateway) for gateway in (first, second) for _ in range(16)))
            assert {told(answer) for answer in answers} <= {"ok", "created", "FP001", "FP006", "23505"}
        assert first.group.waiting == second.group.waiting == len(first.turns) == len(second.turns) == 0
    # Statistics are reported when a backend ends, at the latest.
    deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    assert await race.observer.fetchval(deadlocks) == 0
    marks = await race.observer.fetch("SELECT order_id, n, last_fence_token FROM orders WHERE n > 1")
    assert all(row["n"] == row["last_fence_token"] for row in marks), "the last accepted write is the one that stays"


TABLES = """
CREATE TABLE t_plain (id int PRIMARY KEY);
CREATE TABLE t_parent (id int PRIMARY KEY);
CREATE TABLE t_child (id int PRIMARY KEY, parent int REFERENCES t_parent ON DELETE CASCADE);
CREATE TABLE t_triggered (id int PRIMARY KEY);
CREATE TRIGGER mine BEFORE UPDATE ON t_triggered FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger();
CREATE TABLE t_secured (id int PRIMARY KEY);
ALTER TABLE t_secured ENABLE ROW LEVEL SECURITY;
CREATE TABLE t_ruled (id int PRIMARY KEY);
CREATE RULE mine AS ON UPDATE TO t_ruled DO ALSO NOTHING;
CREATE TABLE t_deferred (id int PRIMARY KEY, n int UNIQUE DEFERRABLE);
CREATE TABLE t_renamed (id int PRIMARY KEY, code text UNIQUE);
CREATE TABLE t_follows (id int PRIMARY KEY, code text REFERENCES t_renamed (code) ON UPDATE CASCADE);
CREATE FUNCTION next_no() RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE TABLE t_numbered (id int PRIMARY KEY, no int DEFAULT next_no());
CREATE TABLE t_serial (id int GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, at timestamptz DEFAULT clock_timestamp());
CREATE TABLE t_parts (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE t_part PARTITION OF t_parts DEFAULT"""


SHARING = {"t_plain", "t_parent", "t_child", "t_parts", "t_renamed", "t_follows", "t_serial"}


async def test_which_tables_share_transactions(connect: Connect) -> None:
    observer = await connect()
    await observer.execute("SET search_path = public")
    await observer.execute(TABLES)
    tables = {name: t for name, t in (await load(observer, [], 1)).tables.items() if name.startswith("t_")}
    assert {name for name, t in tables.items() if t.shares_transactions} == SHARING
    assert {name for name, t in tables.items() if t.deletes_reach_further} == {"t_parent"}
    assert {name: t.updates_reach_further for name, t in tables.items() if t.updates_reach_further} == {
        "t_renamed": {"code"}
    }
    await protect(observer, "t_plain")
    await observer.execute(
        "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;"
        "CREATE TRIGGER mine AFTER INSERT ON t_part FOR EACH ROW EXECUTE FUNCTION nothing()"
    )
    tables = dict((await load(observer, [], 1)).tables)
    assert tables["t_plain"].shares_transactions, "our own triggers are none of the user's"
    assert not tables["t_parts"].shares_transactions, "a partition's trigger is one, too"


async def test_a_batch_finds_its_row_by_the_key_and_locks_it_before_it_looks(race: Race) -> None:
    statement = keyed_statements.update(race.table, race.change({"status": "x"}), "skip")
    await race.observer.execute("SET enable_seqscan = off; SET plan_cache_mode = force_generic_plan")
    await race.observer.execute(f"PREPARE u AS {statement.sql}")
    rows = await race.observer.fetch("""EXPLAIN (COSTS off) EXECUTE u('a', 40, '{"status": "x"}', 0)""")
    plan = "\n".join(row[0] for row in rows)
    assert plan.count("Index Scan using orders_pkey") == 2, plan
    assert "One-Time Filter" in plan, plan
    assert "LockRows" in plan, plan
    statement = keyed_statements.delete(race.table, race.target, "skip")
    await race.observer.execute(f"PREPARE d AS {statement.sql}")
    plan = "\n".join(row[0] for row in await race.observer.fetch("EXPLAIN (COSTS off) EXECUTE d('a', 40, 0)"))
    assert "One-Time Filter" in plan, plan
    assert "LockRows" in plan, plan
