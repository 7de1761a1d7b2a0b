"""The counter of the source redis, and its keys, beside other programs."""

import asyncio
import socket
import subprocess
from pathlib import Path

import pytest
from redis.exceptions import ResponseError
from tests.conformance.redis.taking import KEY, LOCK, LONG_MS, Opened, free, take
from tests.conformance.redis_bench import RedisBench, command

from fencepost.server.locks.redis import GRANT
from fencepost.server.locks.source import MOST_NATIVE, Grant, Holder, Source, SourceError, SourceUnavailableError


async def test_who_finds_the_lock_held_or_has_lost_it_draws_no_numbers(bench: RedisBench, source: Source) -> None:
    grant = await take(source, tokens=3)
    assert isinstance(grant, Grant)
    assert isinstance(await take(source, wait_s=0.2), Holder)
    await source.release(LOCK, grant.handle)
    assert await source.mint(LOCK, grant.handle, 5) is None
    assert await command(bench.ports[0], "GET", "fencepost:tokens") == b"3"


async def test_the_last_number_there_is(bench: RedisBench, source: Source) -> None:
    await command(bench.ports[0], "SET", "fencepost:tokens", MOST_NATIVE - 1)
    grant = await take(source)
    assert isinstance(grant, Grant)
    assert grant.tokens == (MOST_NATIVE,)
    with pytest.raises(SourceError, match=f"stands at {MOST_NATIVE + 1}, and tokens are numbers from 1 to"):
        await source.mint(LOCK, grant.handle, 1)
    await source.release(LOCK, grant.handle)
    with pytest.raises(SourceError, match=LOCK):
        await take(source)
    assert await free(source)


async def test_a_counter_without_a_token_grants_nothing(bench: RedisBench, source: Source) -> None:
    for content in ("many", "-5", "9223372036854775807", "1.5"):
        await command(bench.ports[0], "SET", "fencepost:tokens", content)
        with pytest.raises(SourceError, match="fencepost:tokens") as error:
            await take(source, tokens=2)
        assert not isinstance(error.value, SourceUnavailableError)
        assert await free(source)


async def test_numbers_are_drawn_before_the_lock_is_set(bench: RedisBench) -> None:
    """Redis does not roll back a script that fails half way; the source would release the lock, other clients not."""
    await command(bench.ports[0], "SET", "fencepost:tokens", MOST_NATIVE)
    with pytest.raises(ResponseError, match="the counter stands at"):
        await command(bench.ports[0], "EVAL", GRANT, 2, KEY, "fencepost:tokens", "value", LONG_MS, 1)
    assert await command(bench.ports[0], "GET", KEY) is None


async def test_a_counter_of_another_type_is_named(bench: RedisBench, source: Source) -> None:
    await command(bench.ports[0], "RPUSH", "fencepost:tokens", "1")
    for asked in (take(source), source.issued(1)):
        with pytest.raises(SourceError, match="WRONGTYPE") as error:
            await asked
        assert "fencepost:tokens" in str(error.value)
    assert await free(source)


async def test_sources_with_other_prefixes_have_locks_and_tokens_of_their_own(
    bench: RedisBench, source_of: Opened
) -> None:
    one, two = source_of(bench.url), source_of(f"{bench.url}?prefix=other%3A")
    for source in (one, two):
        assert not await source.issued(1)
        grant = await take(source)
        assert isinstance(grant, Grant)
        assert grant.tokens == (1,)
    assert await command(bench.ports[0], "GET", "other:tokens") == b"1"


async def test_a_lock_of_another_program_names_no_owner(bench: RedisBench, source: Source) -> None:
    await command(bench.ports[0], "SET", KEY, "of:another program")
    assert await take(source) == Holder()
    assert await source.inspect(LOCK) == Holder()


async def test_a_program_that_does_as_documented_locks_as_we_do(bench: RedisBench, source: Source) -> None:
    text = (Path(__file__).parents[3] / "docs/sources/redis.md").read_text()
    program = text.partition("```sh\n")[2].partition("```")[0].replace(":6379", f":{bench.ports[0]}")

    async def locked() -> str:
        process = await asyncio.create_subprocess_shell(program, stdout=subprocess.PIPE)
        answer, _ = await process.communicate()
        return answer.decode().strip()

    grant = await source.acquire("nightly", owner="we", ttl_ms=LONG_MS, tokens=4, wait_s=0)
    assert isinstance(grant, Grant)
    assert await locked() == ""
    await source.release("nightly", grant.handle)
    assert await locked() == "5"
    held = await source.acquire("nightly", owner="we", ttl_ms=LONG_MS, tokens=1, wait_s=0)
    assert isinstance(held, Holder)
    assert held.owner == socket.gethostname()
