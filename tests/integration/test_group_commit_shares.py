"""What one caller may have of group commit: of the connections, of one queue, and of a batch."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.support.asking import asked_by
from tests.support.manual_clock import ManualClock

from fencepost.server.postgres.connection import Connection, Limits
from fencepost.server.postgres.database import Database
from fencepost.server.postgres.errors import UnavailableError, map_errors
from fencepost.server.postgres.group_commit import ALONE, Alone, BatchQueue, GroupCommit
from fencepost.server.times import TIMES, Times
from fencepost.testing.servers.processes import PATIENCE, eventually

ALL = 4
MOST = 3
"""Connections, and how many of them are the share of a caller."""


@dataclass
class Slow:
    """Queues whose batches are lists of words. A batch with a word that begins with "slow" takes until `over`; one with
    "bad" fails.
    """

    group: GroupCommit
    clock: ManualClock
    batches: list[list[str]] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, connection: Connection, words: Sequence[str]) -> Sequence[str | Alone]:
        self.batches.append(list(words))
        with map_errors(writing=True):
            await connection.execute("SELECT 1 / 0" if "bad" in words else "SELECT 1")
        if any(word.startswith("slow") for word in words):
            await self.over.wait()
        return words

    def queue(self, *, most: int = 256) -> BatchQueue[str, str]:
        return BatchQueue(self.run, str, len, most=most)

    def send(self, who: str, queue: BatchQueue[str, str], *words: str) -> list[asyncio.Task[Any]]:
        return [asked_by(who, self.group.write(queue, word)) for word in words]

    async def answer(self, who: str, queue: BatchQueue[str, str], word: str) -> Any:
        (asked,) = self.send(who, queue, word)
        return await asyncio.wait_for(asked, PATIENCE)

    async def begun(self, *batches: list[str]) -> None:
        async def they_are() -> bool:
            return sorted(self.batches) == sorted(batches)

        await eventually(they_are, what=f"batches {batches} in PostgreSQL")

    async def take_all(self, who: str, many: int = MOST) -> list[asyncio.Task[Any]]:
        """Have a caller's slow batches under way, each of another queue."""
        tasks = [task for number in range(many) for task in self.send(who, self.queue(), f"slow{number}")]
        await self.begun(*([f"slow{number}"] for number in range(many)))
        return tasks


@pytest.fixture
async def slow(database: str) -> AsyncIterator[Slow]:
    clock = ManualClock()
    opened = await Database.open(database, Limits(batch_pool_size=ALL, pool_timeout=4 * PATIENCE))
    group = GroupCommit(opened, wait_at_most=3600, times=Times(clock=clock))
    stage = Slow(group, clock)
    try:
        yield stage
    finally:
        stage.over.set()
        await group.close()
        open_now, idle = opened.sizes()
        assert open_now == idle, "a connection was not given back"
        await opened.close()
        assert [*group._queues, *group._parked] == [], "a queue was not forgotten"  # noqa: SLF001


async def test_slow_batches_of_one_caller_leave_a_connection_to_others(slow: Slow) -> None:
    asked = await slow.take_all("ann")
    asked += [task for _ in range(3) for task in slow.send("ann", slow.queue(), "slow")]
    assert [await slow.answer("bob", slow.queue(), word) for word in ("b", "c")] == ["b", "c"]
    assert len(slow.batches) == MOST + 2
    assert not any(each.done() for each in asked)
    slow.over.set()
    assert await asyncio.gather(*asked) == ["slow0", "slow1", "slow2", "slow", "slow", "slow"]


