"""Acquires that their clients have withdrawn, stepped beside the grants that they withdraw (schema/withdrawn.sql)."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace

import pytest
from tests.support.gateways import in_process
from tests.support.interleave import Connect, Connection, start
from tests.support.lease_gateways import open_side
from tests.support.lease_racing import wanted

from fencepost.server.postgres import leases as builtin
from fencepost.server.postgres import sources
from fencepost.server.postgres import sources as source_leases
from fencepost.server.postgres.leases import LeaseId, Withdrawal, Withdrawn, hash_secret, withdraw
from fencepost.server.postgres.sources import GrantRecord

TEXT = "mine-and-of-no-other-client"
SECRET = hash_secret(TEXT)
Grant = Callable[[Connection], Coroutine[None, None, LeaseId]]


async def granted_by_us(connection: Connection) -> LeaseId:
    acquired = await builtin.try_locks(connection, wanted("x", secret=TEXT), None, None, 0)
    assert acquired.lease_id is not None
    return LeaseId("builtin", acquired.lease_id)


async def granted_by_etcd(connection: Connection) -> LeaseId:
    before = replace(await sources.state(connection, "etcd", "x"), issued=0)
    record = GrantRecord("handle", (1,), before, 1)
    _, lease = await source_leases.record_grant(connection, "etcd", wanted("x", secret=TEXT), record)
    assert lease is not None
    return LeaseId("etcd", lease.lease_id)


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
    assert await withdraw(observer, SECRET) == Withdrawal((), under_way=True)
    await granting.execute("COMMIT")
    assert await withdraw(observer, SECRET) == Withdrawal((lease,), under_way=False)


@pytest.mark.parametrize("grant", [granted_by_us, granted_by_etcd])
async def test_a_grant_waits_for_a_withdrawal_that_began_before_it_and_is_none(
    grant: Grant, connect: Connect, observer: Connection
) -> None:
    granting, withdrawing = await connect(), await connect()
    await withdrawing.execute("BEGIN")
    assert await withdraw(withdrawing, SECRET) == Withdrawal((), under_way=False)
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
        holder = await side.acquire("x", secret="holder")
        first = await side.wait(observer, "x", secret="first")
        second = await side.wait(observer, "x", secret="second")
        assert await side.locks.withdraw(hash_secret("first")) == Withdrawal((), under_way=False)
        assert await observer.fetchval("SELECT array_agg(owner) FROM fencepost.waiters") == ["second"]
        with pytest.raises(Withdrawn):
            await first
        assert await side.locks.release(holder.lease_id or 0, hash_secret("holder"))
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
    assert await withdraw(observer, SECRET) == Withdrawal(leases[1:], under_way=False)
    with pytest.raises(Withdrawn):
        await source_leases.find_by_secret(observer, "etcd", "x", SECRET)


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
        holder = await side.acquire("x", secret="holder")
        gone = asyncio.get_running_loop().create_future()
        waiting = [await side.wait(observer, "x", secret=f"{n}", gone=gone) for n in range(4)]
        gone.set_result(None)
        for _ in range(20):
            await asyncio.sleep(0)
        try:
            assert await side.locks.renew(holder.lease_id or 0, hash_secret("holder"), None)
        finally:
            leaving.set()
            await asyncio.gather(*waiting)
