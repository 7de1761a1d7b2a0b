"""The queues of locks (R9): their order, who is woken, and which waiters count."""

from uuid import uuid4

from tests.races.openings import QUEUE_OF_LOCKS, opened
from tests.races.test_leases import granted, in_the_way
from tests.support.lease_racing import ELSEWHERE, MINUTE, LeaseRace, notified

from fencepost.server.postgres import leases

pytestmark = opened(QUEUE_OF_LOCKS)

GIVEN_UP = "UPDATE fencepost.waiters SET give_up_at = clock_timestamp() - interval '1 ms' WHERE visit = $1"


async def test_no_request_passes_those_that_wait(race: LeaseRace) -> None:
    """The lock is free and its first waiter not there yet: a request that comes meanwhile gets in line behind it."""
    holder = granted(await race.acquire(race.a, "x", secret="holder", owner="holder"))
    first = await race.queue(race.b, "x", secret="first")
    assert await race.release(race.a, holder.lease_id, "holder")
    passer_by = in_the_way(await race.acquire(race.c, "x", secret="passer-by"))
    assert (passer_by.verdict, passer_by.lock, passer_by.lease_id, passer_by.waiting) == ("held", "x", None, 1)
    second = await race.queue(race.c, "x", secret="second")
    assert await race.waiting("x") == ["first", "second"]
    assert (await race.acquire(race.c, "x", secret="second", visit=second, wait_ms=MINUTE)).verdict == "queued"
    one = granted(await race.acquire(race.b, "x", secret="first", visit=first, wait_ms=MINUTE))
    assert await race.waiting("x") == ["second"]
    behind = in_the_way(await race.acquire(race.c, "x", secret="second", visit=second, wait_ms=MINUTE))
    assert (behind.verdict, behind.first, behind.lease_id) == ("queued", True, one.lease_id)
    assert await race.release(race.b, one.lease_id, "first")
    two = granted(await race.acquire(race.c, "x", secret="second", visit=second, wait_ms=MINUTE))
    assert min(two.tokens) > max(one.tokens)
    assert await race.waiting("x") == []


async def test_release_wakes_the_first_and_no_other(race: LeaseRace) -> None:
    """No herd: of three waiters one is notified."""
    seen = await race.listen(race.observer)
    holder = granted(await race.acquire(race.a, "x", secret="holder"))
    visits = [await race.queue(race.b, "x", secret=name) for name in ("first", "second", "third")]
    assert await race.release(race.b, holder.lease_id, "not the holder") is False
    assert await notified(race.observer, seen) == []
    assert await race.release(race.a, holder.lease_id, "holder")
    assert await notified(race.observer, seen) == [visits[0]]
    assert await race.release(race.a, holder.lease_id, "holder")
    assert await notified(race.observer, seen) == [], "released twice, woken once"


async def test_release_notifies_its_own_gateway_directly(race: LeaseRace) -> None:
    """The first waiter of each lock is notified once: by NOTIFY elsewhere, without it at the gateway that releases."""
    seen = await race.listen(race.observer)
    holder = granted(await race.acquire(race.a, "a", "b", "c", secret="holder"))
    both = await race.queue(race.b, "b", "a", secret="both")
    await race.queue(race.b, "a", secret="a")
    elsewhere = await race.queue(race.b, "c", secret="c")
    await race.observer.execute("INSERT INTO fencepost.gateways VALUES ($1, clock_timestamp())", ELSEWHERE)
    await race.observer.execute("UPDATE fencepost.waiters SET gateway = $1 WHERE visit = $2", ELSEWHERE, elsewhere)
    there = await race.listen(race.observer, ELSEWHERE)
    woken = await race.release_here(race.a, holder.lease_id, "holder")
    assert woken is not None
    assert set(woken) == {both}
    assert await notified(race.observer, seen) == []
    assert await notified(race.observer, there) == [elsewhere]


