"""Grants of a lock service: with claims, in races, and given back."""

import asyncio
import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.sources.scripted import NAME, Scripted
from tests.support.interleave import Connect
from tests.support.manual_clock import ManualClock, settled
from tests.support.servers import until

from fencepost.server.locks.leases import Overtaken
from fencepost.server.locks.source import (
    Capabilities,
    Grant,
    Holder,
    SourceError,
    SourceQuarantinedError,
    SourceUnavailableError,
)
from fencepost.server.locks.source_leases import SourceLocks
from fencepost.server.postgres import sources
from fencepost.server.postgres.errors import UnavailableError
from fencepost.server.postgres.leases import LockRequest
from fencepost.server.times import SourceTimes, Times
from fencepost.testing.servers.processes import PATIENCE, eventually

# A grant with claims (locks/source_leases.py), and requests that are repeated while it is under way.


async def test_a_claim_that_is_overtaken_takes_newer_tokens_and_so_does_the_answer(make: Callable[..., Any]) -> None:
    """The first request has marked the resource with a token above those that came with the grant."""
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
        assert attempted.lease.tokens == (6,), "the first token of each draw was for the claim"
        again = await stage.acquire("a", claim=claim, secret=stage.secret)
        assert (again.verdict, again.lease.tokens, again.claims) == ("repeated", (6,), "claimed, True")


async def test_a_request_that_is_repeated_while_it_claims_waits_and_gets_the_same(make: Callable[..., Any]) -> None:
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

        async def waits() -> bool:
            found: bool = await stage.observer.fetchval(
                "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'advisory'"
                " AND datname = current_database())"
            )
            return found

        await eventually(waits, what="a second request with one secret")
        go_on.set()
        one, two = await first, await second
        assert (one.verdict, two.verdict) == ("granted", "repeated")
        assert (one.claims, two.claims, seen) == (1, 1, [False, True])
        assert one.lease.tokens == two.lease.tokens


@pytest.mark.parametrize("harm", ["renewed no more", "generation raised", "ended by its row"])
async def test_a_lease_that_is_lost_over_its_claims_is_no_grant(make: Callable[..., Any], harm: str) -> None:
    tries: list[int] = []

    async def claim(_connection: object, token: int, _repeated: bool) -> str:
        tries.append(token)
        if len(tries) == 1:
            if harm == "generation raised":
                await stage.raised()
                raise SourceError("its token is void now")
            if harm == "ended by its row":
                await stage.observer.execute("UPDATE fencepost.source_leases SET ended_at = clock_timestamp()")
            else:
                stage.service.held.clear()
        return "claimed"

    never_late = harm == "ended by its row"  # else it is renewed after its claims, which shows that it is lost
    async with make(Times(sources=SourceTimes(late_share=never_late))) as stage:
        attempted = await stage.acquire("a", claim=claim)
        assert attempted.verdict == "granted"
        assert attempted.lease.lease_id == 2**47 + 2, "the second lease; the first came to nothing"
        assert len(tries) == 2
        assert await stage.live() == 1


async def test_a_wait_is_reported_without_the_time_that_the_claims_took(make: Callable[..., Any]) -> None:
    """Clients trust a lease from then on: the request's start plus what it waited."""
    clock = ManualClock()

    async def claim(_connection: object, _token: int, _repeated: bool) -> None:
        await clock.advance(0.3)

    async with make(Times(clock=clock)) as stage:
        attempted = await stage.acquire("a", claim=claim)
        assert attempted.waited_ms == 0
        assert attempted.lease.remaining_ms is not None
        assert attempted.lease.remaining_ms <= 20_000 - 300


