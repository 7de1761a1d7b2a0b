"""Interleavings of a grant (locks/source_leases/leases.py): between the service's answer, its record, and another
grant's.

`Scripted` is a mock of a lock service: it answers what a test says, when the test says so. How real ones behave is
shown by tests/conformance and the other tests here.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.support.interleave import Connect, Connection, eventually
from tests.support.racing import open_gateway

from fencepost.locks.leases import AcquireResult, Overtaken
from fencepost.locks.source import Capabilities, Grant, Holder, SourceError, SourceFrozenError, SourceUnavailableError
from fencepost.locks.source_leases import claims as source_claims
from fencepost.locks.source_leases import grants as source_grants
from fencepost.locks.source_leases.leases import SourceLocks
from fencepost.storage.connections.engine import Database
from fencepost.storage.errors import UnavailableError
from fencepost.storage.leases import sources
from fencepost.storage.leases.builtin import LockRequest

NAME = "scripted"
_secrets = itertools.count(1)


@dataclass
class Scripted:
    """A mock of a lock service. Numbers come from `numbers`; `held` is what it believes to be held."""

    capabilities: Capabilities = field(default_factory=lambda: Capabilities("source", fair=True, verifies=True))
    numbers: Any = field(default_factory=lambda: itertools.count(1))
    held: dict[str, str] = field(default_factory=dict)
    released: list[str] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    slow: set[str] = field(default_factory=set)
    """Locks whose grants stay under way until the gate opens: the number is drawn before."""
    waits: set[str] = field(default_factory=set)
    """Locks that are granted once the gate opens: the number is drawn after."""
    lost: bool = False
    release_fails: bool = False
    stuck: set[str] = field(default_factory=set)
    """Locks that cannot be released."""
    refuses: set[str] = field(default_factory=set)
    """Locks that are somebody's, which is said once `refused_until` is set and its tasks have run."""
    refused_until: asyncio.Event | None = None

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to close."""

    async def acquire(self, lock: str, *, owner: str, ttl_ms: int, tokens: int, wait_s: float) -> Grant | Holder:
        del owner, ttl_ms, wait_s
        if lock in self.refuses and self.refused_until is not None:
            await self.refused_until.wait()
            await asyncio.sleep(0.3)  # its record is made meanwhile
            return Holder("me")
        if lock in self.waits:
            self.asked.set()
            await self.gate.wait()
        drawn = () if self.capabilities.order == "database" else self._draw(tokens)
        handle = f"{lock}#{drawn[0] if drawn else next(self.numbers)}"
        self.held[lock] = handle
        if lock in self.slow:
            self.asked.set()
            await self.gate.wait()
        return Grant(handle, drawn)

    def _draw(self, count: int) -> tuple[int, ...]:
        return tuple(next(self.numbers) for _ in range(count))

    async def renew(self, lock: str, handle: str, ttl_ms: int) -> bool:
        del ttl_ms
        return not self.lost and self.held.get(lock) == handle

    async def mint(self, lock: str, handle: str, count: int) -> tuple[int, ...] | None:
        return self._draw(count) if await self.renew(lock, handle, 1) else None

    async def release(self, lock: str, handle: str) -> None:
        if self.release_fails:
            raise SourceUnavailableError("it is away")
        if lock in self.stuck:
            raise ValueError("a library's own error")
        self.released.append(handle)
        if self.held.get(lock) == handle:
            del self.held[lock]

    async def inspect(self, lock: str) -> Holder | None:
        return Holder() if lock in self.held else None

    async def issued(self, number: int) -> bool:
        return number <= 1000

    async def advice(self) -> list[str]:
        return []


@dataclass
class Stage:
    """Leases over a scripted service."""

    locks: SourceLocks
    service: Scripted
    observer: Connection
    database: Database
    troubles: list[str]
    frozen: list[str]
    secret: bytes = b""

    async def acquire(
        self, lock: str, *, claim: Any = None, gone: Any = None, tokens: int = 1, secret: bytes | None = None
    ) -> AcquireResult:
        self.secret = secret or str(next(_secrets)).encode()
        wanted = LockRequest((lock,), self.secret, "me", 20_000, tokens, ("t/1",) if claim else (), 10_000, False)
        return await self.locks.acquire(wanted, claim, gone or asyncio.get_running_loop().create_future())

    async def raised(self) -> None:
        async with self.observer.transaction():
            await sources.raise_source(self.observer, NAME, "a test")

    async def live(self) -> int:
        count: int = await self.observer.fetchval("SELECT count(*) FROM fencepost.source_leases WHERE ended_at IS NULL")
        return count


@pytest.fixture
def make(connect: Connect, database: str) -> Callable[..., Any]:
    @asynccontextmanager
    async def staged(**service: Any) -> AsyncIterator[Stage]:
        scripted, troubles, frozen = Scripted(**service), list[str](), list[str]()
        async with open_gateway(database, pool_size=4) as gateway:
            locks = SourceLocks(NAME, "mock", scripted, gateway.database, failed=troubles.append, froze=frozen.append)
            await locks.open()
            try:
                yield Stage(locks, scripted, await connect(), gateway.database, troubles, frozen)
            finally:
                await locks.close()

    return staged


async def test_a_generation_that_is_raised_under_way_makes_the_grant_void(make: Callable[..., Any]) -> None:
    async with make(slow={"a"}) as stage:
        asking = asyncio.create_task(stage.acquire("a"))
        await stage.service.asked.wait()
        await stage.raised()
        stage.service.slow.clear()
        stage.service.gate.set()
        granted = (await asking).acquired
        assert granted.verdict == "granted"
        assert granted.tokens[0] > 2**48
        assert stage.service.released == ["a#1"], "what was asked for in the generation before is given back"
        assert not stage.frozen


async def test_a_grant_that_is_recorded_after_its_successors_is_void(make: Callable[..., Any]) -> None:
    """The first grant's gateway was slow to record it; meanwhile it expired, and the lock was granted again."""
    async with make(slow={"a"}) as stage:
        first = asyncio.create_task(stage.acquire("a"))
        await stage.service.asked.wait()
        stage.service.slow.clear()
        second = (await stage.acquire("a")).acquired
        assert (second.verdict, second.tokens) == ("granted", (2,))
        stage.service.gate.set()
        again = (await first).acquired
        assert again.tokens[0] > 2, "never the token of its first grant, which is older than the second's"
        assert "a#1" in stage.service.released
        assert not stage.frozen, "it was not backwards: nothing above it was known when it was asked for"


