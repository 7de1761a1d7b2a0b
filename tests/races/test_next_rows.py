"""The next row of a table: each has one taker, whoever else is at work; what is counted of it; and who waits."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from tests.races.openings import BUILTIN, opened
from tests.support.manual_clock import ManualClock
from tests.support.racing import NEW, Race
from tests.support.use_cases import keyed, open_gateway, patch, result_of

from fencepost.server.fence.caller import Caller
from fencepost.server.fence.problem_types import BAD_REQUEST, DATABASE_UNAVAILABLE
from fencepost.server.fence.problems import Problem
from fencepost.server.gateway import attempt, next_rows
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.next_rows import Next, take_next
from fencepost.server.gateway.takers import TakenRow
from fencepost.server.ops.protect import protect
from fencepost.server.postgres import next_rows as statements
from fencepost.server.postgres.database import AllowedRoles
from fencepost.server.postgres.leases import LeaseRow, LockRequest
from fencepost.server.postgres.listen import WRITTEN, Listener
from fencepost.server.postgres.query import Field, OrderTerm
from fencepost.server.times import Times
from fencepost.testing.servers.processes import PATIENCE, eventually

pytestmark = opened(BUILTIN)

MINUTE = 60_000
Taking = Callable[..., Awaitable[list[TakenRow] | Problem]]


async def rows(race: Race, *keys: str) -> None:
    for key in keys:
        await race.insert(race.a, key, 30)


async def take(
    gateway: Gateway, secret: str | None = None, *, limit: int = 1, gone: Any = None, wait_ms: int = 0
) -> list[TakenRow] | Problem:
    wanted = LockRequest((), secret or "a secret", "w", MINUTE, wait_ms=wait_ms, chosen=secret is not None)
    wanted = wanted if secret else replace(wanted, secret=f"{id(wanted)} {asyncio.get_running_loop().time()}")
    gone = gone or asyncio.get_running_loop().create_future()
    return await asyncio.wait_for(take_next(gateway, wanted, Next("orders", NEW, limit=limit), gone), PATIENCE)


async def taken(gateway: Gateway, **asked: Any) -> list[tuple[str, int | None]]:
    """Take, and give names and attempts."""
    answer = await take(gateway, **asked)
    assert isinstance(answer, list), answer
    return [(each.granted.lease.names[0], each.granted.lease.attempt) for each in answer]


async def one(gateway: Gateway, secret: str | None = None) -> LeaseRow:
    answer = await take(gateway, secret)
    assert isinstance(answer, list), answer
    (row,) = answer
    assert row.granted.claims[0].resource == row.granted.lease.names[0]
    return row.granted.lease


async def expire(race: Race, lease: LeaseRow) -> None:
    await race.observer.execute(
        "UPDATE fencepost.leases SET expires_at = clock_timestamp() - interval '1 s' WHERE lease_id = $1",
        lease.lease_id,
    )


@dataclass
class Held:
    """A look that has granted, and claims nothing until `go`."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)


@contextmanager
def holding() -> Iterator[Held]:
    """Hold the first look between its grants and its claims."""
    held, claims = Held(), attempt.claim_rows

    async def hold(*of: Any) -> Any:
        if not held.reached.is_set():
            held.reached.set()
            await asyncio.wait_for(held.go.wait(), PATIENCE)
        return await claims(*of)

    with pytest.MonkeyPatch.context() as patching:
        patching.setattr(next_rows, "claim_rows", hold)
        yield held


@asynccontextmanager
async def two_gateways(race: Race, **of: Any) -> AsyncIterator[tuple[Gateway, Gateway]]:
    async with open_gateway(race.dsn, **of) as one, open_gateway(race.dsn, **of) as other:
        yield one, other


