"""Interleavings of a grant (locks/source_leases.py): between the service's answer, its record, and another
grant's.
"""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from tests.sources.scripted import NAME, Scripted
from tests.support.interleave import Connect

from fencepost.server.locks.source import Capabilities, SourceError, SourceQuarantinedError
from fencepost.server.locks.source_leases import SourceLocks
from fencepost.server.postgres.leases import LockRequest
from fencepost.server.times import SourceTimes, Times
from fencepost.testing.servers.processes import PATIENCE


async def test_a_generation_that_is_raised_under_way_makes_the_grant_void(make: Callable[..., Any]) -> None:
    async with make(slow={"a"}) as stage:
        asking = asyncio.create_task(stage.acquire("a"))
        await stage.service.asked.wait()
        await stage.raised()
        stage.service.slow.clear()
        stage.service.gate.set()
        granted = (await asking).acquired
        assert granted.verdict == "granted"
        assert granted.tokens[0] > 2**48
        assert stage.service.released == ["a#1"], "what was asked for in the generation before is given back"
        assert not stage.quarantined


async def test_a_grant_that_is_recorded_after_its_successors_is_void(make: Callable[..., Any]) -> None:
    """The first grant's gateway was slow to record it; meanwhile it expired, and the lock was granted again."""
    async with make(slow={"a"}) as stage:
        first = asyncio.create_task(stage.acquire("a"))
        await stage.service.asked.wait()
        stage.service.slow.clear()
        second = (await stage.acquire("a")).acquired
        assert (second.verdict, second.tokens) == ("granted", (2,))
        stage.service.gate.set()
        again = (await first).acquired
        assert again.tokens[0] > 2, "never the token of its first grant, which is older than the second's"
        assert "a#1" in stage.service.released
        assert not stage.quarantined, "it was not backwards: nothing above it was known when it was asked for"


async def test_a_number_that_a_restored_service_gives_again_is_recorded_once(make: Callable[..., Any]) -> None:
    """Both grants were asked for when nothing was recorded: neither number is below what was known."""
    async with make(slow={"a"}) as stage:
        first = asyncio.create_task(stage.acquire("a"))
        await stage.service.asked.wait()
        stage.service.slow.clear()
        stage.service.numbers = itertools.count(1)
        assert (await stage.acquire("a")).acquired.tokens == (1,)
        stage.service.gate.set()
        assert (await first).acquired.tokens == (2,)


async def test_what_remains_of_a_repeated_lease_is_read_after_the_service_was_asked(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with make() as stage:
        await stage.acquire("a", secret="mine")

        async def renew(*_: object) -> bool:
            shorter = "UPDATE fencepost.source_leases SET expires_at = expires_at - interval '10 s'"
            return bool(await stage.observer.execute(shorter))

        monkeypatch.setattr(stage.service, "renew", renew)
        again = (await stage.acquire("a", secret="mine")).acquired
        assert (again.verdict, again.due_ms <= 10_000) == ("repeated", True), again


@pytest.mark.parametrize("number", [5, 4])
async def test_a_number_that_is_not_above_what_was_issued_quarantines_the_source(
    make: Callable[..., Any], number: int
) -> None:
    async with make(numbers=itertools.count(5)) as stage:
        assert (await stage.acquire("a")).acquired.tokens == (5,)
        stage.service.numbers = itertools.count(number)
        with pytest.raises(SourceQuarantinedError, match=f"has the token {number}, which is not above all that had"):
            await stage.acquire("b")
        assert f"b#{number}" in stage.service.released
        with pytest.raises(SourceQuarantinedError):
            await stage.acquire("c")
        assert len(stage.quarantined) == 1, "said once"
        await stage.raised()
        assert (await stage.acquire("d")).acquired.tokens[0] > 2**48


async def test_where_numbers_rise_within_a_lock_another_locks_are_not_compared(make: Callable[..., Any]) -> None:
    async with make(capabilities=Capabilities("lock", fair=True, verifies=False), numbers=itertools.count(5)) as stage:
        await stage.acquire("a")
        stage.service.numbers = itertools.count(1)
        assert (await stage.acquire("b")).acquired.tokens == (1,)
        stage.service.numbers = itertools.count(5)
        with pytest.raises(SourceQuarantinedError):
            await stage.acquire("a")


@pytest.mark.parametrize(("minted", "number"), [(0, 7), (50, 40)])
async def test_a_mint_that_repeats_its_grant_or_an_earlier_mint_quarantines_the_source(
    make: Callable[..., Any], minted: int, number: int
) -> None:
    async with make(numbers=itertools.count(5)) as stage:
        granted = (await stage.acquire("a", tokens=3)).acquired
        if minted:
            await stage.locks.mint(granted.lease_id, stage.secret_hash, minted)
        stage.service.numbers = itertools.count(number)
        with pytest.raises(SourceQuarantinedError):
            await stage.locks.mint(granted.lease_id, stage.secret_hash, 1)
        assert len(stage.quarantined) == 1


async def test_a_grant_that_waited_is_judged_by_what_is_known_when_it_came(make: Callable[..., Any]) -> None:
    """The service was restored while it waited: numbers that others were given meanwhile would come again."""
    async with make(Times(sources=SourceTimes(fresh=0)), waits={"a"}) as stage:
        waiting = asyncio.create_task(stage.acquire("a"))
        await stage.service.asked.wait()
        for lock in "bcd":
            await stage.acquire(lock, tokens=3)
        stage.service.numbers = itertools.count(2)
        stage.service.gate.set()
        with pytest.raises(SourceQuarantinedError):
            await waiting
        assert stage.service.released


async def test_a_source_that_could_not_be_registered_is_when_it_is_asked(make: Callable[..., Any]) -> None:
    """At the start the database takes no writes, for example: reads go on (R13, R19)."""
    async with make() as stage:
        locks = SourceLocks("later", "mock", Scripted(), stage.database, failed=stage.troubles.append)
        await stage.observer.execute("ALTER TABLE fencepost.sources RENAME TO away")
        await locks.open()
        assert "not registered yet" in stage.troubles[-1]
        await stage.observer.execute("ALTER TABLE fencepost.away RENAME TO sources")
        wanted = LockRequest(("a",), "later", "me", 20_000)
        attempted = await locks.take(wanted, None, asyncio.get_running_loop().create_future())
        assert attempted.acquired.verdict == "granted"
        await locks.close()


async def test_a_gateway_starts_while_a_grant_holds_the_sources_row(make: Callable[..., Any], connect: Connect) -> None:
    async with make() as stage:
        holder = await connect()
        await holder.execute("BEGIN; SELECT FROM fencepost.sources FOR UPDATE")
        again = SourceLocks(NAME, "mock", Scripted(), stage.database)
        await asyncio.wait_for(again.open(), PATIENCE)
        await again.close()
        await holder.execute("ROLLBACK")


async def test_numbers_without_room_for_a_generation_are_refused(make: Callable[..., Any]) -> None:
    async with make(numbers=itertools.count(2**48)) as stage:
        with pytest.raises(SourceError, match="a token has room for"):
            await stage.acquire("a")
        assert stage.service.released == [f"a#{2**48}"]
        assert await stage.live() == 0