async def test_leaving_wakes_the_next(race: LeaseRace) -> None:
    """The first waiter was woken and is gone: the one behind it is notified, whichever way the first one left."""
    seen = await race.listen(race.observer)
    for number, way in enumerate(("leaves", "last try", "a heartbeat says so", "gateway retires")):
        name = f"x{number}"
        holder = granted(await race.acquire(race.a, name, secret=f"holder{number}"))
        first, second = [await race.queue(race.b, name, secret=f"{who}{number}") for who in ("first", "second")]
        third = await race.queue(race.b, name, secret=f"third{number}")
        other = uuid4()
        if way == "gateway retires":
            await race.observer.execute("UPDATE fencepost.waiters SET gateway = $1 WHERE visit = $2", other, first)
        assert await race.release(race.a, holder.lease_id, f"holder{number}")
        await notified(race.observer, seen)
        match way:
            case "leaves":
                await leases.leave(race.b, first)
            case "last try":
                foreign = granted(await race.acquire_past(race.c, name, secret=f"foreign{number}"))
                last = in_the_way(await race.acquire(race.b, name, secret=f"first{number}", visit=first))
                assert (last.verdict, last.lease_id) == ("held", foreign.lease_id)
            case "a heartbeat says so":
                await race.beat(second, third, left=(first,))
            case _:
                await leases.retire(race.b, other)
        assert await notified(race.observer, seen) == [second], way
        assert await race.waiting(name) == [f"second{number}", f"third{number}"]
        await race.observer.execute("DELETE FROM fencepost.waiters")


async def test_who_gets_in_line_while_the_first_leaves_is_woken(race: LeaseRace) -> None:
    """Its ticket is not committed yet: the one that leaves waits for it, or nobody would wake it."""
    seen = await race.listen(race.observer)
    holder = granted(await race.acquire(race.a, "x", secret="holder"))
    first = await race.queue(race.b, "x", secret="first")
    assert await race.release(race.a, holder.lease_id, "holder")
    assert await notified(race.observer, seen) == [first]
    arriving = await race.begin(race.c)
    second = await race.queue(race.c, "x", secret="second")
    leaving = await race.waits(race.b, leases.leave(race.b, first))
    await arriving.commit()
    await leaving
    assert await notified(race.observer, seen) == [second]


async def test_no_request_waits_for_the_dead(race: LeaseRace) -> None:
    """Waiters that gave up, or whose gateway is silent, do not count: the lock goes to who is there."""
    holder = granted(await race.acquire(race.a, "x", secret="holder"))
    gone = await race.queue(race.b, "x", secret="given up")
    await race.observer.execute(GIVEN_UP, gone)
    here = await race.queue(race.b, "x", secret="here")
    assert await race.release(race.a, holder.lease_id, "holder")
    assert await race.waiting("x") == ["here"]
    one = granted(await race.acquire(race.b, "x", secret="here", visit=here, wait_ms=MINUTE))
    await race.queue(race.b, "x", secret="at a silent gateway")
    silent = "UPDATE fencepost.gateways SET seen_at = seen_at - interval '31 min' WHERE gateway = $1"
    await race.observer.execute(silent, race.gateway)
    assert await race.release(race.b, one.lease_id, "here")
    assert await race.waiting("x") == []
    granted(await race.acquire(race.c, "x", secret="passer-by"))


async def test_beat_names_who_is_first(race: LeaseRace) -> None:
    """A gateway is notified, once a second, which of its waiters are to try, and when."""
    holder = granted(await race.acquire(race.a, "held", secret="holder"))
    held = [await race.queue(race.b, "held", secret=f"held{number}") for number in (1, 2)]
    lease = granted(await race.acquire(race.a, "free", secret="had it"))
    free = await race.queue(race.b, "free", secret="free")
    assert await race.release(race.a, lease.lease_id, "had it")
    # First for a lock that is free, and third for another one: it need not try.
    waits_for_two = await race.queue(race.b, "held", "alone", secret="two")
    due = await race.beat(*held, free, waits_for_two)
    assert due.keys() == {held[0], free}
    assert due[free] == 0
    assert MINUTE - 10_000 < due[held[0]] <= MINUTE
    await race.expire(holder.lease_id)
    assert (await race.beat(*held, free, waits_for_two))[held[0]] == 0


async def test_beat_notifies_those_without_a_place(race: LeaseRace) -> None:
    """A waiter whose place is gone (a crash, a repeated request) is notified to look, or it would sleep until its
    end.
    """
    granted(await race.acquire(race.a, "x", secret="holder"))
    placed = [await race.queue(race.b, "x", secret=name) for name in ("first", "second")]
    lost = await race.queue(race.b, "x", secret="third")
    await race.observer.execute("DELETE FROM fencepost.waiters WHERE visit = $1", lost)
    due = await race.beat(*placed, lost)
    assert due.keys() == {placed[0], lost}
    assert due[lost] == 0


