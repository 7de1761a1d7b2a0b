"""A grant with claims (locks/source_leases.py), and requests that are repeated while it is under way."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.interleave import Connection
from tests.support.manual_clock import ManualClock

from fencepost.server.locks.leases import Overtaken
from fencepost.server.locks.source import SourceError
from fencepost.server.times import SourceTimes, Times
from fencepost.testing.servers.processes import eventually


async def test_a_claim_that_is_overtaken_takes_newer_tokens_and_so_does_the_answer(make: Callable[..., Any]) -> None:
    """The first request has marked the resource with a token above those that came with the grant."""
    tokens: list[int] = []

    async def claim(_connection: object, token: int, repeated: bool) -> str:
        tokens.append(token)
        if len(tokens) < 3:
            raise Overtaken
        return f"claimed, {repeated}"

    async with make() as stage:
        attempted = await stage.acquire("a", claim=claim)
        assert attempted.claims == "claimed, False"
        assert tokens == [1, 3, 5]
        assert attempted.acquired.tokens == (6,), "the first token of each draw was for the claim"
        again = await stage.acquire("a", claim=claim, secret=stage.secret)
        assert (again.acquired.verdict, again.acquired.tokens, again.claims) == ("repeated", (6,), "claimed, True")


async def test_a_request_that_is_repeated_while_it_claims_waits_and_gets_the_same(make: Callable[..., Any]) -> None:
    claiming, go_on = asyncio.Event(), asyncio.Event()
    seen: list[bool] = []

    async def claim(_connection: object, token: int, repeated: bool) -> int:
        seen.append(repeated)
        claiming.set()
        await go_on.wait()
        return token

    async with make() as stage:
        first = asyncio.create_task(stage.acquire("a", claim=claim))
        await claiming.wait()
        secret = stage.secret
        second = asyncio.create_task(stage.acquire("a", claim=claim, secret=secret))
        await waits_for_advisory_lock(stage.observer)
        go_on.set()
        one, two = await first, await second
        assert (one.acquired.verdict, two.acquired.verdict) == ("granted", "repeated")
        assert (one.claims, two.claims, seen) == (1, 1, [False, True])
        assert one.acquired.tokens == two.acquired.tokens


async def waits_for_advisory_lock(observer: Connection) -> None:
    async def waits() -> bool:
        found: bool = await observer.fetchval(
            "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'advisory'"
            " AND datname = current_database())"
        )
        return found

    await eventually(waits, what="a second request with one secret")


@pytest.mark.parametrize("harm", ["renewed no more", "generation raised", "ended by its row"])
async def test_a_lease_that_is_lost_over_its_claims_is_no_grant(make: Callable[..., Any], harm: str) -> None:
    tries: list[int] = []

    async def claim(_connection: object, token: int, _repeated: bool) -> str:
        tries.append(token)
        if len(tries) == 1:
            if harm == "generation raised":
                await stage.raised()
                raise SourceError("its token is void now")
            if harm == "ended by its row":
                await stage.observer.execute("UPDATE fencepost.source_leases SET ended_at = clock_timestamp()")
            else:
                stage.service.held.clear()
        return "claimed"

    never_late = harm == "ended by its row"  # else it is renewed after its claims, which shows that it is lost
    async with make(Times(sources=SourceTimes(late_share=never_late))) as stage:
        attempted = await stage.acquire("a", claim=claim)
        assert attempted.acquired.verdict == "granted"
        assert attempted.acquired.lease_id == 2**47 + 2, "the second lease; the first came to nothing"
        assert len(tries) == 2
        assert await stage.live() == 1


async def test_a_wait_is_reported_without_the_time_that_the_claims_took(make: Callable[..., Any]) -> None:
    """Clients trust a lease from then on: the request's start plus what it waited."""
    clock = ManualClock()

    async def claim(_connection: object, _token: int, _repeated: bool) -> None:
        await clock.advance(0.3)

    async with make(Times(clock=clock)) as stage:
        attempted = await stage.acquire("a", claim=claim)
        assert attempted.waited_ms == 0
        assert attempted.acquired.due_ms is not None
        assert attempted.acquired.due_ms <= 20_000 - 300


async def test_two_requests_with_one_secret_are_not_in_each_others_way(make: Callable[..., Any]) -> None:
    """The one that the service refuses gets the lease that is its own."""
    async with make(slow={"a"}) as stage:
        first = asyncio.create_task(stage.acquire("a"))
        await stage.service.asked.wait()
        secret = stage.secret
        stage.service.refuses.add("a")
        stage.service.refused_until = asyncio.Event()
        second = asyncio.create_task(stage.acquire("a", secret=secret))
        await asyncio.sleep(0)
        stage.service.gate.set()
        one = await first
        stage.service.refused_until.set()
        two = await second
        assert (one.acquired.verdict, two.acquired.verdict) == ("granted", "repeated")
        assert one.acquired.lease_id == two.acquired.lease_id


@pytest.mark.parametrize("end", [SourceError("refused"), asyncio.CancelledError()])
async def test_a_claim_that_fails_gives_the_lock_back(make: Callable[..., Any], end: BaseException) -> None:
    async def claim(_connection: object, _token: int, _repeated: bool) -> None:
        raise end

    async with make() as stage:
        with pytest.raises(type(end)):
            await stage.acquire("a", claim=claim)
        assert stage.service.released == ["a#1"]
        assert await stage.live() == 0
