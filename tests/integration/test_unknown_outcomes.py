"""R15: the connection breaks before the answer. What landed is answered as landed, what did not is done, and what
cannot be known is answered as unknown, with what is known.
"""

import asyncio
import os
import signal
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest
from tests.support.interleave import Connect
from tests.support.lost_answers import (
    ALONE,
    BOTH_WAYS,
    IN_A_HURRY,
    TOKEN,
    cut,
    cut_off,
    lock_k,
    swallowed,
    waiting_instead_of,
)
from tests.support.postgres import CuttingProxy, Unmade
from tests.support.racing import NEW, Race, assert_applied, audited_race, has_landed
from tests.support.use_cases import (
    delete,
    gateway_pid,
    keyed,
    listed,
    matching,
    once,
    patch,
    post,
    put,
    rendered,
    result_of,
)

from fencepost.server.fence.problems import Problem
from fencepost.server.fence.resource import Resource
from fencepost.server.fence.token import Rule, Token
from fencepost.server.gateway.claims import Claim
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.outcomes import Outcome
from fencepost.server.gateway.rounds import Replayed
from fencepost.server.gateway.use_cases import claim
from fencepost.server.gateway.write import IdempotencyKey
from fencepost.server.postgres import connection
from fencepost.server.times import ConnectionTimes
from fencepost.testing.servers.processes import PATIENCE, eventually


@pytest.fixture
async def race(request: pytest.FixtureRequest, connect: Connect, unmade: Unmade) -> Race:
    param: tuple[Rule, str] = getattr(request, "param", ALONE)
    rule, way = param
    return await audited_race(connect, unmade, rule, counting=way == "alone")


K = {"order_id": "k", "n": 7}


@BOTH_WAYS
@pytest.mark.parametrize("with_key", [True, False])
async def test_a_write_whose_backend_waits_for_a_row_lands_once(race: Race, with_key: bool) -> None:
    async with cut_off(race) as (gateway, proxy):
        holder = await lock_k(race)
        pid = await gateway_pid(gateway)
        request = replace(keyed("k", 31, n=1), idempotency_key=once() if with_key else None)
        write = await race.waits_at(pid, patch(gateway, request))
        proxy.cut_all()
        await waiting_instead_of(race, pid)
        assert not write.done()
        await holder.commit()
        assert result_of(await write) == "ok"
    await assert_applied(race, 1)
    assert await race.live_mark("k") == 31


async def landed_without_answer(race: Race, proxy: CuttingProxy) -> None:
    """Wait until the write is committed, and its answer swallowed; then cut."""

    async def landed() -> bool:
        return await has_landed(race)

    await swallowed(proxy, landed)
    cut(proxy)


def write_of(verb: str, gateway: Gateway, key: IdempotencyKey | None = None) -> Coroutine[Any, Any, Outcome]:
    works = {
        "patch": lambda: patch(gateway, replace(keyed("k", 31, n=1), idempotency_key=key)),
        "put new": lambda: put(gateway, replace(keyed("z", 31, n=1), idempotency_key=key)),
        "delete": lambda: delete(gateway, replace(keyed("k", 31), idempotency_key=key)),
        "post": lambda: post(gateway, replace(listed(31, {"order_id": "z"}), idempotency_key=key)),
        "post many": lambda: post(
            gateway, replace(listed(31, {"order_id": "y"}, {"order_id": "z"}), idempotency_key=key)
        ),
        "patch many": lambda: patch(gateway, replace(matching(NEW, 31, n=7), idempotency_key=key)),
        "patch rows": lambda: patch(gateway, replace(listed(31, K), idempotency_key=key)),
        "claim": lambda: claim(gateway, Claim(Resource("orders", ("k",)), Token(31), key), rendered),
    }
    return works[verb]()


