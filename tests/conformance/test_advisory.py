"""What only `postgres-advisory` has: programs that lock there themselves, sessions that end, poolers, keys."""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from tests.conformance.advisory_bench import AdvisoryBench, pid_of, sourced, taking
from tests.conformance.conftest import ROOT, Asking
from tests.support.interleave import Connection

from fencepost.server.locks.advisory import LEAST_TTL_MS, AdvisorySession
from fencepost.server.locks.source import Grant, Holder, SourceUnavailableError
from fencepost.testing.faults.network import Link
from fencepost.testing.servers.processes import eventually

pytestmark = pytest.mark.parametrize("bench", ["advisory"], indirect=True)

OURS = "SELECT count(*) FROM pg_stat_activity WHERE application_name ~ '^fencepost [0-9a-f]{16}'"
WAITS_FOREVER = """
import asyncio, sys
from fencepost.server.locks.source import SourceContext, make
asyncio.run(make(sys.argv[1], SourceContext("killed", "")).acquire(
    sys.argv[2], owner="killed", ttl_ms=60000, tokens=1, wait_s=60))
"""


@pytest.fixture
async def other(bench: AdvisoryBench) -> AsyncIterator[Connection]:
    """Give a connection of another program, `nightly`."""
    connection = await asyncpg.connect(bench.dsn, server_settings={"application_name": "nightly"})
    yield connection
    connection.terminate()


async def test_a_program_that_locks_there_itself_is_named(ask: Asking, other: Connection, lock: str) -> None:
    await other.execute("SELECT pg_advisory_lock(hashtextextended($1, 0))", lock)
    held = await ask.acquire(lock)
    assert held == Holder(f"nightly (PostgreSQL process {other.get_server_pid()})")
    await other.execute("SELECT pg_advisory_unlock_all()")
    assert isinstance(await ask.acquire(lock), Grant)


async def test_programs_and_gateways_wait_in_one_queue(
    ask: Asking, bench: AdvisoryBench, other: Connection, lock: str
) -> None:
    first = await ask.granted(lock)
    theirs = asyncio.create_task(other.execute("SELECT pg_advisory_lock(hashtextextended($1, 0))", lock))
    await eventually(lambda: bench.waiting(lock), what="the program in the queue")
    ours = asyncio.create_task(ask.granted(lock, wait_s=30))
    await eventually(lambda: two_wait(bench, lock), what="the gateway behind it")
    await ask.source.release(lock, first.handle)
    await theirs
    assert isinstance(await ask.acquire(lock), Holder), "a try does not push ahead of those who wait"
    assert not ours.done()
    await other.execute("SELECT pg_advisory_unlock_all()")
    assert isinstance(await ours, Grant)


async def two_wait(bench: AdvisoryBench, lock: str) -> bool:
    return await bench.waiting(lock) == 2


async def test_a_session_that_an_administrator_ends_is_a_lost_lock(
    ask: Asking, bench: AdvisoryBench, lock: str
) -> None:
    grant = await ask.granted(lock)
    await bench.asked("SELECT pg_terminate_backend($1, 5000)::int", pid_of(grant))
    assert await ask.source.renew(lock, grant.handle, ask.ttl_ms) is False
    assert await ask.source.mint(lock, grant.handle, 1) is None
    assert isinstance(await ask.acquire(lock), Grant)


async def test_another_session_of_the_same_pid_is_not_taken_for_the_holder(
    ask: Asking, other: Connection, lock: str
) -> None:
    await other.execute("SELECT pg_advisory_lock(hashtextextended($1, 0))", lock)
    handle = f"{other.get_server_pid()}:fencepost {'0' * 16}"
    assert await ask.source.renew(lock, handle, ask.ttl_ms) is False
    await ask.source.release(lock, handle)
    assert await other.fetchval("SELECT 1") == 1, "it lives"


