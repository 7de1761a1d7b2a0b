"""Watching elections: who shares a poller, who gets which change, and what ends it."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack

import pytest

from fencepost.server.election import Election, Key, Leader, Subscription, Watches
from fencepost.server.fence.problem_types import DATABASE_UNAVAILABLE
from fencepost.server.fence.problems import Problem
from fencepost.server.postgres.leases import LeaseId
from fencepost.server.quota import Quota
from fencepost.server.times import Times, WatchTimes
from fencepost.testing.servers.processes import PATIENCE, eventually

E: Key = ("builtin", "e")
AWAY = Problem(DATABASE_UNAVAILABLE, "away")


def led(term: int, *, remaining_ms: int = 1000) -> Election:
    return Election("e", "builtin", Leader("a", LeaseId("builtin", term), "then", "later", remaining_ms))


class Polls:
    """What is asked who leads: each look takes the next answer, for all that it asks about; it waits for one."""

    def __init__(self) -> None:
        self.answers: asyncio.Queue[Election | Problem | Exception] = asyncio.Queue()
        self.asked: list[set[Key]] = []

    async def look(self, asked: Sequence[Key]) -> Mapping[Key, Election | Problem]:
        self.asked.append(set(asked))
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return dict.fromkeys(asked, answer)


def quota_of(most: int = 100, of_one: int = 100) -> Quota:
    return Quota(most, of_one, "FENCEPOST_MAX_WATCHERS")


def watches_of(quota: Quota | None = None, **times: float) -> Watches:
    """Look all the time, unless `times` say otherwise."""
    return Watches(quota or quota_of(), Times(watches=WatchTimes(**{"elections_every": 0, **times})))


@pytest.fixture
def polls() -> Polls:
    return Polls()


async def soon(what: Awaitable[object]) -> object:
    return await asyncio.wait_for(what, PATIENCE)


async def test_all_elections_that_are_watched_are_asked_about_by_one_question(polls: Polls) -> None:
    watches = watches_of()
    async with AsyncExitStack() as stack:
        subscriptions = [await stack.enter_async_context(watches.subscribe(E, polls.look)) for _ in range(50)]
        others = [await stack.enter_async_context(watches.subscribe(("etcd", str(n)), polls.look)) for n in range(20)]
        assert (watches.count, watches.watched) == (70, 21)
        for term in (1, 2):
            polls.answers.put_nowait(led(term))
            found = await asyncio.gather(*(soon(each.next()) for each in (*subscriptions, *others)))
            assert found == [led(term)] * 70
            assert polls.asked[term - 1] == {E, *(("etcd", str(n)) for n in range(20))}
        assert len(polls.asked) <= 3
    assert (watches.count, watches.watched) == (0, 0)


async def test_who_begins_to_watch_another_one_does_not_wait_for_the_next_look(polls: Polls) -> None:
    watches = watches_of(elections_every=3600)
    async with watches.subscribe(E, polls.look) as one:
        polls.answers.put_nowait(led(1))
        assert await soon(one.next()) == led(1)
        async with watches.subscribe(("builtin", "other"), polls.look) as other:
            polls.answers.put_nowait(led(2))
            assert await soon(other.next()) == led(2)
        assert await one.next(0) is None
    assert polls.asked == [{E}, {("builtin", "other")}]


async def test_only_another_leader_is_news_and_who_comes_late_gets_the_latest(polls: Polls) -> None:
    watches = watches_of()
    async with watches.subscribe(E, polls.look) as one:
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
        async with watches.subscribe(E, polls.look) as late:
            assert await soon(late.next()) == renewed
        for election in (led(2), Election("e", "builtin")):
            polls.answers.put_nowait(election)
            assert await soon(one.next()) == election


async def ended_by_problem(polls: Polls, _watches: Watches) -> None:
    polls.answers.put_nowait(AWAY)


async def ended_by_stop(_polls: Polls, watches: Watches) -> None:
    watches.stop()


@pytest.mark.parametrize("end", [ended_by_problem, ended_by_stop])
async def test_when_the_leader_cannot_be_known_any_more_every_subscription_ends(
    polls: Polls, end: Callable[[Polls, Watches], Awaitable[None]]
) -> None:
    watches = watches_of()
    async with watches.subscribe(E, polls.look) as one, watches.subscribe(E, polls.look) as other:
        polls.answers.put_nowait(led(1))
        for each in (one, other):
            assert await soon(each.next()) == led(1)
        waiting = [asyncio.create_task(each.next()) for each in (one, other)]
        await end(polls, watches)
        for task in waiting:
            assert isinstance(await soon(task), Problem)


async def test_after_a_problem_the_next_subscriber_asks_anew(polls: Polls) -> None:
    watches = watches_of()
    async with watches.subscribe(E, polls.look) as one:
        polls.answers.put_nowait(AWAY)
        assert await soon(one.next()) == AWAY
        async with watches.subscribe(E, polls.look) as next_one:
            polls.answers.put_nowait(led(3))
            assert await soon(next_one.next()) == led(3)
    assert watches.watched == 0


async def test_a_look_that_fails_fails_all_who_watch(polls: Polls) -> None:
    async with watches_of().subscribe(E, polls.look) as one:
        polls.answers.put_nowait(ZeroDivisionError())
        with pytest.raises(ZeroDivisionError):
            await soon(one.next())


async def test_a_look_that_takes_too_long_is_a_problem(polls: Polls) -> None:
    async with watches_of(look_within=0).subscribe(E, polls.look) as one:
        assert isinstance(await soon(one.next()), Problem)


async def test_too_many_and_too_late_are_refused(polls: Polls) -> None:
    watches = watches_of(quota_of(1))
    async with watches.subscribe(E, polls.look), watches.subscribe(E, polls.look) as refused:
        assert isinstance(await refused.next(), Problem)
        assert watches.count == 1
    async with watches.subscribe(E, polls.look) as one:
        assert isinstance(one, Subscription)
        watches.stop()
    async with watches.subscribe(E, polls.look) as late:
        assert isinstance(await late.next(), Problem)
    assert watches.count == 0