async def test_grants_of_two_locks_may_be_recorded_in_another_order(make: Callable[..., Any]) -> None:
    async with make(slow={"a"}) as stage:
        first = asyncio.create_task(stage.acquire("a"))
        await stage.service.asked.wait()
        second = (await stage.acquire("b")).acquired
        stage.service.gate.set()
        assert (second.tokens, (await first).acquired.tokens) == ((2,), (1,))
        assert not stage.frozen
        assert await stage.live() == 2


@pytest.mark.parametrize("number", [5, 4, 1])
async def test_a_number_that_is_not_above_what_was_issued_freezes_the_source(
    make: Callable[..., Any], number: int
) -> None:
    async with make(numbers=itertools.count(5)) as stage:
        assert (await stage.acquire("a")).acquired.tokens == (5,)
        stage.service.numbers = itertools.count(number)
        with pytest.raises(SourceFrozenError, match=f"has the token {number}, and 5 had been issued"):
            await stage.acquire("b")
        assert f"b#{number}" in stage.service.released
        with pytest.raises(SourceFrozenError):
            await stage.acquire("c")
        assert len(stage.frozen) == 1, "said once"
        await stage.raised()
        assert (await stage.acquire("d")).acquired.tokens[0] > 2**48


async def test_where_numbers_rise_within_a_lock_another_locks_are_not_compared(make: Callable[..., Any]) -> None:
    async with make(capabilities=Capabilities("lock", fair=True, verifies=False), numbers=itertools.count(5)) as stage:
        await stage.acquire("a")
        stage.service.numbers = itertools.count(1)
        assert (await stage.acquire("b")).acquired.tokens == (1,)
        stage.service.numbers = itertools.count(5)
        with pytest.raises(SourceFrozenError):
            await stage.acquire("a")


async def test_a_mint_that_goes_back_behind_its_own_grant_freezes_the_source(make: Callable[..., Any]) -> None:
    async with make(numbers=itertools.count(5)) as stage:
        granted = (await stage.acquire("a", tokens=3)).acquired
        stage.service.numbers = itertools.count(7)
        with pytest.raises(SourceFrozenError):
            await stage.locks.mint(granted.lease_id, stage.secret, 1)
        assert len(stage.frozen) == 1