async def test_a_look_reads_no_row_that_is_done(race: Race) -> None:
    """With a partial index, however many rows are done, and however often the statement was run before."""
    await race.observer.execute(
        "SET session_replication_role = replica; INSERT INTO orders (order_id, status, n, last_fence_token)"
        " SELECT n, CASE WHEN n % 1000 = 0 THEN 'new' ELSE 'done' END, n % 3, 30 FROM generate_series(1, 10000) n;"
        "CREATE INDEX to_do ON orders (n DESC, order_id) WHERE status = 'new'; ANALYZE orders"
    )
    looked = statements.next_rows(race.table, NEW, (OrderTerm(Field("n"), descending=True),), None, as_role=False)
    await race.observer.execute(f"PREPARE look AS {looked.sql}")
    look = "EXECUTE look(3, '{orders/2000}', 'new')"
    for _ in range(8):  # PostgreSQL chooses a plan for all values after five
        assert [row["name"] for row in await race.observer.fetch(look)] == ["orders/5000", "orders/8000", "orders/1000"]
    plan = "\n".join(row[0] for row in await race.observer.fetch(f"EXPLAIN (ANALYZE, TIMING off, COSTS off) {look}"))
    assert "Index Scan using to_do" in plan, plan
    removed = [int(line.split(":")[1]) for line in plan.splitlines() if "Rows Removed by Filter" in line]
    assert sum(removed) <= 1, plan  # the row that is passed by


async def test_how_rows_are_asked_for_is_noted(race: Race) -> None:
    """Once a day in a process: for `doctor`, which looks whether there is an index."""
    noted = "SELECT matched::text[] || ordered::text[] FROM fencepost.questions WHERE relation = 'orders'::regclass"
    await rows(race, "a", "b")
    async with open_gateway(race.dsn) as gateway:
        await taken(gateway)
        await eventually(lambda: race.observer.fetchval(noted), what="the question")
        assert await race.observer.fetchval(noted) == ["status", "order_id"]
        await race.observer.execute("DELETE FROM fencepost.questions")
        await taken(gateway)
    assert await race.observer.fetchval(noted) is None


async def test_a_row_that_another_transaction_has_is_passed_by(race: Race) -> None:
    """A writer's row, and the row of a lock, also one that is just being made: no look waits for them, or fails."""
    await rows(race, "a", "b", "c", "d")
    async with open_gateway(race.dsn) as gateway:
        await race.observer.execute("INSERT INTO fencepost.locks VALUES ('orders/b')")
        writing = await race.begin(race.b)
        await race.b.execute("SELECT FROM orders WHERE order_id = 'a' FOR UPDATE")
        await race.b.execute("SELECT FROM fencepost.locks WHERE name = 'orders/b' FOR UPDATE")
        await race.b.execute("INSERT INTO fencepost.locks VALUES ('orders/c')")
        assert await taken(gateway) == [("orders/d", 1)]
        assert await taken(gateway) == []
        await writing.rollback()
        assert await taken(gateway, limit=3) == [("orders/a", 1), ("orders/b", 1), ("orders/c", 1)]


async def test_who_meets_none_but_rows_that_are_busy_is_answered(race: Race) -> None:
    names = [f"{n:02}" for n in range(next_rows.ROUNDS + 1)]
    await rows(race, *names)
    async with open_gateway(race.dsn) as gateway:
        await race.observer.execute("INSERT INTO fencepost.locks SELECT 'orders/' || unnest($1::text[])", names)
        locking = await race.begin(race.b)
        await race.b.execute("SELECT FROM fencepost.locks FOR UPDATE")
        assert await taken(gateway) == []
        await locking.rollback()


async def test_a_row_has_one_taker_while_two_gateways_look(race: Race) -> None:
    await rows(race, "a", "b")
    async with two_gateways(race) as (first, second):
        with holding() as held:
            taking = asyncio.create_task(taken(first))
            await asyncio.wait_for(held.reached.wait(), PATIENCE)
            assert await taken(second, limit=2) == [("orders/b", 1)]
            held.go.set()
            assert await taking == [("orders/a", 1)]
            assert await taken(second) == []


async def test_a_dead_worker_is_fenced_from_when_its_row_is_taken_again(race: Race) -> None:
    await rows(race, "a")
    async with open_gateway(race.dsn) as gateway:
        dead = await one(gateway)
        await expire(race, dead)
        assert await taken(gateway) == [("orders/a", 2)]
        assert result_of(await patch(gateway, keyed("a", dead.tokens[0], status="done"))) == "FP001"
        row = await race.row("a")
        assert row is not None
        assert row["status"] == "new"


