"""Answers of Redis that get lost or come late, and acquires that are cancelled."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.conformance.redis.taking import LOCK, Opened, free, take
from tests.conformance.redis_bench import RedisBench, command
from tests.support.postgres import cutting_proxy

from fencepost.server.locks.redis import AT_ONCE
from fencepost.server.locks.source import Grant, Holder, Source, SourceUnavailableError
from fencepost.testing.servers.processes import PATIENCE, eventually


async def test_a_grant_whose_answer_got_lost_is_given_back(
    bench: RedisBench, source: Source, source_of: Opened
) -> None:
    async with cutting_proxy(bench.url) as (proxy, url):
        cut = source_of(url)
        await cut.inspect(LOCK)  # it is connected
        proxy.mute_after = b"INCRBY"
        acquiring = asyncio.create_task(take(cut))
        await proxy.muted.wait()
        await eventually(lambda: source.inspect(LOCK), what="the grant whose answer is held back")
        proxy.mute_after = None
        proxy.cut_all()
        with pytest.raises(SourceUnavailableError):
            await acquiring
        await eventually(lambda: free(source), what="its release")


async def test_an_acquire_that_gets_no_answer_ends_in_time(bench: RedisBench, source_of: Opened) -> None:
    async with cutting_proxy(bench.url) as (proxy, url):
        cut = source_of(url)
        await cut.inspect(LOCK)
        proxy.mute_after = b"INCRBY"
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(
                SourceUnavailableError, match=f"did not answer within 3 s when asked for the lock {LOCK}"
            ):
                await take(cut)
        proxy.mute_after = None


@asynccontextmanager
async def sent(bench: RedisBench, source_of: Opened) -> AsyncIterator[tuple[Source, "asyncio.Task[Grant | Holder]"]]:
    """Give an acquire that was sent to a Redis that is stopped, and its source."""
    async with cutting_proxy(bench.url) as (proxy, url):
        source = source_of(url)
        await source.inspect(LOCK)
        await bench.pause()
        proxy.mute_after, proxy.mute_skips = b"INCRBY", 1  # only to know that it has been sent
        acquiring = asyncio.create_task(take(source))
        await eventually(lambda: _is(proxy.mute_skips == 0), what="the request")
        proxy.mute_after = None
        yield source, acquiring


async def test_an_acquire_that_is_cancelled_before_its_answer_releases_what_it_was_granted(
    bench: RedisBench, source: Source, source_of: Opened
) -> None:
    async with sent(bench, source_of) as (_, acquiring):
        acquiring.cancel()
        await asyncio.sleep(0)
        await bench.resume()
        with pytest.raises(asyncio.CancelledError):
            await acquiring
        assert await free(source)
        assert await command(bench.ports[0], "GET", "fencepost:tokens") == b"1", "it had been granted"


async def _is(what: bool) -> bool:
    return what


async def test_an_acquire_that_is_cancelled_twice_releases_all_the_same(
    bench: RedisBench, source: Source, source_of: Opened
) -> None:
    async with sent(bench, source_of) as (other, acquiring):
        acquiring.cancel()
        await asyncio.wait([acquiring], timeout=0.1)
        acquiring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await acquiring
        await bench.resume()
        await other.close()  # waits for what goes on behind the caller's back
    assert await free(source)
    assert await command(bench.ports[0], "GET", "fencepost:tokens") == b"1", "it had been granted"


async def test_requests_that_are_cancelled_leave_neither_answers_nor_connections_taken(source: Source) -> None:
    await take(source)
    for round_trips in range(6):
        asking = [asyncio.create_task(source.inspect(LOCK)) for _ in range(2 * AT_ONCE)]
        for _ in range(round_trips):
            await asyncio.sleep(0)
        await asyncio.wait(asking, timeout=0.002 * round_trips)
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        holders = await asyncio.gather(*(source.inspect(f"other-{number}") for number in range(2 * AT_ONCE)))
        assert holders == [None] * (2 * AT_ONCE)