async def test_repeat_keeps_the_place(race: LeaseRace) -> None:
    """A waiter that asks again with its secret keeps its ticket; woken is the request that is there."""
    seen = await race.listen(race.observer)
    holder = granted(await race.acquire(race.a, "x", "y", secret="holder"))
    first = await race.queue(race.b, "x", "y", secret="first")
    ticket = await race.tickets("first")
    await race.queue(race.b, "x", secret="second")
    again = await race.queue(race.b, "y", "x", secret="first")
    assert again != first
    assert await race.tickets("first") == ticket
    assert len(set(ticket)) == 1
    assert await race.waiting("x") == ["first", "second"]
    assert await race.release(race.a, holder.lease_id, "holder")
    assert await notified(race.observer, seen) == [again]


async def test_earlier_request_does_not_take_the_place_along(race: LeaseRace) -> None:
    """The first request of two with one secret ends, by its last try or by leaving: the place is the second's."""
    granted(await race.acquire(race.a, "x", secret="holder"))
    for number, way in enumerate(("leaves", "last try")):
        secret = f"waiter{number}"
        first = await race.queue(race.b, "x", secret=secret)
        await race.queue(race.b, "x", secret=secret)
        ticket = await race.tickets(secret)
        if way == "leaves":
            await leases.leave(race.b, first)
        else:
            assert (await race.acquire(race.b, "x", secret=secret, visit=first)).verdict == "held"
        assert await race.tickets(secret) == ticket, way


async def test_place_is_kept_for_a_while(race: LeaseRace) -> None:
    """Between two requests of a waiter its place holds others up; when it does not come back, it is gone."""
    seen = await race.listen(race.observer)
    holder = granted(await race.acquire(race.a, "x", secret="holder"))
    first = await race.queue(race.b, "x", secret="first")
    second = await race.queue(race.b, "x", secret="second")
    ticket = await race.tickets("first")
    await leases.leave(race.b, first, 3000)
    assert await race.waiting("x") == ["first", "second"]
    await race.beat(second)
    assert await race.waiting("x") == ["first", "second"], "the beat of its gateway does not know it any more"
    assert await race.release(race.a, holder.lease_id, "holder")
    assert await notified(race.observer, seen) == [], "there is no waiter to wake"
    assert (await race.acquire(race.c, "x", secret="second", visit=second, wait_ms=MINUTE)).verdict == "queued"
    back = uuid4()
    one = granted(await race.acquire(race.b, "x", secret="first", visit=back, wait_ms=MINUTE))
    # Once more; and this time it stays away for too long.
    third = await race.queue(race.b, "x", secret="third")
    await leases.leave(race.b, second, 3000)
    await race.observer.execute(GIVEN_UP, second)
    assert await race.release(race.b, one.lease_id, "first")
    due = await race.beat(third)
    assert due == {third: 0}
    fourth = await race.queue(race.c, "x", secret="second")
    assert await race.waiting("x") == ["third", "second"], "it comes back, behind those who were there"
    assert min(await race.tickets("second")) > min(ticket)
    granted(await race.acquire(race.b, "x", secret="third", visit=third, wait_ms=MINUTE))
    await leases.leave(race.c, fourth)


async def test_several_locks_are_not_starved(race: LeaseRace) -> None:
    """Who waits for two locks is passed on neither, though each is free for a moment again and again."""
    seen = await race.listen(race.observer)
    a = granted(await race.acquire(race.a, "a", secret="holds a"))
    b = granted(await race.acquire(race.a, "b", secret="holds b"))
    both = await race.queue(race.b, "b", "a", secret="both")
    only_a = await race.queue(race.b, "a", secret="only a")
    only_b = await race.queue(race.b, "b", secret="only b")
    assert await race.release(race.a, a.lease_id, "holds a")
    assert await notified(race.observer, seen) == [both]
    waits = await race.acquire(race.b, "a", "b", secret="both", visit=both, wait_ms=MINUTE)
    assert (waits.verdict, waits.lock, waits.first) == ("queued", "b", True)
    assert (await race.acquire(race.c, "a", secret="only a", visit=only_a, wait_ms=MINUTE)).verdict == "queued"
    assert (await race.acquire(race.c, "a", secret="passer-by")).verdict == "held"
    assert await race.release(race.a, b.lease_id, "holds b")
    assert await notified(race.observer, seen) == [both]
    assert (await race.acquire(race.c, "b", secret="only b", visit=only_b, wait_ms=MINUTE)).verdict == "queued"
    two = granted(await race.acquire(race.b, "a", "b", secret="both", visit=both, wait_ms=MINUTE))
    assert await race.release(race.b, two.lease_id, "both")
    assert set(await notified(race.observer, seen)) == {only_a, only_b}
    granted(await race.acquire(race.b, "a", secret="only a", visit=only_a, wait_ms=MINUTE))
    granted(await race.acquire(race.b, "b", secret="only b", visit=only_b, wait_ms=MINUTE))