async def test_attempts_are_counted_since_another_wrote_to_the_row(race: Race) -> None:
    await rows(race, "a", "b")
    async with open_gateway(race.dsn) as gateway:
        for attempt in (1, 2, 3):
            lease = await one(gateway)
            assert (lease.names, lease.attempt) == (("orders/a",), attempt)
            if attempt == 2:  # what the worker itself writes changes nothing
                minted = await gateway.locks.mint(lease.lease_id, await secret_of(race, lease), 2)
                assert minted is not None
                assert result_of(await patch(gateway, keyed("a", minted.tokens[1], n=1))) == "ok"
            await expire(race, lease)
        other = await one(gateway)
        assert other.attempt == 4
        second = await one(gateway)
        assert second.names == ("orders/b",)
        assert result_of(await patch(gateway, keyed("a", second.tokens[0], n=2))) == "ok"
        await expire(race, other)
        assert await taken(gateway) == [("orders/a", 1)]


async def secret_of(race: Race, lease: LeaseRow) -> bytes:
    hashed: bytes = await race.observer.fetchval(
        "SELECT secret_hash FROM fencepost.leases WHERE lease_id = $1", lease.lease_id
    )
    return hashed


async def test_a_repeated_request_finds_its_row_again(race: Race) -> None:
    """Also while the first one is under way: never has it two rows."""
    await rows(race, "a", "b")
    async with two_gateways(race) as (first, second):
        with holding() as held:
            taking = asyncio.create_task(one(first, "s" * 32))
            await asyncio.wait_for(held.reached.wait(), PATIENCE)
            early = await take(second, "s" * 32)
            assert isinstance(early, Problem), early
            assert early.type is DATABASE_UNAVAILABLE
            held.go.set()
            lease = await taking
            again = await one(second, "s" * 32)
            assert (again.id, again.tokens, again.attempt) == (lease.id, lease.tokens, 1)
            for_another = LockRequest((), "s" * 32, "another", MINUTE)
            mixed_up = await take_next(first, for_another, Next("orders", NEW), asyncio.Future())
            assert isinstance(mixed_up, Problem)
            assert mixed_up.type is BAD_REQUEST
            twice = await asyncio.gather(take(second, "s" * 32), take(second, "s" * 32))
            assert sorted(isinstance(each, Problem) for each in twice) in ([False, False], [False, True])
            assert await taken(first) == [("orders/b", 1)]


@pytest.mark.parametrize(("late", "left_ms"), [(5, MINUTE - 5000), (7, MINUTE)])  # by then the lease begins anew
async def test_a_lease_is_trusted_for_no_longer_than_it_lives(race: Race, late: float, left_ms: int) -> None:
    """What passes between grant and answer is no time that the request waited before the grant."""
    await rows(race, "a")
    clock = ManualClock()
    async with open_gateway(race.dsn, times=Times(clock=clock)) as gateway:
        with holding() as held:
            taking = asyncio.create_task(take(gateway, wait_ms=MINUTE))
            await asyncio.wait_for(held.reached.wait(), PATIENCE)
            await clock.advance(late)
            held.go.set()
            answer = await asyncio.wait_for(taking, PATIENCE)
        assert isinstance(answer, list), answer
        assert (answer[0].granted.waited_ms, answer[0].granted.lease.remaining_ms) == (0, left_ms)


async def test_who_has_gone_or_withdrawn_holds_no_row(race: Race) -> None:
    await rows(race, "a")
    async with two_gateways(race) as (first, second):
        with holding() as held:
            gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            taking = asyncio.create_task(take(first, gone=gone))
            await asyncio.wait_for(held.reached.wait(), PATIENCE)
            gone.set_result(None)
            assert isinstance(await taking, Problem)
            held.go.set()
            await eventually(lambda: has_ended(race), what="the end of the lease")
            assert await taken(second) == [("orders/a", 2)]
            wanted = LockRequest((), "t" * 32, "w", MINUTE)
            await second.locks.withdraw(wanted.secret_hash)
            assert isinstance(await take(second, "t" * 32), Problem)