async def test_two_requests_with_one_secret_are_not_in_each_others_way(make: Callable[..., Any]) -> None:
    """The one that the service refuses gets the lease that is its own."""
    async with make(slow={"a"}) as stage:
        first = asyncio.create_task(stage.acquire("a"))
        await stage.service.asked.wait()
        secret = stage.secret
        stage.service.refuses.add("a")
        stage.service.refused_until = asyncio.Event()
        second = asyncio.create_task(stage.elsewhere().acquire("a", secret=secret))
        await asyncio.sleep(0)
        stage.service.gate.set()
        one = await first
        stage.service.refused_until.set()
        two = await second
        assert (one.verdict, two.verdict) == ("granted", "repeated")
        assert one.lease.lease_id == two.lease.lease_id


@pytest.mark.parametrize("end", [SourceError("refused"), asyncio.CancelledError()])
async def test_a_claim_that_fails_gives_the_lock_back(make: Callable[..., Any], end: BaseException) -> None:
    async def claim(_connection: object, _token: int, _repeated: bool) -> None:
        raise end

    async with make() as stage:
        with pytest.raises(type(end)):
            await stage.acquire("a", claim=claim)
        assert stage.service.released == ["a#1"]
        assert await stage.live() == 0


# Interleavings of a grant (locks/source_leases.py): between the service's answer, its record, and another grant's.


async def test_a_generation_that_is_raised_under_way_makes_the_grant_void(make: Callable[..., Any]) -> None:
    async with make(slow={"a"}) as stage:
        asking = asyncio.create_task(stage.acquire("a"))
        await stage.service.asked.wait()
        await stage.raised()
        stage.service.slow.clear()
        stage.service.gate.set()
        granted = await asking
        assert granted.verdict == "granted"
        assert granted.lease.tokens[0] > 2**48
        assert stage.service.released == ["a#1"], "what was asked for in the generation before is given back"
        assert not stage.quarantined


async def test_a_grant_that_is_recorded_after_its_successors_is_void(make: Callable[..., Any]) -> None:
    """The first grant's gateway was slow to record it; meanwhile it expired, and the lock was granted again."""
    async with make(slow={"a"}) as stage:
        first = asyncio.create_task(stage.acquire("a"))
        await stage.service.asked.wait()
        stage.service.slow.clear()
        second = await stage.elsewhere().acquire("a")
        assert (second.verdict, second.lease.tokens) == ("granted", (2,))
        stage.service.gate.set()
        again = await first
        assert again.lease.tokens[0] > 2, "never the token of its first grant, which is older than the second's"
        assert "a#1" in stage.service.released
        assert not stage.quarantined, "it was not backwards: nothing above it was known when it was asked for"


async def test_a_number_that_a_restored_service_gives_again_is_recorded_once(make: Callable[..., Any]) -> None:
    """Both grants were asked for when nothing was recorded: neither number is below what was known."""
    async with make(slow={"a"}) as stage:
        first = asyncio.create_task(stage.acquire("a"))
        await stage.service.asked.wait()
        stage.service.slow.clear()
        stage.service.numbers = itertools.count(1)
        assert (await stage.elsewhere().acquire("a")).lease.tokens == (1,)
        stage.service.gate.set()
        assert (await first).lease.tokens == (2,)