@BOTH_WAYS
@pytest.mark.parametrize("verb", ["patch", "put new", "delete", "post many", "patch many", "patch rows", "claim"])
async def test_a_keyed_write_that_landed_is_answered_from_its_record(race: Race, verb: str) -> None:
    async with cut_off(race) as (gateway, proxy):
        proxy.mute_after = b"COMMIT;"
        write = asyncio.create_task(write_of(verb, gateway, once()))
        await landed_without_answer(race, proxy)
        answer = await write
    assert isinstance(answer, Replayed), answer
    assert answer.answer is not None
    assert (b'"order_id"' in answer.answer.body) or verb == "delete"
    await assert_applied(race, (2 if verb == "post many" else 1))
    assert await race.observer.fetchval("SELECT count(*) FROM fencepost.idempotency") == 1


@BOTH_WAYS
@pytest.mark.parametrize("verb", ["patch", "delete", "post", "patch rows", "claim"])
async def test_the_answer_to_a_write_without_key_that_may_have_landed_has_what_is_known(race: Race, verb: str) -> None:
    async with cut_off(race) as (gateway, proxy):
        proxy.mute_after = TOKEN
        write = asyncio.create_task(write_of(verb, gateway))
        await landed_without_answer(race, proxy)
        answer = await write
    resource = "orders/z" if verb == "post" else "orders/k"
    assert isinstance(answer, Problem), answer
    assert (answer.name, answer.http_status, answer.retry_after) == ("FP009", 503, 1)
    known = answer.body()["known"]
    assert isinstance(known, dict)
    assert (known["resource"], known["mark"]) == (resource, "31")
    assert "with this token was accepted" in known["meaning"]
    await assert_applied(race, 1)


async def test_when_a_newer_holder_came_meanwhile_it_is_unknown_and_not_stale(race: Race) -> None:
    async with cut_off(race) as (gateway, proxy):
        proxy.mute_after = TOKEN
        write = asyncio.create_task(patch(gateway, keyed("k", 31, n=1)))

        async def landed() -> bool:
            return await race.live_mark("k") == 31

        await swallowed(proxy, landed)
        assert await race.update(race.b, "k", 40, n=2) is not None
        cut(proxy)
        answer = await write
    assert isinstance(answer, Problem)
    assert answer.name == "FP009", "stale would say that it had no effect"
    known = answer.body()["known"]
    assert isinstance(known, dict)
    assert "newer token" in known["meaning"]


async def test_many_rows_without_key_are_unknown(race: Race) -> None:
    async with cut_off(race) as (gateway, proxy):
        holder = await lock_k(race)
        pid = await gateway_pid(gateway)
        request = matching(NEW, 31, n=7)
        write = await race.waits_at(pid, patch(gateway, request))
        proxy.cut_all()
        answer = await write
        await holder.rollback()
    assert isinstance(answer, Problem)
    assert (answer.name, answer.body()["known"]) == ("FP009", None)
    assert "written, or none: ask" in (answer.hint or "")
    await assert_applied(race, 0)


@BOTH_WAYS
async def test_a_database_that_stays_away_leaves_the_outcome_unknown(race: Race) -> None:
    async with cut_off(race, times=IN_A_HURRY) as (gateway, proxy):
        holder = await lock_k(race)
        pid = await gateway_pid(gateway)
        write = await race.waits_at(pid, patch(gateway, keyed("k", 31, n=1)))
        proxy.refusing = True
        proxy.cut_all()
        answer = await write
        assert isinstance(answer, Problem)
        assert (answer.name, answer.body()["known"]) == ("FP009", None)
        assert "or will" in answer.detail
        assert "claim the resource with a newer token" in (answer.hint or "")
        await assert_applied(race, 0)
        await holder.commit()

        async def landed() -> bool:
            return await has_landed(race)

        await eventually(landed, what="the old backend's write: unknown was the truth")