async def test_who_goes_when_it_has_just_been_answered_holds_no_row(race: Race) -> None:
    await rows(race, "a")
    gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    async with open_gateway(race.dsn) as gateway:
        seen = replace(gateway, emit=lambda _: gone.set_result(None))
        assert isinstance(await take(seen, gone=gone), Problem)
        assert await taken(gateway) == [("orders/a", 2)]


@pytest.mark.parametrize("most", [1, 3])
async def test_a_row_that_was_taken_too_often_is_put_aside(race: Race, most: int) -> None:
    await rows(race, "a", "b")
    await protect(race.observer, "orders", work=True, max_attempts=most, on_exhausted={"status": "failed", "n": 7})
    async with open_gateway(race.dsn) as gateway:
        for attempts in range(1, most + 1):
            lease = await one(gateway)
            assert (lease.names, lease.attempt) == (("orders/a",), attempts)
            await expire(race, lease)
        other = await one(gateway)
        assert (other.names, other.attempt) == (("orders/b",), 1)
        row = await race.row("a")
        assert row is not None
        assert (row["status"], row["n"]) == ("failed", 7)
        assert result_of(await patch(gateway, keyed("a", lease.tokens[0], n=1))) == "FP001"
        assert result_of(await patch(gateway, keyed("a", other.tokens[0], status="new"))) == "ok"
        assert await taken(gateway) == [("orders/a", 1)]


async def test_a_row_that_is_still_asked_for_when_it_is_put_aside_is_counted_anew(race: Race) -> None:
    await rows(race, "a")
    await protect(race.observer, "orders", work=True, max_attempts=1, on_exhausted={"n": 7})
    async with open_gateway(race.dsn) as gateway:
        await expire(race, await one(gateway))
        assert await taken(gateway) == [], "it is put aside once a look"
        assert await taken(gateway) == [("orders/a", 1)]


async def test_a_row_that_cannot_be_put_aside_is_named(race: Race) -> None:
    await rows(race, "a")
    await protect(race.observer, "orders", work=True, max_attempts=1, on_exhausted={"n": "many"})
    async with open_gateway(race.dsn) as gateway:
        await expire(race, await one(gateway))
        refused = await take(gateway)
        assert isinstance(refused, Problem)
        assert refused.detail.startswith("orders/a was taken too often, and could not be put aside: ")


async def test_a_row_that_cannot_be_taken_is_passed_by_while_there_are_others(race: Race) -> None:
    await rows(race, "a", "b", "c", "x" * 600)
    await race.observer.execute("ALTER TABLE orders ADD CHECK (order_id <> 'a') NOT VALID")
    async with open_gateway(race.dsn) as gateway:
        assert await taken(gateway, limit=2) == [("orders/b", 1), ("orders/c", 1)]
        refused = await take(gateway)
        assert isinstance(refused, Problem)
        assert refused.detail.startswith("orders/a cannot be taken: ")


async def test_rows_that_are_too_large_to_be_claimed_together_are_claimed_one_by_one(race: Race) -> None:
    await rows(race, "a", "b")
    await race.observer.execute("ALTER TABLE orders ADD note text GENERATED ALWAYS AS (repeat('x', 1100000)) STORED")
    async with open_gateway(race.dsn) as gateway:
        assert await taken(gateway, limit=2) == [("orders/a", 1), ("orders/b", 1)]


async def test_rows_that_are_too_many_bytes_are_next_again(race: Race) -> None:
    await rows(race, "a", "b", "c")
    async with open_gateway(race.dsn) as gateway:
        narrow = replace(gateway, max_answer_bytes=2 * len('{"order_id":"a","status":"new","n":0}'))
        assert await taken(narrow, limit=3) == [("orders/a", 1), ("orders/b", 1)]
        assert await taken(narrow, limit=3) == [("orders/c", 1)]