async def test_a_hold_stays_while_its_process_runs(ask: Asking, bench: AdvisoryBench, lock: str) -> None:
    ask.ttl_ms = LEAST_TTL_MS
    grant = await ask.granted(lock)
    longer = (
        "SELECT count(*) FROM pg_stat_activity WHERE pid = $1 AND state_change > backend_start + $2 * interval '1ms'"
    )
    await eventually(lambda: bench.asked(longer, pid_of(grant), 2 * LEAST_TTL_MS), what="twice the TTL")
    assert await ask.source.renew(lock, grant.handle, ask.ttl_ms) is True


async def test_a_renewal_may_change_the_ttl(ask: Asking, bench: AdvisoryBench, lock: str) -> None:
    ask.ttl_ms = 6000  # it is asked for again after a third of it
    grant = await ask.granted(lock)
    assert await ask.source.renew(lock, grant.handle, 77_000) is True
    with_new_ttl = "SELECT count(*) FROM pg_stat_activity WHERE pid = $1 AND query LIKE '%idle_session_timeout = 77000'"
    await eventually(lambda: bench.asked(with_new_ttl, pid_of(grant)), what="the new TTL")


async def test_a_killed_processes_waiter_leaves_the_queue(ask: Asking, bench: AdvisoryBench, lock: str) -> None:
    await ask.granted(lock)
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", WAITS_FOREVER, bench.url, lock, cwd=ROOT)
    try:
        await eventually(lambda: bench.waiting(lock), what="the waiter")
    finally:
        process.kill()
        await process.wait()
    await eventually(lambda: queue_is_empty(bench, lock), what="the end of its place")


async def queue_is_empty(bench: AdvisoryBench, lock: str) -> bool:
    return await bench.waiting(lock) == 0


