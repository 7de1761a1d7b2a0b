"""`fencepost release --force`: an operator ends a lease in its holder's place, which is recorded."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import asyncpg
import pytest
from click.testing import CliRunner, Result
from tests.support.glass import OPERATOR, REASON, STRANGER, operators
from tests.support.interleave import Connect, Connection
from tests.support.lease_gateways import Side, open_side

from fencepost.cli.main import main
from fencepost.gateway.leases.acquire import hash_secret
from fencepost.storage.leases.forced import force_release
from fencepost.testing.servers.waiting import PATIENCE

Run = Callable[..., Awaitable[Result]]


@pytest.fixture
def run(database: str) -> Run:
    async def run(*arguments: str) -> Result:
        return await asyncio.to_thread(CliRunner().invoke, main, ["release", "--database-url", database, *arguments])

    return run


@pytest.fixture
async def observer(connect: Connect) -> Connection:
    return await connect()


@pytest.fixture
async def side(database: str) -> AsyncIterator[Side]:
    async with open_side(database) as side:
        yield side


async def recorded(observer: Connection) -> list[tuple[object, ...]]:
    rows = await observer.fetch("SELECT name, verb, resource, reason FROM fencepost.break_glass_log")
    return [tuple(row) for row in rows]


async def test_the_lease_is_over_the_next_in_line_has_the_lock_and_it_is_recorded(
    side: Side, observer: Connection, run: Run
) -> None:
    holder = await side.acquire("job", secret="holder")
    waiting = await side.wait(observer, "job", secret="waiter")
    done = await run("--force", "job", "--reason", REASON)
    assert done.exit_code == 0, done.output
    assert "holder" in done.output
    async with asyncio.timeout(PATIENCE):
        assert (await waiting).verdict == "granted"
    assert await side.locks.renew(holder.lease_id or 0, hash_secret("holder"), None) is None
    assert await side.locks.mint(holder.lease_id or 0, hash_secret("holder"), 1) is None
    assert await recorded(observer) == [("builtin", "RELEASE", "job", REASON)]
    lost = await side.locks.find_ended(holder.lease_id or 0)
    assert lost is not None
    assert lost.ended_by == "operator"


async def test_all_locks_of_the_lease_are_free(side: Side, observer: Connection, run: Run) -> None:
    await side.acquire("a", "b", secret="holder")
    waiting = await side.wait(observer, "b", secret="waiter")
    assert (await run("--force", "a", "--reason", REASON)).exit_code == 0
    async with asyncio.timeout(PATIENCE):
        assert (await waiting).verdict == "granted"


async def test_status_shows_it(side: Side, run: Run, database: str) -> None:
    await side.acquire("job", secret="holder")
    assert (await run("--force", "job", "--reason", REASON)).exit_code == 0
    status = await asyncio.to_thread(CliRunner().invoke, main, ["status", "--database-url", database])
    assert "RELEASE" in status.output
    assert REASON in status.output


@pytest.mark.parametrize("state", ["free", "released", "expired"])
async def test_where_no_lease_has_the_lock_nothing_is_done_or_recorded(
    side: Side, observer: Connection, run: Run, state: str
) -> None:
    if state != "free":
        lease = await side.acquire("job", secret="holder")
        if state == "released":
            await side.locks.release(lease.lease_id or 0, hash_secret("holder"))
        else:
            await observer.execute("UPDATE fencepost.leases SET expires_at = clock_timestamp() - interval '1 s'")
    done = await run("--force", "job", "--reason", REASON)
    assert (done.exit_code, "no lease of builtin holds job" in done.output) == (1, True), done.output
    assert await recorded(observer) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("job", "--reason", REASON), "--force"),
        (("--force", "job"), "--reason"),
        (("--force", "job", "--reason", "  "), "a reason is needed"),
        (("--force", "job", "--reason", "x"), "is no reason to break the glass"),
        (("--force", "--reason", REASON), "LOCK"),
    ],
)
async def test_what_is_missing_is_named_and_nothing_is_done(
    side: Side, run: Run, arguments: tuple[str, ...], said: str
) -> None:
    lease = await side.acquire("job", secret="holder")
    done = await run(*arguments)
    assert done.exit_code != 0
    assert said in done.output
    assert await side.locks.renew(lease.lease_id or 0, hash_secret("holder"), None) is not None


async def test_it_is_for_those_who_may_break_the_glass(side: Side, observer: Connection) -> None:
    await side.acquire("job", secret="holder")
    async with operators(observer):
        await observer.execute(f"SET SESSION AUTHORIZATION {STRANGER}")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await force_release(observer, "builtin", "job", REASON)
        await observer.execute(f"SET SESSION AUTHORIZATION {OPERATOR}")
        ended = await force_release(observer, "builtin", "job", REASON)
        assert ended is not None
        assert ended.names == ("job",)


async def test_without_a_reason_in_the_session_the_function_does_nothing(side: Side, observer: Connection) -> None:
    await side.acquire("job", secret="holder")
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="behind broken glass only"):
        await observer.fetch("SELECT * FROM fencepost.force_release('builtin', 'job')")
