"""What only `postgres-advisory` has: programs that lock there themselves, sessions that end, poolers, keys."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import asyncpg
import httpx
import pytest
from tests.conformance.benches import AdvisoryBench, pid_of, sourced, taking
from tests.conformance.conftest import ROOT, Asking
from tests.support.gateways import serving
from tests.support.interleave import Connect, Connection, connection_to, start
from tests.support.postgres import pooled
from tests.support.servers import until

from fencepost.server.locks.advisory import LEAST_TTL_MS, AdvisorySession, AdvisorySource
from fencepost.server.locks.source import Grant, Holder, SourceError, SourceUnavailableError
from fencepost.server.ops.protect import protect
from fencepost.testing.faults.network import Link
from fencepost.testing.servers.postgres import replicated
from fencepost.testing.servers.processes import eventually


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "bench" in metafunc.fixturenames:
        metafunc.definition.add_marker(pytest.mark.parametrize("bench", ["advisory"], indirect=True))


OURS = "SELECT count(*) FROM pg_stat_activity WHERE application_name ~ '^fencepost [0-9a-f]{16}'"


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


async def test_a_session_that_an_operator_ends_is_a_lost_lock(ask: Asking, bench: AdvisoryBench, lock: str) -> None:
    grant = await ask.granted(lock)
    await bench.asked("SELECT pg_terminate_backend($1, 5000)::int", pid_of(grant))
    assert await ask.source.renew(lock, grant.handle, ask.ttl_ms) is False
    assert await ask.source.mint(lock, grant.handle, 1) is None
    assert isinstance(await ask.acquire(lock), Grant)


async def test_another_session_of_a_pid_is_not_taken_for_the_holder(ask: Asking, other: Connection, lock: str) -> None:
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
    waits_forever = dedent("""
        import asyncio, sys
        from fencepost.server.locks.source import SourceContext, make
        asyncio.run(make(sys.argv[1], SourceContext("killed", "")).acquire(
            sys.argv[2], owner="killed", ttl_ms=60000, tokens=1, wait_s=60))
    """)
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", waits_forever, bench.url, lock, cwd=ROOT)
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
async def test_a_cancelled_waiter_leaves_nothing(bench: AdvisoryBench, ask: Asking, lock: str, times: int) -> None:
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


async def test_another_databases_lock_of_the_key_is_another_lock(ask: Asking, bench: AdvisoryBench, lock: str) -> None:
    async with connection_to(bench.server.url) as elsewhere:
        await elsewhere.execute("SELECT pg_advisory_lock(hashtextextended($1, 0))", lock)
        grant = await ask.granted(lock)
        await ask.source.release(lock, grant.handle)
        assert await ask.source.inspect(lock) is None


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
    async with connection_to(bench.server.url) as admin:
        await admin.execute(statement)
        await admin.execute("SELECT pg_reload_conf()")
    await eventually(
        lambda: bench.asked("SELECT (current_setting('track_activities') = $1)::int", value), what="the new setting"
    )


# `postgres-advisory`: which keys names mean, which URLs are refused, and what is not PostgreSQL's primary itself.


@pytest.fixture
async def other_program(bench: AdvisoryBench) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(bench.dsn)
    yield connection
    connection.terminate()


@pytest.fixture
async def numbers(bench: AdvisoryBench) -> AsyncIterator[AdvisorySource]:
    """Give a source whose locks' names are advisory keys."""
    source = sourced(bench.url, "?keys=number")
    yield source
    await source.close()


async def test_with_keys_number_a_name_is_the_key_and_other_names_are_refused(
    numbers: AdvisorySource, other_program: Connection
) -> None:
    calls = {
        "12345": "12345", "-5": "-5", "9223372036854775807": "9223372036854775807",
        "-9223372036854775808": "-9223372036854775808", "7,42": "7, 42", "-7,-2147483648": "-7, '-2147483648'::int",
        "0,42": "0, 42", str(2**32 + 42): str(2**32 + 42), "42": "42",
    }  # fmt: skip
    grants = {lock: await taking(numbers, lock) for lock in calls}
    for lock, key in calls.items():
        grant = grants[lock]
        assert isinstance(grant, Grant), "one number and two are different keys"
        assert await numbers.renew(lock, grant.handle, 60_000) is True
        assert await other_program.fetchval(f"SELECT pg_try_advisory_lock({key})") is False
        await numbers.release(lock, grant.handle)
        assert await other_program.fetchval(f"SELECT pg_try_advisory_lock({key})") is True
        assert isinstance(await taking(numbers, lock), Holder)
    no_keys = [
        *(
            "orders/1", "9223372036854775808", "07", "-0", "1,2,3", "1, 2", "1,2147483648", "+1", "1_0", "\u0661", "",
            "1\n",
        )
    ]  # fmt: skip
    for lock in no_keys:
        with pytest.raises(SourceError, match="is no number") as error:
            await taking(numbers, lock)
        assert lock in str(error.value)


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