async def test_a_released_lock_is_free_before_its_session_ends(
    ask: Asking, lock: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    grant = await ask.granted(lock)
    really = asyncpg.Connection.close
    seen = []

    async def close(connection: Connection, **how: Any) -> None:
        seen.append(await ask.source.inspect(lock))
        await really(connection, **how)

    monkeypatch.setattr(asyncpg.Connection, "close", close)
    await ask.source.release(lock, grant.handle)
    assert seen == [None]


@pytest.mark.parametrize("times", [1, 2])
async def test_a_waiter_that_is_cancelled_leaves_nothing(
    bench: AdvisoryBench, ask: Asking, lock: str, times: int
) -> None:
    await ask.granted(lock)
    before = await bench.asked(OURS)
    waiter = asyncio.create_task(taking(ask.source, lock, wait_s=30))
    await eventually(lambda: bench.waiting(lock), what="the waiter")
    for _ in range(times):
        waiter.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert times > 1 or await bench.waiting(lock) == 0, "it has left when the cancellation returns"
    await eventually(lambda: as_many(bench, before), what="the end of its session")


async def test_a_connection_that_breaks_with_the_grant_is_no_grant(
    bench: AdvisoryBench, lock: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = AdvisorySession.ask

    async def broken(session: AdvisorySession, statement: str, *arguments: Any) -> Any:
        answer = await really(session, statement, *arguments)
        session.connection.terminate()
        return answer

    source = sourced(bench.url, "?sessions=1")
    with monkeypatch.context() as patch:
        patch.setattr(AdvisorySession, "ask", broken)
        with pytest.raises(SourceUnavailableError, match="broke"):
            await taking(source, lock)
    assert isinstance(await taking(source, lock), Grant), "it counts no more"
    await source.close()


async def test_a_session_that_could_not_be_opened_counts_no_more(bench: AdvisoryBench, lock: str) -> None:
    with Link.to(bench.url) as link:
        source = sourced(link.url, "?sessions=1")
        assert await source.inspect(lock) is None
        link.lead_to(link.host, 1, hang_up=False)  # where nobody listens; what is open stays
        with pytest.raises(SourceUnavailableError, match="cannot"):
            await taking(source, lock)
        link.lead_to(link.host, bench.port, hang_up=False)
        assert isinstance(await taking(source, lock), Grant)
        await source.close()


async def test_another_databases_lock_of_the_same_key_is_another_lock(
    ask: Asking, bench: AdvisoryBench, lock: str
) -> None:
    elsewhere = await asyncpg.connect(bench.server.url)
    await elsewhere.execute("SELECT pg_advisory_lock(hashtextextended($1, 0))", lock)
    grant = await ask.granted(lock)
    await ask.source.release(lock, grant.handle)
    assert await ask.source.inspect(lock) is None
    await elsewhere.close()


@pytest.mark.parametrize(
    ("failure", "wait_s"), [(asyncio.CancelledError(), 0), (ConnectionResetError("cut"), 5), (TimeoutError(), 0)]
)
async def test_a_grant_whose_answer_was_lost_is_given_back(
    ask: Asking, bench: AdvisoryBench, lock: str, monkeypatch: pytest.MonkeyPatch, failure: BaseException, wait_s: float
) -> None:
    before = await bench.asked(OURS)
    really = AdvisorySession.ask

    async def lost(session: AdvisorySession, statement: str, *arguments: Any) -> Any:
        answer = await really(session, statement, *arguments)
        if "pg_try_advisory_lock" in statement or "pg_advisory_lock" in statement:
            assert isinstance(await ask.source.inspect(lock), Holder), "it was granted"
            raise failure
        return answer

    monkeypatch.setattr(AdvisorySession, "ask", lost)
    expected = asyncio.CancelledError if isinstance(failure, asyncio.CancelledError) else SourceUnavailableError
    with pytest.raises(expected):
        await ask.acquire(lock, wait_s=wait_s)
    assert await ask.source.inspect(lock) is None
    assert await bench.asked(OURS) == before


async def test_nothing_is_left_of_waiters_and_holds(bench: AdvisoryBench, lock: str) -> None:
    before = await bench.asked(OURS)
    source = sourced(bench.url)
    grant = await taking(source, lock)
    assert isinstance(grant, Grant)
    assert isinstance(await taking(source, lock), Holder)
    assert isinstance(await taking(source, lock, wait_s=0.1), Holder)
    assert await bench.asked(OURS) == before + 1, "the hold's"
    await source.release(lock, grant.handle)
    await eventually(lambda: as_many(bench, before), what="the end of its session")
    await taking(source, lock)
    await source.close()
    await eventually(lambda: as_many(bench, before), what="the end of all sessions")


async def as_many(bench: AdvisoryBench, sessions: int) -> bool:
    return await bench.asked(OURS) == sessions


async def test_any_owner_is_reported_exactly_up_to_what_postgresql_keeps(ask: Asking, lock: str) -> None:
    for number, owner in enumerate(["*/ DROP ROLE locker; /*", "'\"\\", "", "ö" * 60, "o" * 300]):
        await ask.granted(f"{lock}/{number}", owner=owner)
        assert await ask.source.inspect(f"{lock}/{number}") == Holder(owner)
    await ask.granted(lock, owner="ö" * 1000)
    assert await ask.source.inspect(lock) == Holder("ö" * 60)


async def test_where_statements_are_not_shown_the_sessions_name_shows_the_owner(
    ask: Asking, bench: AdvisoryBench, lock: str
) -> None:
    await setting(bench, "ALTER SYSTEM SET track_activities = off", "off")
    try:
        grant = await ask.granted(lock, owner="worker-ä")
        assert await ask.source.inspect(lock) == Holder("worker-??"[:-1])
        assert await ask.source.renew(lock, grant.handle, ask.ttl_ms) is True
        assert any("track_activities" in advice for advice in await ask.source.advice())
    finally:
        await setting(bench, "ALTER SYSTEM RESET track_activities", "on")


async def setting(bench: AdvisoryBench, statement: str, value: str) -> None:
    admin = await asyncpg.connect(bench.server.url)
    try:
        await admin.execute(statement)
        await admin.execute("SELECT pg_reload_conf()")
    finally:
        await admin.close()

    async def loaded() -> bool:
        return bool(await bench.asked("SELECT (current_setting('track_activities') = $1)::int", value))

    await eventually(loaded, what="the new setting")