async def test_what_remains_of_a_repeated_lease_is_read_after_the_service_was_asked(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with make() as stage:
        await stage.acquire("a", secret="mine")

        async def renew(*_: object) -> bool:
            shorter = "UPDATE fencepost.source_leases SET expires_at = expires_at - interval '10 s'"
            return bool(await stage.observer.execute(shorter))

        monkeypatch.setattr(stage.service, "renew", renew)
        again = await stage.acquire("a", secret="mine")
        assert (again.verdict, again.lease.remaining_ms <= 10_000) == ("repeated", True), again


@pytest.mark.parametrize("number", [5, 4])
async def test_a_number_not_above_what_was_issued_quarantines_the_source(make: Callable[..., Any], number: int) -> None:
    async with make(numbers=itertools.count(5)) as stage:
        assert (await stage.acquire("a")).lease.tokens == (5,)
        stage.service.numbers = itertools.count(number)
        with pytest.raises(SourceQuarantinedError, match=f"has the token {number}, which is not above all that had"):
            await stage.acquire("b")
        assert f"b#{number}" in stage.service.released
        with pytest.raises(SourceQuarantinedError):
            await stage.acquire("c")
        assert len(stage.quarantined) == 1, "said once"
        await stage.raised()
        assert (await stage.acquire("d")).lease.tokens[0] > 2**48


async def test_where_numbers_rise_within_a_lock_another_locks_are_not_compared(make: Callable[..., Any]) -> None:
    async with make(capabilities=Capabilities("lock", fair=True, verifies=False), numbers=itertools.count(5)) as stage:
        await stage.acquire("a")
        stage.service.numbers = itertools.count(1)
        assert (await stage.acquire("b")).lease.tokens == (1,)
        stage.service.numbers = itertools.count(5)
        with pytest.raises(SourceQuarantinedError):
            await stage.acquire("a")


@pytest.mark.parametrize(("minted", "number"), [(0, 7), (50, 40)])
async def test_a_mint_that_repeats_its_grant_or_an_earlier_mint_quarantines_the_source(
    make: Callable[..., Any], minted: int, number: int
) -> None:
    async with make(numbers=itertools.count(5)) as stage:
        granted = await stage.acquire("a", tokens=3)
        if minted:
            await stage.locks.mint(granted.lease.lease_id, stage.secret_hash, minted)
        stage.service.numbers = itertools.count(number)
        with pytest.raises(SourceQuarantinedError):
            await stage.locks.mint(granted.lease.lease_id, stage.secret_hash, 1)
        assert len(stage.quarantined) == 1


async def test_a_grant_that_waited_is_judged_by_what_is_known_when_it_came(make: Callable[..., Any]) -> None:
    """The service was restored while it waited: numbers that others were given meanwhile would come again."""
    async with make(Times(sources=SourceTimes(fresh=0)), waits={"a"}) as stage:
        waiting = asyncio.create_task(stage.acquire("a"))
        await stage.service.asked.wait()
        for lock in "bcd":
            await stage.acquire(lock, tokens=3)
        stage.service.numbers = itertools.count(2)
        stage.service.gate.set()
        with pytest.raises(SourceQuarantinedError):
            await waiting
        assert stage.service.released


async def test_a_source_that_could_not_be_registered_is_when_it_is_asked(make: Callable[..., Any]) -> None:
    """At the start the database takes no writes, for example: reads go on (R13, R19)."""
    async with make() as stage:
        locks = SourceLocks("later", "mock", Scripted(), stage.database, failed=stage.troubles.append)
        await stage.observer.execute("ALTER TABLE fencepost.sources RENAME TO away")
        await locks.open()
        assert "not registered yet" in stage.troubles[-1]
        await stage.observer.execute("ALTER TABLE fencepost.away RENAME TO sources")
        wanted = LockRequest(("a",), "later", "me", 20_000)
        attempted = await locks.take(wanted, None, asyncio.get_running_loop().create_future())
        assert attempted.verdict == "granted"
        await locks.close()


async def test_a_gateway_starts_while_a_grant_holds_the_sources_row(make: Callable[..., Any], connect: Connect) -> None:
    async with make() as stage:
        holder = await connect()
        await holder.execute("BEGIN; SELECT FROM fencepost.sources FOR UPDATE")
        again = SourceLocks(NAME, "mock", Scripted(), stage.database)
        await asyncio.wait_for(again.open(), PATIENCE)
        await again.close()
        await holder.execute("ROLLBACK")


async def test_numbers_without_room_for_a_generation_are_refused(make: Callable[..., Any]) -> None:
    async with make(numbers=itertools.count(2**48)) as stage:
        with pytest.raises(SourceError, match="a token has room for"):
            await stage.acquire("a")
        assert stage.service.released == [f"a#{2**48}"]
        assert await stage.live() == 0


# Holds of a lock service that became no lease, or whose lease is over: they are given back.


async def test_a_hold_that_is_lost_while_its_tokens_are_drawn_is_no_grant(make: Callable[..., Any]) -> None:
    """Drawn in PostgreSQL: only if the service confirms afterwards that the lock is still held, it was held then."""
    async with make(capabilities=Capabilities("database", fair=False, verifies=False), lost=True) as stage:
        assert (await stage.acquire("a")).verdict == "held"
        assert await stage.live() == 0
        stage.service.lost = False
        granted = await stage.acquire("b")
        assert granted.verdict == "granted"
        secret = stage.secret_hash
        stage.service.lost = True
        assert await stage.locks.mint(granted.lease.lease_id, secret, 1) is None
        stage.service.lost = False
        assert await stage.locks.renew(granted.lease.lease_id, secret, None) is None, "over is over"


@pytest.mark.parametrize("verb", ["grant", "mint", "repeat"])
async def test_a_hold_whose_lease_ends_under_way_is_given_back(make: Callable[..., Any], verb: str) -> None:
    """The generation is raised between two steps. The service knows nothing of that, and holds on."""
    async with make(capabilities=Capabilities("database", fair=False, verifies=False)) as stage:
        service, renew, draw = stage.service, stage.service.renew, sources.draw
        granted = None if verb == "grant" else await stage.acquire("a")
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
                assert again.verdict == "granted", "anew"
            else:
                monkeypatch.setattr(sources, "draw", raised_before_the_draw)
                if granted is None:
                    assert (await stage.acquire("a")).verdict == "granted", "at the second try"
                else:
                    assert await stage.locks.mint(granted.lease.lease_id, stage.secret_hash, 1) is None
        assert len(service.released) == released + 1


async def test_a_hold_that_cannot_be_given_back_is_reported(make: Callable[..., Any]) -> None:
    async with make(slow={"a"}, release_fails=True) as stage:
        asking = asyncio.create_task(stage.acquire("a"))
        await stage.service.asked.wait()
        await stage.database.close()
        stage.service.gate.set()
        with pytest.raises(UnavailableError):
            await asking
        assert len(stage.troubles) == 1
        assert "could not be given back" in stage.troubles[0]


async def test_a_holder_may_release_what_is_over_by_our_record(make: Callable[..., Any]) -> None:
    async with make() as stage:
        granted = await stage.acquire("a")
        await stage.raised()
        assert stage.service.held == {"a": "a#1"}, "the service knows nothing of generations"
        assert await stage.locks.release(granted.lease.lease_id, b"not mine")
        assert stage.service.held
        assert await stage.locks.release(granted.lease.lease_id, stage.secret_hash)
        assert not stage.service.held


async def test_a_request_that_is_cancelled_with_its_grant_leaves_no_hold(make: Callable[..., Any]) -> None:
    async with make(slow={"a"}) as stage:
        asking = asyncio.create_task(stage.acquire("a"))
        await stage.service.asked.wait()
        stage.service.gate.set()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await until(lambda: not stage.service.held, what="the hold given back")


async def test_a_gateway_that_stops_lets_a_hold_be_given_back_before_it_leaves_the_service(
    make: Callable[..., Any],
) -> None:
    done: list[str] = []
    async with make(slow={"a"}) as stage:
        service, release = stage.service, stage.service.release
        begun, may_end = asyncio.Event(), asyncio.Event()

        async def release_later(*asked: Any) -> None:
            begun.set()
            await may_end.wait()
            await release(*asked)
            done.append("released")

        async def close() -> None:
            done.append("closed")

        service.release, service.close = release_later, close
        asking = asyncio.create_task(stage.acquire("a"))
        await service.asked.wait()
        service.gate.set()
        asking.cancel()
        await begun.wait()
        asking.cancel()  # the caller waits no longer
        await asyncio.wait([asking])
        closing = asyncio.create_task(stage.locks.close())
        await settled()
        may_end.set()
        await closing
        assert done == ["released", "closed"]


async def test_one_hold_that_cannot_be_ended_keeps_no_other(make: Callable[..., Any]) -> None:
    capabilities = Capabilities("source", fair=True, verifies=True, ttl_from_server=False)
    async with make(capabilities=capabilities, stuck={"a"}) as stage:
        for lock in "ab":
            wanted = LockRequest((lock,), lock, "me", 300)
            await stage.locks.take(wanted, None, asyncio.get_running_loop().create_future())
        await until(lambda: "b" not in stage.service.held, what="the other hold's end")
        assert "a" in stage.service.held
        await until(lambda: any("could not be ended yet" in each for each in stage.troubles), what="a word about a")
        stage.service.stuck.clear()


async def test_what_lives_by_a_session_is_ended_when_its_lease_is_over(make: Callable[..., Any]) -> None:
    capabilities = Capabilities("source", fair=True, verifies=True, ttl_from_server=False)
    async with make(capabilities=capabilities) as stage:
        wanted = LockRequest(("a",), "mine", "me", 300)
        granted = await stage.locks.take(wanted, None, asyncio.get_running_loop().create_future())
        assert granted.verdict == "granted"
        await until(lambda: stage.service.released == ["a#1"], what="the end of a hold whose lease has expired")
        assert (await stage.acquire("b")).verdict == "granted"
    assert "b#2" in stage.service.released, "a gateway that stops takes its holds along"


# Requests that wait for one lock at one gateway: the first asks the service, the others stand in line.

NEVER_OLD = Times(sources=SourceTimes(fresh=math.inf))


class Line:
    """Requests for the lock `a`. The test answers for the service (`asked`), and says which clients have `gone`."""

    def __init__(self, stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stage, self.gone = stage, list[asyncio.Future[None]]()
        self.asked, self.requests = list[asyncio.Future[Any]](), list[asyncio.Task[Any]]()
        self._looks, find = 0, sources.find_by_secret

        async def acquire(*_: Any, **__: Any) -> Any:
            self.asked.append(asyncio.get_running_loop().create_future())
            return await self.asked[-1]

        async def look(*asked: Any) -> Any:
            found = await find(*asked)
            self._looks += 1
            return found

        stage.service.acquire = acquire
        monkeypatch.setattr(sources, "find_by_secret", look)

    async def fill(self, number: int) -> None:
        """Let so many requests come; the first asks the service, the others wait."""
        for _ in range(number):
            self.gone.append(asyncio.get_running_loop().create_future())
            self.requests.append(asyncio.create_task(self.stage.acquire("a", gone=self.gone[-1])))
        await self.looks(number)
        assert [len(self.asked), *(each.done() for each in self.requests)] == [1] + [False] * number

    async def looks(self, number: int) -> None:
        """Return when requests have looked so often whether their secret has a lease."""
        await until(lambda: self._looks == number, what=f"{number} looks")
        await settled()

    async def grant(self, request: int, *, asked: int) -> None:
        """Grant the lock to a request, for which the service has now been asked so often as all requests together."""
        await until(lambda: len(self.asked) == asked, what=f"{asked} questions")
        self.asked[-1].set_result(Grant(f"a#{asked}", (10 * asked,)))
        assert (await asyncio.wait_for(self.requests[request], PATIENCE)).lease.tokens == (10 * asked,)

    def leave(self, request: int, how: str) -> None:
        """Let the client hang up (gone), or end the request (cancelled)."""
        if how == "gone":
            self.gone[request].set_result(None)
        else:
            self.requests[request].cancel()


@pytest.mark.parametrize("end", ["granted", "gone", "cancelled", "away"])
async def test_when_the_first_in_line_is_through_the_next_one_asks(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    async with make(NEVER_OLD) as stage:
        line = Line(stage, monkeypatch)
        await line.fill(3)
        if end == "granted":
            await line.grant(0, asked=1)
        elif end == "away":
            line.asked[0].set_exception(SourceUnavailableError("it is away"))
            with pytest.raises(SourceUnavailableError):
                await line.requests[0]
        else:
            line.leave(0, end)
            await asyncio.wait(line.requests[:1])
            assert line.asked[0].cancelled(), "the service is asked no longer, and gives back what it has granted"
        await line.grant(1, asked=2)
        await line.grant(2, asked=3)


@pytest.mark.parametrize("how", ["gone", "cancelled"])
@pytest.mark.parametrize("turn", [False, True], ids=["asleep", "as_its_turn_comes"])
async def test_who_leaves_the_line_takes_no_turn_along(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, how: str, turn: bool
) -> None:
    async with make(NEVER_OLD) as stage:
        line = Line(stage, monkeypatch)
        await line.fill(3)
        if turn:
            line.requests[0].add_done_callback(lambda _: line.leave(1, how))
        else:
            line.leave(1, how)
            await asyncio.wait(line.requests[1:2])
        await line.grant(0, asked=1)
        await line.grant(2, asked=2)
        assert line.requests[1].cancelled() or line.requests[1].result().verdict == "held"


async def test_a_gateway_that_stops_sends_the_line_away_while_the_first_still_claims(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    claiming, go_on = asyncio.Event(), asyncio.Event()

    async def claim(_connection: object, token: int, _repeated: bool) -> int:
        claiming.set()
        await go_on.wait()
        return token

    async with make() as stage:
        first = asyncio.create_task(stage.acquire("a", claim=claim))
        await claiming.wait()
        line, waiting = Line(stage, monkeypatch), asyncio.create_task(stage.acquire("a"))
        await line.looks(1)
        stage.locks.stop()
        ended, _ = await asyncio.wait((waiting, asyncio.create_task(stage.acquire("a"))), timeout=PATIENCE)
        go_on.set()
        assert (await first).verdict == "granted"
        assert ["stopping" in str(each.exception()) for each in ended] == [True, True]


async def test_whose_time_is_up_in_line_learns_who_has_the_lock_by_one_question(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, questions, answer = ManualClock(), list[str](), asyncio.Event()

    async def inspect(lock: str) -> Holder:
        questions.append(lock)
        await answer.wait()
        return Holder("other", 70)

    async with make(replace(NEVER_OLD, clock=clock)) as stage:
        line, stage.service.inspect = Line(stage, monkeypatch), inspect
        await line.fill(3)
        async with clock.running():
            await line.looks(5)  # the holder may have been one of them, sent twice
        answer.set()
        for each in line.requests[1:]:
            held = await asyncio.wait_for(each, PATIENCE)
            assert (held.verdict, held.owner, held.due_ms) == ("held", "other", 70)
        assert questions == ["a"]
        line.asked[0].set_result(Holder())
        assert (await line.requests[0]).verdict == "held"


async def test_a_repeated_request_does_not_wait_behind_those_in_line(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with make(NEVER_OLD) as stage:
        granted, secret = await stage.acquire("a"), stage.secret
        line = Line(stage, monkeypatch)
        await line.fill(2)
        again = await asyncio.wait_for(stage.acquire("a", secret=secret), PATIENCE)
        assert (again.verdict, again.lease.id) == ("repeated", granted.lease.id)
        await line.grant(0, asked=1)
        await stage.observer.execute("SELECT fencepost.source_quarantine($1, 'a test')", NAME)
        with pytest.raises(SourceQuarantinedError):  # nor is one let in line for what nobody is granted
            await asyncio.wait_for(stage.acquire("a"), PATIENCE)
        line.leave(1, "gone")
        assert (await line.requests[1]).verdict == "held"


@pytest.mark.parametrize("fair", [True, False])
async def test_who_does_not_wait_overtakes_those_in_line_only_where_the_service_has_no_order(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, fair: bool
) -> None:
    async with make(NEVER_OLD, capabilities=Capabilities("source", fair=fair, verifies=True)) as stage:
        line = Line(stage, monkeypatch)
        await line.fill(2)
        wanted = LockRequest(("a",), "at once", "me", 20_000)
        line.requests.append(asyncio.create_task(stage.locks.take(wanted, None, line.gone[0])))
        if fair:
            assert (await asyncio.wait_for(line.requests[2], PATIENCE)).verdict == "held"
            assert len(line.asked) == 1
        else:
            await line.grant(2, asked=2)