@BOTH_WAYS
async def test_a_transaction_that_broke_before_its_commit_was_not_written(race: Race) -> None:
    async with cut_off(race, times=IN_A_HURRY) as (gateway, proxy):
        holder = await lock_k(race)
        pid = await gateway_pid(gateway)
        write = await race.waits_at(pid, patch(gateway, replace(keyed("k", 31, n=1), idempotency_key=once())))
        proxy.refusing = True
        proxy.cut_all()
        assert result_of(await write) == "FP010", "nothing was done, and nothing will be"
        await holder.commit()

        async def idle() -> bool:
            state = await race.observer.fetchval("SELECT state FROM pg_stat_activity WHERE pid = $1", pid)
            return state in (None, "idle in transaction")

        await eventually(idle, what="the old backend, through with its statement")
        await assert_applied(race, 0)


async def test_an_earlier_commit_stays_unknown_when_its_look_up_is_not_answered(race: Race) -> None:
    async with cut_off(race, times=IN_A_HURRY) as (gateway, proxy):
        proxy.mute_after = b"COMMIT;"
        write = asyncio.create_task(patch(gateway, replace(keyed("k", 31, n=1), idempotency_key=once())))
        await asyncio.wait_for(proxy.muted.wait(), PATIENCE)
        proxy.muted.clear()
        proxy.mute_after = b"fencepost.gateway_idem_begin"
        proxy.cut_all()
        await asyncio.wait_for(proxy.muted.wait(), PATIENCE)  # ended the first backend, and asks for the record
        proxy.refusing = True
        proxy.cut_all()
        assert result_of(await write) == "FP009"
    await assert_applied(race, 1)


@BOTH_WAYS
async def test_a_backend_that_does_not_end_leaves_the_outcome_unknown(race: Race) -> None:
    hurried = replace(IN_A_HURRY, connections=ConnectionTimes(end_backend_within=0.2))
    async with cut_off(race, times=hurried) as (gateway, proxy):
        pid = await gateway_pid(gateway)
        assert result_of(await patch(gateway, keyed("k", 29, n=1))) == "FP001", "the statement is prepared now"
        os.kill(pid, signal.SIGSTOP)  # its statement stays unread in its socket
        try:
            proxy.mute_after = TOKEN
            write = asyncio.create_task(patch(gateway, keyed("k", 31, n=1)))
            await asyncio.wait_for(proxy.muted.wait(), PATIENCE)
            proxy.cut_all()
            answer = await write
        finally:
            os.kill(pid, signal.SIGCONT)
    assert isinstance(answer, Problem)
    assert answer.name == "FP009"

    async def gone() -> bool:
        return not await race.observer.fetchval("SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)", pid)

    await eventually(gone, what="the backend, awake again, ending")
    # A batch is in the socket whole, and may be done before the backend looks for signals: unknown is the truth.
    (row,) = await race.observer.fetch("SELECT n, last_fence_token FROM orders")
    assert tuple(row) in ((0, 30), (1, 31))


@BOTH_WAYS
async def test_control_without_ending_the_old_backend_a_write_that_lands_is_refused(
    race: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def leave_it(*_: object) -> None:
        """Do not end it."""

    monkeypatch.setattr(connection, "end", leave_it)
    async with cut_off(race) as (gateway, proxy):
        holder = await lock_k(race)
        pid = await gateway_pid(gateway)
        write = await race.waits_at(pid, patch(gateway, keyed("k", 31, n=1)))
        proxy.cut_all()

        async def two_wait() -> bool:
            return bool(
                await race.observer.fetchval(
                    "SELECT count(*) = 2 FROM pg_stat_activity WHERE datname = current_database()"
                    " AND wait_event_type = 'Lock' AND state = 'active'"
                )
            )

        await eventually(two_wait)
        await holder.commit()
        answer = await write
    if race.strict:
        assert result_of(answer) == "FP002", "the echo of its own write"
        await assert_applied(race, 1)
    else:
        assert result_of(answer) == "ok", "written twice"
        await assert_applied(race, 2)
