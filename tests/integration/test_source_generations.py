"""Generations of a lock service's tokens (R12): scopes, and leases whose clock steps back."""

import asyncpg
import pytest
from tests.races.test_generations import Isolation
from tests.support.interleave import Connect
from tests.support.lease_racing import MINUTE, step_back
from tests.support.racing import outcome

from fencepost.server.ops.protect import protect
from fencepost.server.postgres import sources
from fencepost.server.postgres import sources as source_leases
from fencepost.server.postgres.leases import LockRequest, hash_secret
from fencepost.server.postgres.sources import GrantRecord

SOURCE = "redis"
ITEMS = "CREATE TABLE public.items (id int PRIMARY KEY, account int NOT NULL, n int NOT NULL DEFAULT 0)"
ENTER = "SELECT refused_by FROM fencepost.enter('account', ARRAY['account/1'], 40)"
ENTER_EACH = (
    "SELECT verdict FROM fencepost.enter_each('account', ARRAY['account/1'], ARRAY[40::bigint],"
    " 'public.items'::regclass, 'account/{account}')"
)


async def scoped(connect: Connect) -> asyncpg.Connection:
    """Make a table whose rows have the mark of their scope, with one row."""
    owner = await connect()
    await owner.execute("SET search_path = public")
    await sources.register(owner, SOURCE, "redis", "source", verifies=True)
    await sources.record_verified(owner, SOURCE, 1000)
    await owner.execute(ITEMS)
    await protect(owner, "items", source=SOURCE, scope="account/{account}")
    await owner.execute("BEGIN; SET LOCAL fencepost.token = '30'; INSERT INTO items VALUES (1, 1); COMMIT")
    return owner


@pytest.mark.parametrize(
    ("way", "isolation"),
    [("enter", "read_committed"), ("enter", "serializable"), *((way, "repeatable_read") for way in ("update", "each"))],
)
async def test_a_scope_is_not_entered_under_a_token_that_was_voided_since_the_snapshot(
    connect: Connect, isolation: Isolation, way: str
) -> None:
    owner, writer = await scoped(connect), await connect()
    transaction = writer.transaction(isolation=isolation)
    await transaction.start()
    await writer.execute("SELECT FROM public.items")
    await sources.raise_source(owner, SOURCE, "test")
    if way == "update":
        await writer.execute("SET LOCAL fencepost.token = '40'")
        assert await outcome(writer.execute("UPDATE public.items SET n = 1")) == "FP409"
    elif way == "enter":
        assert await outcome(writer.fetchval(ENTER)) == "FP409"
    else:
        assert await writer.fetchval(ENTER_EACH) == "unclear"
    await transaction.rollback()
    assert await owner.fetchval("SELECT n FROM items") == 0


ZK = "zk"


SECRET = hash_secret("secret")


@pytest.fixture
async def db(connect: Connect) -> asyncpg.Connection:
    connection = await connect()
    await sources.register(connection, ZK, "zookeeper", "source", verifies=True)
    return connection


async def granted(db: asyncpg.Connection, lock: str, number: int, secret: str = "secret") -> int:
    before = await sources.state(db, ZK, lock)
    wanted = LockRequest((lock,), secret, "worker", MINUTE)
    verdict, lease = await source_leases.record_grant(db, ZK, wanted, GrantRecord("handle", (number,), before, 1))
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
    lease = await source_leases.lease(db, ZK, lease_id, None)
    assert lease is not None
    assert 0 < lease.remaining_ms <= MINUTE
    [state] = await source_leases.lock_states(db, ZK, None, None, 10)
    assert 0 < (state.remaining_ms or 0) <= MINUTE
    _, found = await source_leases.find_by_secret(db, ZK, "x", SECRET)
    assert found is not None
    assert 0 < found[1].remaining_ms <= MINUTE, "with which its hold is renewed"
    for shown in (lease.expires_at, state.expires_at, found[1].expires_at):
        assert await db.fetchval("SELECT $1::text::timestamptz < clock_timestamp() + interval '61 s'", str(shown))
    assert await left(db, lease_id) > MINUTE / 1000


async def test_the_watch_over_holds_counts_its_leases_anew(db: asyncpg.Connection) -> None:
    """Else the hold of a holder that is dead would stay for as long as the step was."""
    mine, other = await granted(db, "x", 7), await granted(db, "y", 8, "another")
    await step_back(db)
    due = await source_leases.due_in(db, [mine])
    assert 50_000 < due[mine] <= MINUTE
    assert 50 < await left(db, mine) <= MINUTE / 1000
    assert await left(db, other) > MINUTE / 1000


async def test_sweeping_counts_all_leases_anew_and_waits_for_none(db: asyncpg.Connection, connect: Connect) -> None:
    free, busy = await granted(db, "x", 7), await granted(db, "y", 8, "another")
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
