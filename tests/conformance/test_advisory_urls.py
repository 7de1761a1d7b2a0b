"""`postgres-advisory`: which keys names mean, which URLs are refused, and what is not PostgreSQL's primary itself."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest
from tests.conformance.advisory_bench import AdvisoryBench, pid_of, sourced, taking
from tests.conformance.conftest import Asking
from tests.support.interleave import Connection
from tests.support.postgres import pooled

from fencepost.server.locks.advisory import AdvisorySource
from fencepost.server.locks.source import Grant, Holder, SourceError, SourceUnavailableError
from fencepost.testing.servers.postgres import replicated
from fencepost.testing.servers.processes import eventually

on_its_server = pytest.mark.parametrize("bench", ["advisory"], indirect=True)


@pytest.fixture
async def other(bench: AdvisoryBench) -> AsyncIterator[Connection]:
    """Give a connection of another program."""
    connection = await asyncpg.connect(bench.dsn)
    yield connection
    connection.terminate()


@pytest.fixture
async def numbers(bench: AdvisoryBench) -> AsyncIterator[AdvisorySource]:
    """Give a source whose locks' names are advisory keys."""
    source = sourced(bench.url, "?keys=number")
    yield source
    await source.close()


CALLS = {
    "12345": "12345",
    "-5": "-5",
    "9223372036854775807": "9223372036854775807",
    "-9223372036854775808": "-9223372036854775808",
    "7,42": "7, 42",
    "-7,-2147483648": "-7, '-2147483648'::int",
    "0,42": "0, 42",
    str(2**32 + 42): str(2**32 + 42),
    "42": "42",
}
NO_KEYS = [
    *("orders/1", "9223372036854775808", "07", "-0", "1,2,3", "1, 2", "1,2147483648", "+1", "1_0", "\u0661", "", "1\n")
]


@on_its_server
async def test_with_keys_number_a_name_is_the_key_and_other_names_are_refused(
    numbers: AdvisorySource, other: Connection
) -> None:
    grants = {lock: await taking(numbers, lock) for lock in CALLS}
    for lock, key in CALLS.items():
        grant = grants[lock]
        assert isinstance(grant, Grant), "one number and two are different keys"
        assert await numbers.renew(lock, grant.handle, 60_000) is True
        assert await other.fetchval(f"SELECT pg_try_advisory_lock({key})") is False
        await numbers.release(lock, grant.handle)
        assert await other.fetchval(f"SELECT pg_try_advisory_lock({key})") is True
        assert isinstance(await taking(numbers, lock), Holder)
    for lock in NO_KEYS:
        with pytest.raises(SourceError, match="is no number") as error:
            await taking(numbers, lock)
        assert lock in str(error.value)


@on_its_server
async def test_a_process_opens_no_more_sessions_than_allowed(bench: AdvisoryBench, lock: str) -> None:
    source = sourced(bench.url, "?sessions=2")
    try:
        held = await taking(source, f"{lock}/1")
        waiter = asyncio.create_task(taking(source, f"{lock}/1", wait_s=30))
        await eventually(lambda: bench.waiting(f"{lock}/1"), what="the waiter")
        with pytest.raises(SourceUnavailableError, match="sessions="):
            await taking(source, f"{lock}/2")
        assert isinstance(await taking(source, f"{lock}/1"), Holder), "who only asks needs none"
        assert isinstance(held, Grant)
        await source.release(f"{lock}/1", held.handle)
        assert isinstance(await waiter, Grant)
        second = await taking(source, f"{lock}/2")
        assert isinstance(second, Grant)
        await bench.asked("SELECT pg_terminate_backend($1, 5000)::int", pid_of(second))
        await eventually(lambda: may_open_one(source, f"{lock}/3"), what="an ended session counts no more")
    finally:
        await source.close()


async def may_open_one(source: AdvisorySource, lock: str) -> bool:
    try:
        return isinstance(await taking(source, lock), Grant)
    except SourceUnavailableError:
        return False


@on_its_server
async def test_a_standby_is_refused(bench: AdvisoryBench) -> None:
    async with replicated(bench.server.bin_dir) as pair:
        source = sourced(pair.standby.url.replace("postgresql", "postgres-advisory"))
        with pytest.raises(SourceUnavailableError, match="standby"):
            await taking(source, "a")
        await source.close()


@on_its_server
@pytest.mark.parametrize(("mode", "ignored"), [("transaction", False), ("session", True)])
async def test_a_pooler_is_refused(bench: AdvisoryBench, mode: str, ignored: bool) -> None:
    async with pooled(bench.dsn, mode, ignored=ignored) as url:
        source = sourced(url.replace("postgresql", "postgres-advisory"))
        with pytest.raises(SourceError, match="pooler") as error:
            await taking(source, "a")
        assert not isinstance(error.value, SourceUnavailableError), "trying again would not help"
        with pytest.raises(SourceError, match="pooler"):
            await source.advice()
        await source.close()


@on_its_server
async def test_advice_and_what_is_refused(ask: Asking, bench: AdvisoryBench, lock: str) -> None:
    assert await ask.source.advice() == []
    crowded = sourced(bench.url, "?sessions=100")
    assert "max_connections is 100" in "".join(await crowded.advice())
    await crowded.close()
    with pytest.raises(SourceError, match="handle"):
        await ask.source.renew("a", "694d8f3c5d6a1b0c", 1000)
    with pytest.raises(SourceError) as error:
        await taking(sourced(bench.url.replace("p%40ss", "s3cret")), "a")
    assert "s3cret" not in str(error.value)
    assert not isinstance(error.value, SourceUnavailableError)
    of_the_gateway = sourced("postgres-advisory:", "?keys=hash&sessions=3", bench.dsn)
    assert isinstance(await taking(of_the_gateway, lock), Grant)
    await of_the_gateway.close()
