"""`fencepost release --force`: an operator ends a lease in its holder's place, which is recorded."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest
from tests.support.interleave import Connect, Connection
from tests.support.lease_gateways import Side, open_side
from tests.support.racing import OPERATOR, REASON, STRANGER, operators
from tests.support.servers import command

from fencepost.server.postgres.leases import force_release, hash_secret
from fencepost.testing.servers.processes import PATIENCE


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
    side: Side, observer: Connection, database: str
) -> None:
    holder = await side.acquire("job", secret="holder")
    waiting = await side.wait(observer, "job", secret="waiter")
    done = await command("release", "--force", "job", "--reason", REASON, database=database)
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


async def test_all_locks_of_the_lease_are_free(side: Side, observer: Connection, database: str) -> None:
    await side.acquire("a", "b", secret="holder")
    waiting = await side.wait(observer, "b", secret="waiter")
    assert (await command("release", "--force", "a", "--reason", REASON, database=database)).exit_code == 0
    async with asyncio.timeout(PATIENCE):
        assert (await waiting).verdict == "granted"


async def test_where_no_lease_has_the_lock_nothing_is_done_or_recorded(
    side: Side, observer: Connection, database: str
) -> None:
    released = await side.acquire("released", secret="holder")
    await side.locks.release(released.lease_id or 0, hash_secret("holder"))
    await side.acquire("expired", secret="holder")
    await observer.execute("UPDATE fencepost.leases SET expires_at = clock_timestamp() - interval '1 s'")
    for lock in ("free", "released", "expired"):
        done = await command("release", "--force", lock, "--reason", REASON, database=database)
        assert (done.exit_code, f"no lease of builtin holds {lock}" in done.output) == (1, True), done.output
    assert await recorded(observer) == []


async def test_what_is_missing_is_named_and_nothing_is_done(side: Side, database: str) -> None:
    lease = await side.acquire("job", secret="holder")
    for arguments, said in (
        (("job", "--reason", REASON), "--force"),
        (("--force", "job"), "--reason"),
        (("--force", "job", "--reason", "  "), "a reason is needed"),
        (("--force", "job", "--reason", "x"), "is no reason to break the glass"),
        (("--force", "--reason", REASON), "LOCK"),
    ):
        done = await command("release", *arguments, database=database)
        assert done.exit_code != 0, arguments
        assert said in done.output, arguments
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