async def test_slow_batches_of_one_queue_leave_it_to_others(slow: Slow) -> None:
    queue = slow.queue()
    asked = slow.send("ann", queue, "slow0")
    await slow.begun(["slow0"])
    asked += slow.send("ann", queue, "slow1")
    await asyncio.sleep(0)
    await slow.clock.advance(TIMES.batches.sweep_every)
    await slow.begun(["slow0"], ["slow1"])
    asked += slow.send("ann", queue, "slow2")
    await asyncio.sleep(0)
    await slow.clock.advance(TIMES.batches.sweep_every)
    assert await slow.answer("bob", queue, "b") == "b"
    assert slow.batches == [["slow0"], ["slow1"], ["b"]]
    slow.over.set()
    assert await asyncio.gather(*asked) == ["slow0", "slow1", "slow2"]


async def test_who_waits_for_his_share_keeps_nobody_in_the_same_queue(slow: Slow) -> None:
    asked = await slow.take_all("ann")
    queue = slow.queue()
    asked += slow.send("ann", queue, "a1", "a2")
    await asyncio.sleep(0)
    assert await slow.answer("bob", queue, "b") == "b"
    assert slow.batches[MOST:] == [["b"]]
    slow.over.set()
    assert await asyncio.gather(*asked) == ["slow0", "slow1", "slow2", "a1", "a2"]
    assert slow.batches[MOST:] == [["b"], ["a1", "a2"]]


async def test_a_batch_that_is_shared_is_of_who_has_the_most(slow: Slow) -> None:
    asked = await slow.take_all("ann", MOST - 1)
    queue = slow.queue()
    both = slow.send("bob", queue, "b") + slow.send("ann", queue, "slow")
    await slow.begun(["slow0"], ["slow1"], ["b", "slow"])
    asked += slow.send("ann", slow.queue(), "more")
    assert await slow.answer("cid", slow.queue(), "c") == "c"
    assert not any(each.done() for each in (*asked, *both))
    slow.over.set()
    assert await asyncio.gather(*both, *asked) == ["b", "slow", "slow0", "slow1", "more"]


async def test_the_halves_of_a_batch_are_its_callers(slow: Slow) -> None:
    asked = await slow.take_all("ann", MOST - 1)
    asked += slow.send("ann", slow.queue(), "bad", "slow2", "slow3", "slow4")
    await slow.begun(["slow0"], ["slow1"], ["bad", "slow2", "slow3", "slow4"], ["bad", "slow2"], ["slow3", "slow4"])
    assert await slow.answer("bob", slow.queue(), "b") == "b"
    assert not any(each.done() for each in asked)
    slow.over.set()
    assert await asyncio.gather(*asked) == ["slow0", "slow1", ALONE, "slow2", "slow3", "slow4"]


async def test_busy_queues_of_one_caller_take_turns_at_his_share(slow: Slow) -> None:
    queues = [slow.queue(most=1) for _ in range(2 * ALL)]
    tasks = [task for number, queue in enumerate(queues) for task in slow.send("ann", queue, *[f"{number}"] * 4)]
    await asyncio.gather(*tasks)
    last = {number: max(at for at, (word,) in enumerate(slow.batches) if word == f"{number}") for number in range(8)}
    assert min(last.values()) > len(slow.batches) / 2, "one of them was done before others had begun"


async def test_a_batch_is_of_one_caller_after_the_other(slow: Slow) -> None:
    queue = slow.queue(most=4)
    asked = slow.send("ann", queue, "slow")
    await slow.begun(["slow"])
    asked += slow.send("ann", queue, *"abcdef") + slow.send("bob", queue, "x", "y", "z") + slow.send("cid", queue, "t")
    slow.over.set()
    await asyncio.gather(*asked)
    assert slow.batches[1:] == [["a", "b", "t", "x"], ["c", "d", "y", "z"], ["e", "f"]]


async def test_who_waits_too_long_for_his_share_is_refused_in_time(slow: Slow) -> None:
    asked = await slow.take_all("ann")
    (late,) = slow.send("ann", slow.queue(), "a")
    await asyncio.sleep(0)
    await slow.clock.advance(3601)
    with pytest.raises(UnavailableError, match="not sent within 3600 s: nothing was written"):
        await late
    slow.over.set()
    await asyncio.gather(*asked)