async def test_a_mint_that_repeats_an_earlier_mint_freezes_the_source(make: Callable[..., Any]) -> None:
    async with make() as stage:
        granted = (await stage.acquire("a")).acquired
        await stage.locks.mint(granted.lease_id, stage.secret, 50)
        stage.service.numbers = itertools.count(2)
        with pytest.raises(SourceFrozenError):
            await stage.locks.mint(granted.lease_id, stage.secret, 3)


async def test_a_grant_that_waited_is_judged_by_what_is_known_when_it_came(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service was restored while it waited: numbers that others were given meanwhile would come again."""
    monkeypatch.setattr(source_grants, "FRESH", 0.0)
    async with make(waits={"a"}) as stage:
        waiting = asyncio.create_task(stage.acquire("a"))
        await stage.service.asked.wait()
        for lock in "bcd":
            await stage.acquire(lock, tokens=3)
        stage.service.numbers = itertools.count(2)
        stage.service.gate.set()
        with pytest.raises(SourceFrozenError):
            await waiting
        assert stage.service.released


async def test_a_hold_that_is_lost_while_its_tokens_are_drawn_is_no_grant(make: Callable[..., Any]) -> None:
    """Drawn in PostgreSQL: only if the service says afterwards that the lock is still held, it was held then."""
    async with make(capabilities=Capabilities("database", fair=False, verifies=False), lost=True) as stage:
        assert (await stage.acquire("a")).acquired.verdict == "held"
        assert await stage.live() == 0
        stage.service.lost = False
        granted = (await stage.acquire("b")).acquired
        assert granted.verdict == "granted"
        secret = stage.secret
        stage.service.lost = True
        assert await stage.locks.mint(granted.lease_id, secret, 1) is None
        stage.service.lost = False
        assert await stage.locks.renew(granted.lease_id, secret, None) is None, "over is over"


@pytest.mark.parametrize("verb", ["grant", "mint", "repeat"])
async def test_a_hold_whose_lease_ends_under_way_is_given_back(make: Callable[..., Any], verb: str) -> None:
    """The generation is raised between two steps. The service knows nothing of that, and holds on."""
    async with make(capabilities=Capabilities("database", fair=False, verifies=False)) as stage:
        service, renew, draw = stage.service, stage.service.renew, sources.draw
        granted = None if verb == "grant" else (await stage.acquire("a")).acquired
        released = len(service.released)

        async def raised_before_the_draw(*asked: Any) -> Any:
            monkeypatch.undo()
            await stage.raised()
            return await draw(*asked)

        async def raised_after_the_renewal(*asked: Any) -> bool:
            held: bool = await renew(*asked)
            service.renew = renew
            await stage.raised()
            return held

        with pytest.MonkeyPatch.context() as monkeypatch:
            if verb == "repeat":
                service.renew = raised_after_the_renewal
                again = await stage.acquire("a", secret=stage.secret)
                assert again.acquired.verdict == "granted", "anew"
            else:
                monkeypatch.setattr(sources, "draw", raised_before_the_draw)
                if granted is None:
                    assert (await stage.acquire("a")).acquired.verdict == "granted", "at the second try"
                else:
                    assert await stage.locks.mint(granted.lease_id, stage.secret, 1) is None
        assert len(service.released) == released + 1


async def test_a_client_that_goes_leaves_no_hold(make: Callable[..., Any]) -> None:
    async with make(waits={"a"}) as stage:
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asking = asyncio.create_task(stage.acquire("a", gone=gone))
        await stage.service.asked.wait()
        gone.set_result(None)
        assert (await asking).acquired.verdict == "held"
        assert not stage.service.held


async def test_a_database_that_cannot_record_it_means_no_grant(make: Callable[..., Any]) -> None:
    async with make(slow={"a"}) as stage:
        asking = asyncio.create_task(stage.acquire("a"))
        await stage.service.asked.wait()
        await stage.observer.execute("ALTER TABLE fencepost.source_leases RENAME TO gone")
        stage.service.gate.set()
        with pytest.raises(Exception, match="source_leases"):
            await asking
        assert stage.service.released == ["a#1"]


async def test_a_hold_that_cannot_be_given_back_is_told(make: Callable[..., Any]) -> None:
    async with make(slow={"a"}, release_fails=True) as stage:
        asking = asyncio.create_task(stage.acquire("a"))
        await stage.service.asked.wait()
        await stage.database.close()
        stage.service.gate.set()
        with pytest.raises(UnavailableError):
            await asking
        assert len(stage.troubles) == 1
        assert "could not be given back" in stage.troubles[0]


async def test_a_claim_that_is_overtaken_takes_newer_tokens_and_so_does_the_answer(make: Callable[..., Any]) -> None:
    """Whoever was first has marked the resource with a token above those that came with the grant."""
    tokens: list[int] = []

    async def claim(_connection: object, token: int, repeated: bool) -> str:
        tokens.append(token)
        if len(tokens) < 3:
            raise Overtaken
        return f"claimed, {repeated}"

    async with make() as stage:
        attempted = await stage.acquire("a", claim=claim)
        assert attempted.claims == "claimed, False"
        assert tokens == [1, 3, 5]
        assert attempted.acquired.tokens == (6,), "the first token of each draw was for the claim"
        again = await stage.acquire("a", claim=claim, secret=stage.secret)
        assert (again.acquired.verdict, again.acquired.tokens, again.claims) == ("repeated", (6,), "claimed, True")


async def test_a_request_that_is_repeated_while_it_claims_waits_and_hears_the_same(make: Callable[..., Any]) -> None:
    claiming, go_on = asyncio.Event(), asyncio.Event()
    seen: list[bool] = []

    async def claim(_connection: object, token: int, repeated: bool) -> int:
        seen.append(repeated)
        claiming.set()
        await go_on.wait()
        return token

    async with make() as stage:
        first = asyncio.create_task(stage.acquire("a", claim=claim))
        await claiming.wait()
        secret = stage.secret
        second = asyncio.create_task(stage.acquire("a", claim=claim, secret=secret))
        await waits_for_advisory_lock(stage.observer)
        go_on.set()
        one, two = await first, await second
        assert (one.acquired.verdict, two.acquired.verdict) == ("granted", "repeated")
        assert (one.claims, two.claims, seen) == (1, 1, [False, True])
        assert one.acquired.tokens == two.acquired.tokens


async def waits_for_advisory_lock(observer: Connection) -> None:
    async def waits() -> bool:
        found: bool = await observer.fetchval(
            "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'advisory'"
            " AND datname = current_database())"
        )
        return found

    await eventually(waits, what="a second request with one secret")


@pytest.mark.parametrize("harm", ["renewed no more", "generation raised"])
async def test_a_lease_that_is_lost_over_its_claims_is_no_grant(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    monkeypatch.setattr(source_claims, "LATE", 0.0)
    tries: list[int] = []

    async def claim(_connection: object, token: int, _repeated: bool) -> str:
        tries.append(token)
        if len(tries) == 1:
            if harm == "generation raised":
                await stage.raised()
                raise SourceError("its token is void now")
            stage.service.held.clear()
        return "claimed"

    async with make() as stage:
        attempted = await stage.acquire("a", claim=claim)
        assert attempted.acquired.verdict == "granted"
        assert attempted.acquired.lease_id == 2, "the second lease; the first came to nothing"
        assert len(tries) == 2
        assert await stage.live() == 1


async def test_what_waited_is_told_without_the_time_that_the_claims_took(make: Callable[..., Any]) -> None:
    """Clients trust a lease from then on: the request's start plus what it waited."""

    async def claim(_connection: object, _token: int, _repeated: bool) -> None:
        await asyncio.sleep(0.3)

    async with make() as stage:
        attempted = await stage.acquire("a", claim=claim)
        assert attempted.waited_ms < 300
        assert attempted.acquired.due_ms is not None
        assert attempted.acquired.due_ms <= 20_000 - 300


async def test_two_requests_with_one_secret_are_not_in_each_others_way(make: Callable[..., Any]) -> None:
    """The one that the service refuses is told of the lease that is its own."""
    async with make(slow={"a"}) as stage:
        first = asyncio.create_task(stage.acquire("a"))
        await stage.service.asked.wait()
        secret = stage.secret
        stage.service.refuses.add("a")
        stage.service.refused_until = stage.service.gate
        second = asyncio.create_task(stage.acquire("a", secret=secret))
        await asyncio.sleep(0)
        stage.service.gate.set()
        one = await first
        two = await second
        assert (one.acquired.verdict, two.acquired.verdict) == ("granted", "repeated")
        assert one.acquired.lease_id == two.acquired.lease_id


async def test_a_holder_may_release_what_is_over_by_our_record(make: Callable[..., Any]) -> None:
    async with make() as stage:
        granted = (await stage.acquire("a")).acquired
        await stage.raised()
        assert stage.service.held == {"a": "a#1"}, "the service knows nothing of generations"
        assert await stage.locks.release(granted.lease_id, b"not mine")
        assert stage.service.held
        assert await stage.locks.release(granted.lease_id, stage.secret)
        assert not stage.service.held


async def test_a_request_that_is_cancelled_with_its_grant_leaves_no_hold(make: Callable[..., Any]) -> None:
    async with make(slow={"a"}) as stage:
        asking = asyncio.create_task(stage.acquire("a"))
        await stage.service.asked.wait()
        stage.service.gate.set()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

        async def free() -> bool:
            return not stage.service.held

        await eventually(free, what="the hold given back")


async def test_one_hold_that_cannot_be_ended_keeps_no_other(make: Callable[..., Any]) -> None:
    capabilities = Capabilities("source", fair=True, verifies=True, ttl_from_server=False)
    async with make(capabilities=capabilities, stuck={"a"}) as stage:
        for lock in "ab":
            wanted = LockRequest((lock,), lock.encode(), "me", 300, 1, (), 0, False)
            await stage.locks.acquire(wanted, None, asyncio.get_running_loop().create_future())

        async def ended() -> bool:
            return "b" not in stage.service.held

        await eventually(ended, what="the other hold's end")
        assert "a" in stage.service.held

        async def said() -> bool:
            return any("could not be ended yet" in trouble for trouble in stage.troubles)

        await eventually(said, what="what is said of the first one")
        stage.service.stuck.clear()


async def test_a_source_that_could_not_be_registered_is_when_it_is_asked(make: Callable[..., Any]) -> None:
    """At the start the database takes no writes, say: reads go on (R13, R19)."""
    async with make() as stage:
        locks = SourceLocks("later", "mock", Scripted(), stage.database, failed=stage.troubles.append)
        await stage.observer.execute("ALTER TABLE fencepost.sources RENAME TO away")
        await locks.open()
        assert "not registered yet" in stage.troubles[-1]
        await stage.observer.execute("ALTER TABLE fencepost.away RENAME TO sources")
        wanted = LockRequest(("a",), b"later", "me", 20_000, 1, (), 0, False)
        attempted = await locks.acquire(wanted, None, asyncio.get_running_loop().create_future())
        assert attempted.acquired.verdict == "granted"
        await locks.close()


async def test_a_gateway_starts_while_a_grant_holds_the_sources_row(make: Callable[..., Any], connect: Connect) -> None:
    async with make() as stage:
        holder = await connect()
        await holder.execute("BEGIN; SELECT FROM fencepost.sources FOR UPDATE")
        again = SourceLocks(NAME, "mock", Scripted(), stage.database)
        await asyncio.wait_for(again.open(), 5)
        await again.close()
        await holder.execute("ROLLBACK")


async def test_a_claim_that_fails_gives_the_lock_back(make: Callable[..., Any]) -> None:
    async def claim(_connection: object, _token: int, _repeated: bool) -> None:
        raise SourceError("refused")

    async with make() as stage:
        with pytest.raises(SourceError, match="refused"):
            await stage.acquire("a", claim=claim)
        assert stage.service.released == ["a#1"]
        assert await stage.live() == 0


async def test_numbers_without_room_for_a_generation_are_refused(make: Callable[..., Any]) -> None:
    async with make(numbers=itertools.count(2**48)) as stage:
        with pytest.raises(SourceError, match="a token has room for"):
            await stage.acquire("a")
        assert stage.service.released == [f"a#{2**48}"]
        assert await stage.live() == 0


async def test_what_lives_by_a_session_is_ended_when_its_lease_is_over(make: Callable[..., Any]) -> None:
    capabilities = Capabilities("source", fair=True, verifies=True, ttl_from_server=False)
    async with make(capabilities=capabilities) as stage:
        wanted = LockRequest(("a",), b"mine", "me", 300, 1, (), 0, False)
        granted = await stage.locks.acquire(wanted, None, asyncio.get_running_loop().create_future())
        assert granted.acquired.verdict == "granted"

        async def given_back() -> bool:
            released: list[str] = stage.service.released
            return released == ["a#1"]

        await eventually(given_back, what="the end of a hold whose lease has expired")
        kept = (await stage.acquire("b")).acquired
        assert kept.verdict == "granted"
    assert "b#2" in stage.service.released, "a gateway that stops takes its holds along"
