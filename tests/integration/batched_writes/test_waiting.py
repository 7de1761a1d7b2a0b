"""A write that waits for a row, or for its turn, keeps none of its neighbours waiting."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from tests.integration.batched_writes.sending import together
from tests.support.racing import Race
from tests.support.use_cases import delete, gateway_pid, keyed, listed, once, open_gateway, patch, post, put, result_of

from fencepost.server.fence.problems import Problem
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.outcomes import Outcome, Turns
from fencepost.server.gateway.rounds import Replayed
from fencepost.testing.servers.processes import PATIENCE, eventually

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
