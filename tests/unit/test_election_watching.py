"""Watching elections: who shares a poller, who is told what, and what ends it."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
from tests.support.interleave import eventually

from fencepost.election.state import Election, Leader
from fencepost.election.watching import Subscription, Watches
from fencepost.fencing.problem_types import DATABASE_UNAVAILABLE
from fencepost.fencing.problems import Problem
from fencepost.storage.leases.builtin import LeaseId

AWAY = Problem(DATABASE_UNAVAILABLE, "away")


def led(term: int, *, remaining_ms: int = 1000) -> Election:
    return Election("e", "builtin", Leader(term, "a", LeaseId("builtin", term), "then", "later", remaining_ms))


class Polls:
    """What is asked who leads: each look takes the next answer, and waits until there is one."""

    def __init__(self) -> None:
        self.answers: asyncio.Queue[Election | Problem | Exception] = asyncio.Queue()
        self.looks = 0

    async def look(self) -> Election | Problem:
        self.looks += 1
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def polls(monkeypatch: pytest.MonkeyPatch) -> Polls:
    monkeypatch.setattr("fencepost.election.watching.EVERY", 0)
    return Polls()


async def soon(what: Awaitable[object]) -> object:
    return await asyncio.wait_for(what, 30)


async def test_all_subscribers_of_an_election_share_one_poller(polls: Polls) -> None:
    watches = Watches()
    async with AsyncExitStack() as stack:
        subscriptions = [await stack.enter_async_context(watches.subscribe("e", polls.look)) for _ in range(50)]
        other = await stack.enter_async_context(watches.subscribe("other", Polls().look))
        assert (watches.count, watches.watched) == (51, 2)
        polls.answers.put_nowait(led(1))
        found = await asyncio.gather(*(soon(each.next()) for each in subscriptions))
        assert found == [led(1)] * 50
        assert await other.next(0) is None
        assert polls.looks <= 2
    assert (watches.count, watches.watched) == (0, 0)


async def test_only_another_leader_is_news_and_who_comes_late_hears_the_latest(polls: Polls) -> None:
    watches = Watches()
    async with watches.subscribe("e", polls.look) as one:
        polls.answers.put_nowait(led(1))
        assert await soon(one.next()) == led(1)
        renewed = led(1, remaining_ms=5)
        polls.answers.put_nowait(renewed)
        polls.answers.put_nowait(renewed)
        assert await one.next(0) is None

        async def taken() -> bool:
            return polls.answers.empty()

        await eventually(taken, what="both answers taken")
        assert await one.next(0) is None
        async with watches.subscribe("e", polls.look) as late:
            assert await soon(late.next()) == renewed
        for election in (led(2), Election("e", "builtin")):
            polls.answers.put_nowait(election)
            assert await soon(one.next()) == election


async def ended_by_problem(polls: Polls, _watches: Watches) -> None:
    polls.answers.put_nowait(AWAY)


async def ended_by_stop(_polls: Polls, watches: Watches) -> None:
    watches.stop()


@pytest.mark.parametrize("end", [ended_by_problem, ended_by_stop])
async def test_when_it_cannot_be_told_any_more_everybodys_subscription_ends(
    polls: Polls, end: Callable[[Polls, Watches], Awaitable[None]]
) -> None:
    watches = Watches()
    async with watches.subscribe("e", polls.look) as one, watches.subscribe("e", polls.look) as other:
        polls.answers.put_nowait(led(1))
        for each in (one, other):
            assert await soon(each.next()) == led(1)
        waiting = [asyncio.create_task(each.next()) for each in (one, other)]
        await end(polls, watches)
        for task in waiting:
            assert isinstance(await soon(task), Problem)


async def test_after_a_problem_the_next_subscriber_asks_anew(polls: Polls) -> None:
    watches = Watches()
    async with watches.subscribe("e", polls.look) as one:
        polls.answers.put_nowait(AWAY)
        assert await soon(one.next()) == AWAY
        async with watches.subscribe("e", polls.look) as next_one:
            polls.answers.put_nowait(led(3))
            assert await soon(next_one.next()) == led(3)
    assert watches.watched == 0


async def test_a_look_that_fails_fails_all_who_watch(polls: Polls) -> None:
    async with Watches().subscribe("e", polls.look) as one:
        polls.answers.put_nowait(ZeroDivisionError())
        with pytest.raises(ZeroDivisionError):
            await soon(one.next())


async def test_a_look_that_takes_too_long_is_a_problem(polls: Polls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencepost.election.watching.LOOK_WITHIN", 0)
    async with Watches().subscribe("e", polls.look) as one:
        assert isinstance(await soon(one.next()), Problem)


async def test_too_many_and_too_late_are_refused(polls: Polls) -> None:
    watches = Watches(most=1)
    async with watches.subscribe("e", polls.look), watches.subscribe("e", polls.look) as refused:
        assert isinstance(await refused.next(), Problem)
        assert watches.count == 1
    async with watches.subscribe("e", polls.look) as one:
        assert isinstance(one, Subscription)
        watches.stop()
    async with watches.subscribe("e", polls.look) as late:
        assert isinstance(await late.next(), Problem)
    assert watches.count == 0