async def test_who_waits_is_told_of_a_row_by_a_statement(race: Race) -> None:
    """No beat comes: its time stands still."""
    await protect(race.observer, "orders", work=True)
    listening = asyncio.Event()

    async def reload() -> None: ...

    async with open_gateway(race.dsn, times=Times(clock=ManualClock())) as gateway:
        room = gateway.next_rows
        listener = Listener(
            dsn=race.dsn,
            reload=reload,
            lost=pytest.fail,
            channels={WRITTEN: room.on_notify},
            connected=(listening.set,),
        )
        task = asyncio.create_task(listener.run())
        await asyncio.wait_for(listening.wait(), PATIENCE)
        waiting = [asyncio.create_task(taken(gateway, wait_ms=MINUTE)) for _ in range(2)]
        watched = "SELECT EXISTS (SELECT FROM fencepost.watched)"
        await eventually(lambda: race.observer.fetchval(watched), what="a line that is watched")
        await rows(race, "a")
        done, _ = await asyncio.wait(waiting, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        assert [each.result() for each in done] == [[("orders/a", 1)]]
        task.cancel()
        room.stop()
        await asyncio.gather(task, *waiting, return_exceptions=True)


async def test_a_take_tells_nobody_that_there_are_rows(race: Race) -> None:
    """Others who wait would look in vain."""
    await rows(race, "a")
    await protect(race.observer, "orders", work=True)
    told = await listen(race)
    async with open_gateway(race.dsn) as gateway:
        await race.observer.execute("SELECT fencepost.watch('orders'::regclass, gen_random_uuid())")
        lease = await one(gateway)
        await expire(race, lease)
        assert await taken(gateway) == [("orders/a", 2)]
        assert await told() == 0
        await rows(race, "b")
        assert await told() == 1


async def listen(race: Race) -> Callable[[], Awaitable[int]]:
    """Count what is told of written tables."""
    payloads: list[object] = []
    await race.c.add_listener(WRITTEN, lambda *notification: payloads.append(notification[-1]))

    async def told() -> int:
        await race.c.fetchval("SELECT 1")  # what was sent before its answer has arrived with it
        return len(payloads)

    return told


async def has_ended(race: Race) -> bool:
    ended: bool = await race.observer.fetchval("SELECT bool_or(ended_at IS NOT NULL) FROM fencepost.leases")
    return ended


async def test_who_waits_is_given_a_row_that_comes_and_others_after_it_nothing(race: Race) -> None:
    clock = ManualClock()
    async with open_gateway(race.dsn, times=Times(clock=clock)) as gateway:
        waiting = [asyncio.create_task(taken(gateway, wait_ms=n * MINUTE)) for n in (1, 2)]
        await asyncio.sleep(0)
        assert await taken(gateway) == [], "who does not wait is answered beside those who do"
        await rows(race, "a")
        async with clock.running():
            assert await asyncio.wait_for(waiting[0], PATIENCE) == [("orders/a", 1)]
            assert await asyncio.wait_for(waiting[1], PATIENCE) == []


async def test_who_waits_is_sent_away_when_the_gateway_stops(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        waiting = asyncio.create_task(take(gateway, wait_ms=MINUTE))
        await asyncio.sleep(0)
        assert await taken(gateway) == []
        gateway.next_rows.stop()
        answer = await asyncio.wait_for(waiting, PATIENCE)
        assert isinstance(answer, Problem)
        assert answer.type is DATABASE_UNAVAILABLE


async def test_a_caller_takes_rows_that_it_may_see_and_write(race: Race) -> None:
    await rows(race, "a", "b", "c")
    await race.observer.execute(
        "CREATE ROLE worker; GRANT SELECT, UPDATE ON orders TO worker; ALTER TABLE orders ENABLE ROW LEVEL SECURITY;"
        " CREATE POLICY see ON orders FOR SELECT TO worker USING (order_id <> 'a');"
        " CREATE POLICY change ON orders FOR UPDATE TO worker USING (order_id <> 'b')"
    )
    try:
        async with open_gateway(race.dsn) as gateway:
            allowed = replace(gateway, roles=AllowedRoles(("worker",)))
            worker = allowed.of(Caller("w", role="worker"))
            assert await taken(worker, limit=3) == [("orders/c", 1)]
            of_locks = gateway.of(Caller("x", locks=("orders/a*",)))
            assert await taken(of_locks, limit=3) == [("orders/a", 1)]
    finally:
        await race.observer.execute("DROP OWNED BY worker; DROP ROLE worker")
