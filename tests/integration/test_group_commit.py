"""The protocol of group commit, on real connections. What a queue runs is the test's own, and time stands still."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.support.asking import asked_by
from tests.support.interleave import Connect
from tests.support.manual_clock import ManualClock

from fencepost.server.postgres.connection import Connection, Limits
from fencepost.server.postgres.database import Database
from fencepost.server.postgres.errors import OutcomeUnknownError, UnavailableError, map_errors
from fencepost.server.postgres.group_commit import AGAIN, ALONE, HELD, Alone, BatchQueue, Broken, GroupCommit
from fencepost.server.quota import UNKNOWN
from fencepost.server.times import TIMES, Times
from fencepost.testing.servers.processes import PATIENCE, eventually

Words = Sequence[str]


@dataclass
class Stage:
    """A queue whose batches are lists of words. `gate` closed, the batch that has begun waits."""

    database: Database
    group: GroupCommit
    clock: ManualClock
    batches: list[list[str]] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    answer: Callable[[Connection, Words], Awaitable[Sequence[str | Alone]]] | None = None

    async def run(self, connection: Connection, words: Words) -> Sequence[str | Alone]:
        self.batches.append(list(words))
        self.begun.set()
        await self.gate.wait()
        with map_errors(writing=True):
            if self.answer is not None:
                return await self.answer(connection, words)
            return [word.upper() for word in words]

    def queue(self, *, most: int = 256) -> BatchQueue[str, str]:
        # Words that end in x may not meet.
        return BatchQueue(self.run, str, len, lambda word: ["x"] if word.endswith("x") else [], most)

    def refuse(self, culprit: str, statement: str) -> None:
        """Answer with the words as they are, and run this statement, which fails, in a batch with `culprit`."""

        async def answer(connection: Connection, words: Words) -> Sequence[str]:
            if culprit in words:
                await connection.execute(statement)
            return words

        self.answer = answer

    async def has_begun(self, batches: int) -> None:
        """Return once so many batches have begun."""

        async def so_many() -> bool:
            return len(self.batches) >= batches

        await eventually(so_many, what=f"{batches} batches")

    def send(self, queue: BatchQueue[str, str], *words: str, who: str = UNKNOWN) -> list[asyncio.Task[Any]]:
        return [asked_by(who, self.group.write(queue, word)) for word in words]


@pytest.fixture
async def stage(database: str) -> AsyncIterator[Stage]:
    clock = ManualClock()
    opened = await Database.open(database, Limits(batch_pool_size=2, pool_timeout=PATIENCE))
    group = GroupCommit(opened, most_waiting=8, wait_at_most=0.5, times=Times(clock=clock))
    try:
        yield Stage(opened, group, clock)
    finally:
        await group.close()
        assert group.waiting == 0
        open_now, idle = opened.sizes()
        assert open_now == idle, "a connection was not given back"
        await opened.close()


async def test_an_idle_lane_sends_at_once_and_a_busy_one_gathers(stage: Stage) -> None:
    queue = stage.queue()
    first = stage.send(queue, "c")
    await stage.begun.wait()
    rest = stage.send(queue, "b", "a", "d")
    await asyncio.sleep(0)
    stage.gate.set()
    assert await asyncio.gather(*first, *rest) == ["C", "B", "A", "D"]
    assert stage.batches == [["c"], ["a", "b", "d"]], "gathered while one was in flight, and sorted"


async def test_a_batch_has_its_most_and_what_clashes_goes_in_batches_of_its_own(stage: Stage) -> None:
    queue = stage.queue(most=3)
    tasks = stage.send(queue, "ax", "bx", "c", "d", "e", "fx")
    stage.gate.set()
    await asyncio.gather(*tasks)
    assert stage.batches == [["ax", "c", "d"], ["bx", "e"], ["fx"]]


async def test_a_refused_batch_is_halved_until_the_culprit_is_alone(stage: Stage) -> None:
    stage.refuse("bad", "SELECT 1 / 0")
    queue = stage.queue()
    tasks = stage.send(queue, "a", "bad", "c", "d", "e", "f")
    stage.gate.set()
    assert await asyncio.gather(*tasks) == ["a", ALONE, "c", "d", "e", "f"]
    assert ["bad"] in stage.batches
    assert len(stage.batches) <= 7


async def test_a_batch_that_waits_for_a_lock_gives_up_and_only_who_waits_goes_alone(
    stage: Stage, connect: Connect
) -> None:
    holder = await connect()
    await holder.execute("SELECT pg_advisory_lock(1)")

    stage.refuse("b", "SELECT pg_advisory_lock(1)")
    stage.gate.set()
    queue = stage.queue()
    assert await asyncio.gather(*stage.send(queue, "a", "b", "c", "d")) == ["a", HELD, "c", "d"]


async def test_a_batch_does_not_grow_too_large(stage: Stage) -> None:
    long = "l" + "0123456789" * 100_000
    stage.gate.set()
    await asyncio.gather(*stage.send(BatchQueue(stage.run, str, len), "a", long, "b", "c"))
    assert [len(batch) for batch in stage.batches] == [2, 2]


async def test_what_is_put_off_is_carried_a_few_times_and_then_goes_alone(stage: Stage) -> None:
    async def again(_connection: Connection, words: Words) -> Sequence[str | Alone]:
        return [AGAIN if word == "held" else word.upper() for word in words]

    stage.answer = again
    stage.gate.set()
    assert await asyncio.gather(*stage.send(stage.queue(), "a", "held")) == ["A", HELD]
    assert stage.batches == [["a", "held"], ["held"], ["held"]]


async def test_a_caller_that_goes_away_leaves_its_neighbours_alone(stage: Stage) -> None:
    queue = stage.queue()
    flying = stage.send(queue, "a", "b")
    await stage.begun.wait()
    waiting = stage.send(queue, "c", "d")
    await asyncio.sleep(0)
    flying[0].cancel()
    waiting[0].cancel()
    await asyncio.sleep(0)
    stage.gate.set()
    assert await flying[1] == "B"
    assert await waiting[1] == "D"
    assert stage.batches == [["a", "b"], ["d"]], "what was sent lands, what was not sent is dropped"


async def test_too_many_are_refused_at_once_and_those_that_wait_too_long_in_time(stage: Stage) -> None:
    queue = stage.queue(most=2)
    flying = stage.send(queue, "a", "b")
    await stage.begun.wait()
    waiting = stage.send(queue, "c", "d", "e", "f")
    await asyncio.sleep(0)
    with pytest.raises(UnavailableError, match="FENCEPOST_MAX_WAITING"):
        await stage.group.write(queue, "g")
    # The first of them go after a moment, on the other connection, and then there is none left.
    await stage.clock.advance(TIMES.batches.sweep_every)
    await stage.has_begun(2)
    await stage.clock.advance(0.5)
    for late in waiting[2:]:
        with pytest.raises(UnavailableError, match=r"not sent within 0\.5 s: nothing was written"):
            await late
    stage.gate.set()
    assert await asyncio.gather(*flying, *waiting[:2]) == ["A", "B", "C", "D"]
    assert stage.batches == [["a", "b"], ["c", "d"]]
    assert await stage.group.write(queue, "h") == "H", "and there is room again"


async def test_whose_writes_are_very_many_leaves_room_for_others(stage: Stage) -> None:
    queue = stage.queue()
    anns = stage.send(queue, *"abcdef", who="ann")
    await stage.begun.wait()
    (refused,) = stage.send(queue, "g", who="ann")
    with pytest.raises(UnavailableError, match=r"6 of ann already \(three quarters of FENCEPOST_MAX_WAITING"):
        await refused
    bobs = stage.send(queue, "x", "y", who="bob")
    await asyncio.sleep(0)
    (refused,) = stage.send(queue, "z", who="cid")
    with pytest.raises(UnavailableError, match=r"8 already \(FENCEPOST_MAX_WAITING"):
        await refused
    stage.gate.set()
    assert await asyncio.gather(*anns, *bobs) == list("ABCDEFXY")


async def test_a_connection_that_breaks_leaves_all_of_its_batch_unknown(stage: Stage, connect: Connect) -> None:
    async def end_myself(connection: Connection, _words: Words) -> Sequence[str]:
        await connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        raise AssertionError

    stage.answer = end_myself
    stage.gate.set()
    queue = stage.queue()
    for answered in await asyncio.gather(*stage.send(queue, "a", "b")):
        assert isinstance(answered, Broken)
        assert isinstance(answered.error, OutcomeUnknownError)
        assert answered.connection.is_closed()
    stage.answer = None
    assert await stage.group.write(queue, "c") == "C"
    observer = await connect()
    assert await observer.fetchval("SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'") == 0


async def test_a_fault_of_ours_reaches_those_who_wait_and_the_lane_goes_on(stage: Stage) -> None:
    async def fault(_connection: Connection, _words: Words) -> Sequence[str]:
        raise ZeroDivisionError

    stage.answer = fault
    stage.gate.set()
    queue = stage.queue()
    answered = await asyncio.gather(*stage.send(queue, "a", "b"), return_exceptions=True)
    assert [type(each) for each in answered] == [ZeroDivisionError, ZeroDivisionError]
    stage.answer = None
    assert await stage.group.write(queue, "c") == "C"


async def test_lanes_share_connections_and_none_starves(stage: Stage) -> None:
    queues = [stage.queue(most=1) for _ in range(3)]  # one more than there are connections
    tasks = [task for queue in queues for task in stage.send(queue, "a", "b")]
    stage.gate.set()
    assert sorted(map(str, await asyncio.gather(*tasks))) == ["A", "A", "A", "B", "B", "B"]


async def test_a_lane_leaves_a_connection_that_knows_an_older_generation(stage: Stage, connect: Connect) -> None:
    pids: list[int] = []

    async def note(connection: Connection, words: Words) -> Sequence[str]:
        pids.append(connection.get_server_pid())
        return words

    stage.answer = note
    queue = stage.queue()
    first = stage.send(queue, "a")
    await stage.begun.wait()
    second = stage.send(queue, "b")
    observer = await connect()
    raised = await observer.fetchval("SELECT fencepost.raise_generation('a test')")
    assert (await stage.database.origin_status()).generation == raised  # one of the pool's connections has met it
    stage.gate.set()
    await asyncio.gather(*first, *second)
    assert len(set(pids)) == 2


async def test_a_slow_batch_keeps_only_itself_waiting(stage: Stage) -> None:
    queue = stage.queue()
    slow = stage.send(queue, "slow")
    await stage.begun.wait()
    later = stage.send(queue, "later")
    await asyncio.sleep(0)
    assert stage.batches == [["slow"]]
    await stage.clock.advance(TIMES.batches.sweep_every)
    await stage.has_begun(2)  # on another connection, while the first one is still in flight
    assert stage.batches == [["slow"], ["later"]]
    stage.gate.set()
    assert await asyncio.gather(*slow, *later) == ["SLOW", "LATER"]


async def test_what_one_write_has_no_room_for_is_no_neighbours_matter(stage: Stage) -> None:
    stage.refuse("huge", "DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '53200'; END $$")
    stage.gate.set()
    assert await asyncio.gather(*stage.send(stage.queue(), "a", "huge", "b", "c")) == ["a", ALONE, "b", "c"]


async def test_the_halves_of_a_batch_get_a_connection_though_all_lanes_are_busy(stage: Stage) -> None:
    group = GroupCommit(stage.database, times=Times(clock=stage.clock))
    stage.refuse("bad", "SELECT 1 / 0")
    stage.gate.set()
    busy = [stage.queue(most=2) for _ in range(2)]  # as many as there are connections
    order: list[Any] = []

    async def write(queue: BatchQueue[str, str], word: str) -> None:
        order.append(await group.write(queue, word))

    numbers = [f"{number:03}" for number in range(140)]
    await asyncio.gather(*(write(queue, word) for queue in busy for word in ("000", "bad", *numbers)))
    assert order.count(ALONE) == 2
    assert max(at for at, each in enumerate(order) if each is ALONE) < len(order) / 2, "they waited for all others"
    await group.close()