async def test_a_standby_is_refused(bench: AdvisoryBench) -> None:
    async with replicated(bench.server.bin_dir) as pair:
        source = sourced(pair.standby.url.replace("postgresql", "postgres-advisory"))
        with pytest.raises(SourceUnavailableError, match="standby"):
            await taking(source, "a")
        await source.close()


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


# docs/recipes/row-locks.md and docs/sources/postgres-advisory.md: their SQL runs. On real PostgreSQLs.

_RECIPE = re.compile(r"^<!-- recipe: ([\w-]+) -->\n```sql\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def recipes_of(page: Path) -> dict[str, str]:
    """Return the SQL blocks of a page by their names."""
    return dict(_RECIPE.findall(page.read_text("utf-8")))


RECIPES = recipes_of(ROOT / "docs" / "recipes" / "row-locks.md")
ADVISORY = recipes_of(ROOT / "docs" / "sources" / "postgres-advisory.md")


@pytest.fixture
async def jobs(connect: Connect) -> Connection:
    """Make the page's tables, and a protected one to write to. Gives a connection that locks nothing."""
    observer = await connect()
    await observer.execute(RECIPES["jobs"])
    await observer.execute(RECIPES["sequence"])
    await observer.execute("CREATE TABLE orders (order_id text PRIMARY KEY, status text NOT NULL)")
    await observer.execute("INSERT INTO orders VALUES ('order-123', 'new')")
    await protect(observer, "orders", source="external")
    return observer


@pytest.fixture
def gateway(jobs: Connection, database: str) -> Iterator[httpx.Client]:  # noqa: ARG001 - its tables have to be there
    """Run a gateway on the page's database; a write waits 0.3 s for a row."""
    with serving(database, lock_timeout=0.3) as url, httpx.Client(base_url=url, trust_env=False) as client:
        yield client


async def draw(connection: Connection, recipe: str) -> int:
    """Run a recipe statement by statement; returns the number that it draws."""
    drawn = 0
    for statement in RECIPES[recipe].strip().splitlines():
        answer = await connection.fetchval(statement)
        drawn = answer if isinstance(answer, int) else drawn
    return drawn


async def cut(connection: Connection, by: Connection) -> None:
    """End the connection's session, as a server does with one that it has given up, and return once it is gone."""
    await by.fetchval("SELECT pg_terminate_backend($1, 5000)", connection.get_server_pid())
    await until(connection.is_closed, what="the end of the connection")


def write(gateway: httpx.Client, token: int, status: str) -> httpx.Response:
    return gateway.patch("/v1/data/orders/order-123", json={"status": status}, headers={"X-Fence-Token": str(token)})


async def test_in_one_transaction_lock_and_writes_end_together(connect: Connect, jobs: Connection) -> None:
    first, second = await connect(), await connect()
    await first.execute("BEGIN")
    lock = "SELECT state FROM jobs WHERE name = 'ship order-123' FOR UPDATE"
    await first.fetchval(lock)
    await first.execute("UPDATE jobs SET state = 'first'")
    waiting = await start(jobs, second.fetchval(lock), second.get_server_pid())
    assert not waiting.done()
    await cut(first, by=jobs)
    assert await waiting == "new", "nothing of the first one's is there"
    with pytest.raises(asyncpg.InterfaceError, match="connection is closed"):
        await first.execute("UPDATE jobs SET state = 'late'")
    assert await jobs.fetchval("SELECT state FROM jobs") == "new"


@pytest.mark.parametrize("recipe", ["draw", "draw-and-keep"])
async def test_who_lost_the_lock_is_refused_by_http(
    connect: Connect, jobs: Connection, gateway: httpx.Client, recipe: str
) -> None:
    first, second = await connect(), await connect()
    earlier = await draw(first, recipe)
    await cut(first, by=jobs)
    later = await draw(second, recipe)
    assert (earlier, later) == (1, 2)
    assert write(gateway, later, "shipped").status_code == 200
    late = write(gateway, earlier, "cancelled")
    assert (late.status_code, late.json()["code"]) == (409, "FP001")
    assert await jobs.fetchval("SELECT status FROM orders") == "shipped"


async def draw_under_an_advisory_lock(connection: Connection) -> int:
    """Take the lock and draw, a statement at a time; returns the number."""
    lock, number = ADVISORY["draw"].strip().splitlines()
    await connection.execute(lock)
    drawn: int = await connection.fetchval(number)
    return drawn


async def test_the_number_under_an_advisory_lock_rises_and_who_lost_the_lock_draws_no_more(connect: Connect) -> None:
    observer, first, second = await connect(), await connect(), await connect()
    await observer.execute(ADVISORY["fences"])
    assert await draw_under_an_advisory_lock(first) == 1
    waiting = await start(observer, draw_under_an_advisory_lock(second), second.get_server_pid())
    assert not waiting.done()
    await cut(first, by=observer)
    assert await waiting == 2
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        await draw_under_an_advisory_lock(first)
    assert await observer.fetchval("SELECT fence FROM fences") == 2
