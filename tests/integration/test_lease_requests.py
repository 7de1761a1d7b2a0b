"""Requests for leases: whose they are, shares of places, withdrawal, and release by force."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast
from unittest.mock import Mock

import asyncpg
import pytest
from tests.integration.test_lease_claims import ask, asking, lease
from tests.races.test_leases import granted
from tests.support.asking import asked_by
from tests.support.gateways import in_process
from tests.support.interleave import Connect, Connection, start
from tests.support.lease_gateways import HOUR, Side, open_side
from tests.support.lease_racing import wanted
from tests.support.manual_clock import ManualClock
from tests.support.postgres import Unmade
from tests.support.racing import OPERATOR, REASON, STRANGER, open_race, operators
from tests.support.servers import command
from tests.support.use_cases import open_gateway

from fencepost.server.fence.caller import Caller
from fencepost.server.fence.problem_types import LEASE_LOST, LOCK_FORBIDDEN
from fencepost.server.fence.problems import Problem
from fencepost.server.gateway import group_commit
from fencepost.server.gateway.election import Election
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.group_commit import BatchedLocks, Broken, GroupCommit
from fencepost.server.gateway.leases import elections, inspect, locks, mint, observe, release, renew, watch_election
from fencepost.server.locks.builtin import Queue
from fencepost.server.locks.leases import LeaseLimits
from fencepost.server.locks.source_leases import SourceLocks
from fencepost.server.postgres import leases as builtin
from fencepost.server.postgres import sources
from fencepost.server.postgres.connection import Limits
from fencepost.server.postgres.database import Database
from fencepost.server.postgres.errors import OutcomeUnknownError, UnavailableError
from fencepost.server.postgres.leases import (
    Granted,
    Held,
    LeaseId,
    LeaseRow,
    LockRequest,
    Withdrawal,
    Withdrawn,
    force_release,
    hash_secret,
    withdraw,
)
from fencepost.server.postgres.sources import GrantRecord
from fencepost.server.times import TIMES, Times
from fencepost.testing.servers.processes import PATIENCE, eventually

# A lease belongs to the caller that acquired it, and callers see and take only locks that their patterns name.

SECRET = "0123456789abcdef0123456789abcdef"
ANN, BOB = Caller("jwt:issuer|ann"), Caller("jwt:issuer|bob")
ORDERS = Caller("key:orders", locks=("orders/*",))


@pytest.fixture
async def gateway(connect: Connect, unmade: Unmade) -> AsyncIterator[Gateway]:
    race = await open_race(connect, unmade)
    async with open_gateway(race.dsn) as gateway:
        yield gateway


def code(answer: object) -> str | None:
    return answer.name if isinstance(answer, Problem) else None


VERBS: dict[str, Callable[[Gateway, LeaseId], Awaitable[object]]] = {
    "renew": lambda gateway, lease_id: renew(gateway, lease_id, SECRET, None),
    "mint": lambda gateway, lease_id: mint(gateway, lease_id, SECRET, 1),
    "release": lambda gateway, lease_id: release(gateway, lease_id, SECRET),
}


async def test_the_secret_of_a_lease_is_of_no_use_to_another_caller(gateway: Gateway) -> None:
    granted = await lease(gateway.of(ANN), asking("job", secret=SECRET))
    for verb, use in VERBS.items():
        assert code(await use(gateway.of(BOB), granted.lease.id)) == LEASE_LOST.code, verb
        assert code(await use(gateway, granted.lease.id)) == LEASE_LOST.code, "no caller is another caller, too"
        assert isinstance(await inspect(gateway.of(ANN), granted.lease.id), LeaseRow), "it lives"
        assert code(await use(gateway.of(ANN), granted.lease.id)) is None, verb


async def test_an_acquire_is_repeated_only_by_its_own_caller(gateway: Gateway) -> None:
    granted = await lease(gateway.of(ANN), asking("job", secret=SECRET))
    assert (await lease(gateway.of(ANN), asking("job", secret=SECRET))).lease.id == granted.lease.id
    assert code(await ask(gateway.of(BOB), asking("job", secret=SECRET))) == "FP011", "it is held"


async def test_a_name_that_ends_where_a_secret_begins_is_another_caller(gateway: Gateway) -> None:
    """The hash is of both texts: moving the border between them makes another one."""
    granted = await lease(gateway.of(Caller("ab")), asking("job", secret="c" + SECRET))
    assert code(await renew(gateway.of(Caller("abc")), granted.lease.id, SECRET, None)) == LEASE_LOST.code


async def test_locks_are_taken_by_pattern(gateway: Gateway) -> None:
    mine = gateway.of(ORDERS)
    assert isinstance(await ask(mine, asking("orders/1", secret=SECRET)), Granted)
    refused = await ask(mine, asking("orders/2", "payments/1", secret=SECRET[::-1]))
    assert isinstance(refused, Problem)
    assert (refused.type, refused.extra["lock"]) == (LOCK_FORBIDDEN, "payments/1")
    seen = await locks(gateway, "builtin", None, None, 10)
    assert isinstance(seen, list)
    assert [state.name for state in seen] == ["orders/1"], "nothing was taken of what is refused in part"


async def test_locks_are_seen_by_pattern(gateway: Gateway) -> None:
    other = await lease(gateway, asking("payments/1", secret=SECRET))
    await lease(gateway, asking("orders/1", secret=SECRET[::-1]))
    mine = gateway.of(ORDERS)
    seen = await locks(mine, "builtin", None, None, 10)
    assert isinstance(seen, list)
    assert [state.name for state in seen] == ["orders/1"]
    assert code(await locks(mine, "builtin", "payments/1", None, 1)) == LOCK_FORBIDDEN.code
    assert code(await inspect(mine, other.lease.id)) == LEASE_LOST.code
    hidden, unknown = await inspect(mine, other.lease.id), await inspect(mine, LeaseId("builtin", 10**9))
    assert isinstance(hidden, Problem)
    assert isinstance(unknown, Problem)
    assert hidden.detail.replace(str(other.lease.id), "N") == unknown.detail.replace(str(10**9), "N")


async def test_a_lost_lease_does_not_name_a_successor_that_the_caller_may_not_see(gateway: Gateway) -> None:
    both = gateway.of(Caller("key:jobs", locks=("job",)))
    first = await lease(both, asking("job", secret=SECRET))
    assert await release(both, first.lease.id, SECRET) is None
    await lease(gateway, asking("job", "payments/1", secret=SECRET[::-1]))
    lost = await inspect(both, first.lease.id)
    assert isinstance(lost, Problem)
    assert "superseded_by" not in lost.extra
    assert "payments" not in lost.detail
    full = await inspect(gateway, first.lease.id)
    assert isinstance(full, Problem)
    assert "payments" in full.detail, "others see it"


async def test_patterns_that_a_caller_has_no_more_count_for_its_leases_too(gateway: Gateway) -> None:
    granted = await lease(gateway.of(Caller("key:a", locks=("job", "orders/*"))), asking("job", secret=SECRET))
    narrowed, all_again = gateway.of(Caller("key:a", locks=("orders/*",))), gateway.of(Caller("key:a", locks=("job",)))
    for verb in ("renew", "mint"):
        assert code(await VERBS[verb](narrowed, granted.lease.id)) == LEASE_LOST.code, verb
        assert code(await VERBS[verb](all_again, granted.lease.id)) is None, verb
    assert code(await VERBS["release"](narrowed, granted.lease.id)) is None


async def test_elections_are_seen_by_pattern(gateway: Gateway) -> None:
    for name in ("eu", "us"):
        await lease(gateway, asking(f"election/{name}", secret=SECRET + name))
    mine = gateway.of(Caller("key:eu", locks=("election/eu",)))
    assert isinstance(await observe(mine, "builtin", "eu"), Election)
    assert code(await observe(mine, "builtin", "us")) == LOCK_FORBIDDEN.code
    listed = await elections(mine, "builtin", "", 10)
    assert isinstance(listed, list)
    assert [election.name for election in listed] == ["eu"]
    async with watch_election(mine, "builtin", "us", "ann") as watched:
        assert code(watched) == LOCK_FORBIDDEN.code


async def test_a_wait_for_a_lock_ends_with_the_callers_token(gateway: Gateway) -> None:
    await lease(gateway, asking("job", secret=SECRET))
    ends = asyncio.get_running_loop().time() + 0.3
    waiting = ask(gateway.of(Caller("jwt:issuer|ann", ends=ends)), asking("job", secret=SECRET[::-1], wait_ms=60_000))
    async with asyncio.timeout(PATIENCE):
        assert code(await waiting) == "FP011"


# Renewals of one caller go on while another one asks about very many leases.

MADE_UP = LeaseId("other", 2**47 + 999)
SHARED_SECRET, BOBS = "ann-" * 8, "bob-" * 8
HELD = "SELECT FROM fencepost.leases WHERE lease_id = {} FOR UPDATE"
OF_SOURCES = "LOCK TABLE fencepost.source_leases IN ACCESS EXCLUSIVE MODE"


# What keeps them waiting in PostgreSQL, and what they ask.
@pytest.mark.parametrize(
    ("keeps_waiting", "attack"),
    [
        pytest.param(HELD, lambda gateway, held: renew(gateway, held, SHARED_SECRET, None), id="renew"),
        pytest.param(HELD, lambda gateway, held: mint(gateway, held, SHARED_SECRET, 1), id="mint"),
        pytest.param(HELD, lambda gateway, held: release(gateway, held, SHARED_SECRET), id="release"),
        pytest.param(
            OF_SOURCES, lambda gateway, _: renew(gateway, MADE_UP, SHARED_SECRET, None), id="renew of a source"
        ),
        pytest.param(OF_SOURCES, lambda gateway, _: release(gateway, MADE_UP, SHARED_SECRET), id="release of a source"),
    ],
)
async def test_who_asks_about_very_many_leases_leaves_a_connection_to_others(
    connect: Connect,
    database: str,
    keeps_waiting: str,
    attack: Callable[[Gateway, LeaseId], Coroutine[Any, Any, object]],
) -> None:
    holder, observer = await connect(), await connect()
    async with open_gateway(database, lease_pool_size=3) as opened:
        other = SourceLocks("other", "etcd", cast("Any", None), opened.database)
        gateway = replace(opened, sources={"other": other})
        anns = await lease(gateway, asking("anns", secret=SHARED_SECRET))
        bobs = await lease(gateway, asking("bobs", secret=BOBS))

        async def waiting() -> bool:
            """Two connections are the share of a caller."""
            found: int = await observer.fetchval(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
            return found > 1

        async with holder.transaction():
            await holder.execute(keeps_waiting.format(anns.lease.id.number))
            asked = [asked_by("ann", attack(gateway, anns.lease.id)) for _ in range(12)]
            await eventually(waiting, what="requests that wait in PostgreSQL")
            renewed = await asyncio.wait_for(asked_by("bob", renew(gateway, bobs.lease.id, BOBS, None)), PATIENCE)
            assert isinstance(renewed, LeaseRow)
            assert not any(each.done() for each in asked)
        await asyncio.gather(*asked)


# Acquires that their clients have withdrawn, stepped beside the grants that they withdraw (schema/withdrawn.sql).

TEXT = "mine-and-of-no-other-client"
HELD_SECRET = hash_secret(TEXT)
Grant = Callable[[Connection], Coroutine[None, None, LeaseId]]


async def granted_by_us(connection: Connection) -> LeaseId:
    return granted(await builtin.try_locks(connection, wanted("x", secret=TEXT), None, None, 0)).id


async def granted_by_etcd(connection: Connection) -> LeaseId:
    before = replace(await sources.state(connection, "etcd", "x"), issued=0)
    record = GrantRecord("handle", (1,), before, 0.0)
    _, lease = await sources.record_grant(connection, "etcd", wanted("x", secret=TEXT), record, 1)
    assert lease is not None
    return lease.id


@pytest.fixture
async def observer(connect: Connect) -> Connection:
    observer = await connect()
    await sources.register(observer, "etcd", "etcd", "source", verifies=True)
    return observer


@pytest.mark.parametrize("grant", [granted_by_us, granted_by_etcd])
async def test_a_withdrawal_overlooks_no_grant_that_did_not_see_it(
    grant: Grant, connect: Connect, observer: Connection
) -> None:
    granting = await connect()
    await granting.execute("BEGIN")  # its claims wait for a row, say
    lease = await grant(granting)
    assert await withdraw(observer, HELD_SECRET) == Withdrawal((), under_way=True)
    await granting.execute("COMMIT")
    assert await withdraw(observer, HELD_SECRET) == Withdrawal((lease,), under_way=False)


@pytest.mark.parametrize("grant", [granted_by_us, granted_by_etcd])
async def test_a_grant_waits_for_a_withdrawal_that_began_before_it_and_is_none(
    grant: Grant, connect: Connect, observer: Connection
) -> None:
    granting, withdrawing = await connect(), await connect()
    await withdrawing.execute("BEGIN")
    assert await withdraw(withdrawing, HELD_SECRET) == Withdrawal((), under_way=False)
    await granting.execute("SET lock_timeout = 0; ALTER FUNCTION fencepost.acquire SET lock_timeout = 0")
    waiting = await start(observer, grant(granting), granting.get_server_pid())
    assert not waiting.done()
    await withdrawing.execute("COMMIT")
    with pytest.raises(Withdrawn):
        await waiting
    assert not await observer.fetchval("SELECT count(*) FROM fencepost.leases")
    assert not await observer.fetchval("SELECT count(*) FROM fencepost.source_leases")


async def test_a_waiter_that_is_withdrawn_has_no_place_and_the_one_behind_it_is_woken(
    database: str, observer: Connection
) -> None:
    async with open_side(database, pool_size=2) as side:
        holder = granted(await side.acquire("x", secret="holder"))
        first = await side.wait(observer, "x", secret="first")
        second = await side.wait(observer, "x", secret="second")
        assert await side.locks.withdraw(hash_secret("first")) == Withdrawal((), under_way=False)
        assert await observer.fetchval("SELECT array_agg(owner) FROM fencepost.waiters") == ["second"]
        with pytest.raises(Withdrawn):
            await first
        assert await side.locks.release(holder.lease_id, hash_secret("holder"))
        assert (await second).verdict == "granted"


async def test_all_leases_of_a_secret_are_given_back_and_one_of_a_source_elsewhere_is_named(
    database: str, observer: Connection
) -> None:
    leases = (await granted_by_us(observer), await granted_by_etcd(observer))
    async with in_process(database) as without_etcd:
        secret = {"X-Lease-Secret": TEXT}
        answer = await without_etcd.delete("/v1/leases", headers=secret)
        assert (answer.status_code, answer.json()["code"], answer.json()["source"]) == (503, "FP024", "etcd")
        assert f"{leases[1]}" in answer.json()["detail"]
        assert (await without_etcd.get("/v1/locks")).json() == []
    assert await withdraw(observer, HELD_SECRET) == Withdrawal(leases[1:], under_way=False)
    with pytest.raises(Withdrawn):
        await sources.find_by_secret(observer, "etcd", "x", HELD_SECRET)


async def test_a_waiter_leaves_also_while_a_grant_has_the_lock(
    database: str, connect: Connect, observer: Connection
) -> None:
    """Its claims wait for a row, say."""
    async with open_side(database, pool_size=2) as side:
        await side.acquire("x", secret="holder")
        gone = asyncio.get_running_loop().create_future()
        waiting = await side.wait(observer, "x", secret="first", gone=gone)
        granting = await connect()
        await granting.execute("BEGIN; SELECT FROM fencepost.locks WHERE name = 'x' FOR UPDATE")
        gone.set_result(None)
        assert (await waiting).verdict == "queued"
        assert await observer.fetchval("SELECT count(*) FROM fencepost.waiters") == 0
        assert side.failures == []


async def test_waiters_that_leave_keep_no_renewal_from_a_connection(
    database: str, observer: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaving = asyncio.Event()

    async def hang(*_: object) -> None:
        await leaving.wait()

    monkeypatch.setattr(builtin, "leave", hang)
    async with open_side(database, pool_size=2) as side:
        holder = granted(await side.acquire("x", secret="holder"))
        gone = asyncio.get_running_loop().create_future()
        waiting = [await side.wait(observer, "x", secret=f"{n}", gone=gone) for n in range(4)]
        gone.set_result(None)
        for _ in range(20):
            await asyncio.sleep(0)
        try:
            assert await side.locks.renew(holder.lease_id, hash_secret("holder"), None)
        finally:
            leaving.set()
            await asyncio.gather(*waiting)


# `fencepost release --force`: an operator ends a lease in its holder's place, which is recorded.


@pytest.fixture
async def owner(connect: Connect) -> Connection:
    return await connect()


@pytest.fixture
async def side(database: str) -> AsyncIterator[Side]:
    async with open_side(database) as side:
        yield side


async def recorded(observer: Connection) -> list[tuple[object, ...]]:
    rows = await observer.fetch("SELECT name, verb, resource, reason FROM fencepost.break_glass_log")
    return [tuple(row) for row in rows]


async def test_the_lease_is_over_the_next_in_line_has_the_lock_and_it_is_recorded(
    side: Side, owner: Connection, database: str
) -> None:
    holder = granted(await side.acquire("job", secret="holder"))
    waiting = await side.wait(owner, "job", secret="waiter")
    done = await command("release", "--force", "job", "--reason", REASON, database=database)
    assert done.exit_code == 0, done.output
    assert "holder" in done.output
    async with asyncio.timeout(PATIENCE):
        assert (await waiting).verdict == "granted"
    assert await side.locks.renew(holder.lease_id, hash_secret("holder"), None) is None
    assert await side.locks.mint(holder.lease_id, hash_secret("holder"), 1) is None
    assert await recorded(owner) == [("builtin", "RELEASE", "job", REASON)]
    lost = await side.locks.find_ended(holder.lease_id)
    assert lost is not None
    assert lost.ended_by == "operator"


async def test_all_locks_of_the_lease_are_free(side: Side, owner: Connection, database: str) -> None:
    await side.acquire("a", "b", secret="holder")
    waiting = await side.wait(owner, "b", secret="waiter")
    assert (await command("release", "--force", "a", "--reason", REASON, database=database)).exit_code == 0
    async with asyncio.timeout(PATIENCE):
        assert (await waiting).verdict == "granted"


async def test_where_no_lease_has_the_lock_nothing_is_done(side: Side, owner: Connection, database: str) -> None:
    released = granted(await side.acquire("released", secret="holder"))
    await side.locks.release(released.lease_id, hash_secret("holder"))
    await side.acquire("expired", secret="holder")
    await owner.execute("UPDATE fencepost.leases SET expires_at = clock_timestamp() - interval '1 s'")
    for lock in ("free", "released", "expired"):
        done = await command("release", "--force", lock, "--reason", REASON, database=database)
        assert (done.exit_code, f"no lease of builtin holds {lock}" in done.output) == (1, True), done.output
    assert await recorded(owner) == []


async def test_what_is_missing_is_named_and_nothing_is_done(side: Side, database: str) -> None:
    lease = granted(await side.acquire("job", secret="holder"))
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
    assert await side.locks.renew(lease.lease_id, hash_secret("holder"), None) is not None


async def test_it_is_for_those_who_may_break_the_glass(side: Side, owner: Connection) -> None:
    await side.acquire("job", secret="holder")
    async with operators(owner):
        await owner.execute(f"SET SESSION AUTHORIZATION {STRANGER}")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await force_release(owner, "builtin", "job", REASON)
        await owner.execute(f"SET SESSION AUTHORIZATION {OPERATOR}")
        ended = await force_release(owner, "builtin", "job", REASON)
        assert ended is not None
        assert ended.names == ("job",)


async def test_without_a_reason_in_the_session_the_function_does_nothing(side: Side, owner: Connection) -> None:
    await side.acquire("job", secret="holder")
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="behind broken glass only"):
        await owner.fetch("SELECT * FROM fencepost.force_release('builtin', 'job')")


# Grants of one lock without claims, and releases, of the same moment are batches (gateway/group_commit.py).


@asynccontextmanager
async def in_batches(dsn: str, times: Times = TIMES, most: int = 99) -> AsyncIterator[BatchedLocks]:
    database = await Database.open(dsn, Limits(pool_size=1, lease_pool_size=5))
    grants, releases = (GroupCommit(database, leases=True, times=times, most_waiting=most) for _ in range(2))
    locks = BatchedLocks(database, Queue(database, print, times), LeaseLimits(), grants, releases)
    try:
        yield locks
    finally:
        await locks.close()
        await database.close()


async def take(locks: BatchedLocks, name: str, **asked: Any) -> Any:
    waits = wanted(name, secret=name, **asked)
    return await asyncio.wait_for(locks.take(waits, None, asyncio.get_running_loop().create_future()), PATIENCE)


async def test_grants_of_the_same_moment_share_a_transaction_and_so_do_releases(
    database: str, observer: Connection
) -> None:
    async with in_batches(database) as locks:
        taken = await asyncio.gather(*(take(locks, f"lock-{number}") for number in range(8)))
        numbers = [granted(each).lease_id for each in taken]
        transactions = "SELECT count(DISTINCT xmin::text) FROM fencepost.{} WHERE lease_id = ANY ($1)"
        assert await observer.fetchval(transactions.format("draws"), numbers) <= 2
        ends = [locks.release(number, hash_secret(f"lock-{at}")) for at, number in enumerate(numbers)]
        assert await asyncio.gather(*ends) == [True] * 8
        assert await observer.fetchval(transactions.format("leases") + " AND ended_at IS NOT NULL", numbers) <= 2


async def test_who_has_to_wait_keeps_nobody_else_waiting(database: str, observer: Connection) -> None:
    async with in_batches(database) as locks:
        old = granted(await take(locks, "a"))
        await locks.release(old.lease_id, hash_secret("a"))
        foreign = observer.transaction()
        await foreign.start()
        await observer.execute("SELECT FROM fencepost.locks WHERE name = 'a' FOR UPDATE")
        waiting = asyncio.create_task(take(locks, "a", wait_ms=HOUR))
        free = granted(await take(locks, "b"))
        assert not waiting.done(), "the lock's row is another transaction's"
        await observer.execute("SELECT FROM fencepost.leases WHERE lease_id = $1 FOR UPDATE", free.lease_id)
        ending = asyncio.create_task(locks.release(free.lease_id, hash_secret("b")))
        granted(await take(locks, "c"))
        assert not ending.done(), "the lease's row is, too"
        await foreign.rollback()
        assert await ending
        granted(await waiting)


async def test_neither_waiters_nor_releases_are_refused_by_batches_of_grants_and_none_waits_longer(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, answered = ManualClock(), asyncio.Event()

    async def slow(*_: object) -> list[None]:
        await answered.wait()
        return [None]

    async def held(_wanted: LockRequest) -> Held:
        await clock.advance(5)
        return Held(verdict="held", lock="a")

    async with in_batches(database, Times(clock=clock), most=1) as locks:
        granted(await take(locks, "a"))
        monkeypatch.setattr(group_commit, "try_each", slow)
        first = asyncio.create_task(take(locks, "first"))
        await asyncio.sleep(0)
        try:
            waited = granted(await take(locks, "b", wait_ms=HOUR))
            with pytest.raises(UnavailableError):
                await take(locks, "c")
            assert await locks.release(waited.lease_id, hash_secret("b"))
        finally:
            answered.set()
        granted(await first)
        monkeypatch.setattr(locks, "_try_with_others", held)
        late = wanted("a", secret="late", wait_ms=5000)
        taken = locks.take(late, None, asyncio.get_running_loop().create_future())
        assert isinstance(await asyncio.wait_for(taken, PATIENCE), Held), "its time was up: nobody moves the clock"


async def test_what_a_broken_batch_may_have_done_is_not_denied(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """R15, also where PostgreSQL cannot be asked again."""

    async def broken(*_: object) -> Broken:
        return Broken(OutcomeUnknownError("it broke"), cast("Any", None))

    async with in_batches(database) as locks:
        monkeypatch.setattr(GroupCommit, "write", broken)
        monkeypatch.setattr(locks._database, "for_leases", Mock(side_effect=UnavailableError("it is away")))  # noqa: SLF001
        asked = await asyncio.gather(take(locks, "a"), locks.release(1, b""), return_exceptions=True)
        assert list(map(type, asked)) == [OutcomeUnknownError] * 2
