"""Writes that share a transaction get the verdicts that they would get one after the other (group commit, issue 5).

`together` sends them at the same moment, so that they are one batch; that it was one is seen by their rows' xmin.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from tests.idempotency_scenarios import once
from tests.interleave import Connect, eventually
from tests.racing import ISSUED, Race, gateway_pid, keyed, open_gateway, open_race, posted, told

from fencepost.fencing.problems import Problem
from fencepost.gateway.core import Outcome
from fencepost.gateway.once import Replayed
from fencepost.gateway.write import delete, patch, put
from fencepost.gateway.write_many import insert
from fencepost.storage.protect import protect

LOADED = """
CREATE TABLE public.customers (id int PRIMARY KEY);
INSERT INTO public.customers VALUES (1);
CREATE TABLE public.orders (
  order_id text PRIMARY KEY, status text NOT NULL DEFAULT 'new' CHECK (status <> 'bad'), n integer NOT NULL DEFAULT 0,
  number int UNIQUE, customer int REFERENCES public.customers DEFERRABLE INITIALLY DEFERRED)"""


@pytest.fixture(params=["strict", "lease"])
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

        async def all_wait() -> bool:
            return gateway.group.waiting == 3

        await eventually(all_wait, what="all of them are sent, or wait to be")
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
