"""The database's clock steps back while leases of a lock service live: what is recorded of them counts anew."""

import asyncpg
import pytest
from tests.support.interleave import Connect
from tests.support.lease_racing import MINUTE, step_back

from fencepost.gateway.leases.acquire import hash_secret
from fencepost.storage.leases import source_leases, sources
from fencepost.storage.leases.source_leases import GrantRecord

SOURCE = "zk"
SECRET = hash_secret("secret")


@pytest.fixture
async def db(connect: Connect) -> asyncpg.Connection:
    connection = await connect()
    await sources.register(connection, SOURCE, "zookeeper", "source", verifies=True)
    return connection


async def granted(db: asyncpg.Connection, lock: str, number: int, secret: bytes = SECRET) -> int:
    before = await sources.state(db, SOURCE, lock)
    granting = GrantRecord(SOURCE, lock, secret, "worker", (), "handle", (number,), before, MINUTE, 1)
    verdict, lease = await source_leases.grant(db, granting)
    assert verdict == "granted"
    assert lease is not None
    return lease.lease_id


async def left(db: asyncpg.Connection, lease_id: int) -> float:
    """Seconds until the lease is over, by its row."""
    seconds: float = await db.fetchval(
        "SELECT extract(epoch FROM expires_at - clock_timestamp())::float FROM fencepost.source_leases"
        " WHERE lease_id = $1",
        lease_id,
    )
    return seconds


async def test_a_lease_never_shows_more_than_its_ttl(db: asyncpg.Connection) -> None:
    lease_id = await granted(db, "x", 7)
    await step_back(db)
    lease = await source_leases.lease(db, SOURCE, lease_id, None)
    assert lease is not None
    assert 0 < lease.remaining_ms <= MINUTE
    [state] = await source_leases.lock_states(db, SOURCE, None, None, 10)
    assert 0 < (state.remaining_ms or 0) <= MINUTE
    _, found = await source_leases.find_by_secret(db, SOURCE, "x", SECRET)
    assert found is not None
    assert 0 < found[1].remaining_ms <= MINUTE, "with which its hold is renewed"
    for shown in (lease.expires_at, state.expires_at, found[1].expires_at):
        assert await db.fetchval("SELECT $1::text::timestamptz < clock_timestamp() + interval '61 s'", str(shown))
    assert await left(db, lease_id) > MINUTE / 1000


async def test_the_keeper_of_holds_counts_its_leases_anew(db: asyncpg.Connection) -> None:
    """Else the hold of a holder that is dead would stay for as long as the step was."""
    mine, other = await granted(db, "x", 7), await granted(db, "y", 8, hash_secret("another"))
    await step_back(db)
    due = await source_leases.due_in(db, [mine])
    assert 50_000 < due[mine] <= MINUTE
    assert 50 < await left(db, mine) <= MINUTE / 1000
    assert await left(db, other) > MINUTE / 1000


async def test_sweeping_counts_all_leases_anew_and_waits_for_none(db: asyncpg.Connection, connect: Connect) -> None:
    free, busy = await granted(db, "x", 7), await granted(db, "y", 8, hash_secret("another"))
    await step_back(db)
    writer = await connect()
    transaction = writer.transaction()
    await transaction.start()
    await writer.execute("SELECT FROM fencepost.source_leases WHERE lease_id = $1 FOR UPDATE", busy)
    assert await source_leases.forget(db, 3600, 100) == 0
    await transaction.rollback()
    assert 50 < await left(db, free) <= MINUTE / 1000
    assert await left(db, busy) > MINUTE / 1000
    assert await source_leases.forget(db, 3600, 100) == 0
    assert 50 < await left(db, busy) <= MINUTE / 1000
