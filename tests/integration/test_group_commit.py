"""Writes that share a commit: the protocol, shares, prepared transactions, statements that are sent, and a walk."""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from tests.statements.recording import Recorder
from tests.statements.tables import ORDERS, TABLES, Driver, Rows, make
from tests.support.asking import asked_by
from tests.support.gateways import in_process
from tests.support.interleave import Connect, connection_to
from tests.support.interleave import Connection as PreparedConnection
from tests.support.manual_clock import ManualClock
from tests.support.servers import command
from tools.walk import walk

from fencepost.server.fence.caller import UNKNOWN
from fencepost.server.gateway.group_commit import AGAIN, ALONE, HELD, Alone, BatchQueue, Broken, GroupCommit
from fencepost.server.http import headers as preferences
from fencepost.server.http.headers import PREFERENCES, Preference
from fencepost.server.ops import demo
from fencepost.server.ops.doctor import SERVER, examine
from fencepost.server.ops.embedded import PostgresServer
from fencepost.server.ops.protect import protect
from fencepost.server.postgres import keyed, many
from fencepost.server.postgres.connection import Connection, Limits
from fencepost.server.postgres.database import Database
from fencepost.server.postgres.errors import OutcomeUnknownError, UnavailableError
from fencepost.server.postgres.keyed import Change
from fencepost.server.postgres.row_sql import literal
from fencepost.server.postgres.upkeep import all_prepared
from fencepost.server.times import TIMES, Times
from fencepost.testing.servers.postgres import clone, in_database, run_on
from fencepost.testing.servers.processes import PATIENCE, eventually

# The protocol of group commit, on real connections. What a queue runs is the test's own, and time stands still.

Words = Sequence[str]


def line(word: str) -> tuple[str, tuple[str], int]:
    """Stand in a queue for a write: of the row that the word names, with as many bytes."""
    return word, (word,), len(word)


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
        if self.answer is not None:
            return await self.answer(connection, words)
        return [word.upper() for word in words]

    def queue(self, *, most: int = 256) -> BatchQueue[str, str]:
        # Words that end in x may not meet.
        return BatchQueue(self.run, lambda word: ["x"] if word.endswith("x") else [], most)

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
        return [asked_by(who, self.group.write(queue, *line(word))) for word in words]


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


async def test_a_batch_that_waits_for_a_lock_gives_up_and_who_waits_goes_alone(stage: Stage, connect: Connect) -> None:
    holder = await connect()
    await holder.execute("SELECT pg_advisory_lock(1)")

    stage.refuse("b", "SELECT pg_advisory_lock(1)")
    stage.gate.set()
    queue = stage.queue()
    assert await asyncio.gather(*stage.send(queue, "a", "b", "c", "d")) == ["a", HELD, "c", "d"]


async def test_a_batch_does_not_grow_too_large(stage: Stage) -> None:
    long = "l" + "0123456789" * 100_000
    stage.gate.set()
    await asyncio.gather(*stage.send(BatchQueue(stage.run), "a", long, "b", "c"))
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
        await stage.group.write(queue, *line("g"))
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
    assert await stage.group.write(queue, *line("h")) == "H", "and there is room again"


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
    assert await stage.group.write(queue, *line("c")) == "C"
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
    assert await stage.group.write(queue, *line("c")) == "C"


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
        order.append(await group.write(queue, *line(word)))

    numbers = [f"{number:03}" for number in range(140)]
    await asyncio.gather(*(write(queue, word) for queue in busy for word in ("000", "bad", *numbers)))
    assert order.count(ALONE) == 2
    assert max(at for at, each in enumerate(order) if each is ALONE) < len(order) / 2, "they waited for all others"
    await group.close()


# What one caller may have of group commit: of the connections, of one queue, and of a batch.

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
        await connection.execute("SELECT 1 / 0" if "bad" in words else "SELECT 1")
        if any(word.startswith("slow") for word in words):
            await self.over.wait()
        return words

    def queue(self, *, most: int = 256) -> BatchQueue[str, str]:
        return BatchQueue(self.run, most=most)

    def send(self, who: str, queue: BatchQueue[str, str], *words: str) -> list[asyncio.Task[Any]]:
        return [asked_by(who, self.group.write(queue, *line(word))) for word in words]

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


# A prepared transaction that was forgotten holds its locks, and no session shows it: errors and doctor name it.


@pytest.fixture
async def owner(connect: Connect) -> AsyncIterator[PreparedConnection]:
    connection = await connect()
    await connection.execute("SET search_path = public")
    await connection.execute("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE plain (id int PRIMARY KEY)")
    await protect(connection, "t")
    await connection.execute("INSERT INTO t (id, last_fence_token) VALUES (1, 1)")
    yield connection
    for each in await all_prepared(connection):
        await connection.execute(f"ROLLBACK PREPARED {literal(each.gid)}")


async def prepare(connect: Connect, gid: str, *statements: str) -> None:
    """Prepare a transaction, and leave."""
    connection = await connect()
    await connection.execute("SET search_path = public; BEGIN; SET LOCAL fencepost.token = '5'")
    for statement in statements:
        await connection.execute(statement)
    await connection.execute(f"PREPARE TRANSACTION {literal(gid)}")
    await connection.close()


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "k"}], ids=["plain", "once"])
async def test_a_write_that_waited_in_vain_names_it(
    owner: PreparedConnection, connect: Connect, database: str, headers: dict[str, str]
) -> None:
    await prepare(connect, "Shop-1", "UPDATE t SET v = 'x' WHERE id = 1")
    await prepare(connect, "other", "INSERT INTO plain VALUES (1)")
    async with in_process(database, lock_timeout=0.2) as gateway:
        answer = await gateway.patch("/v1/data/t/1", json={"v": "y"}, headers={"X-Fence-Token": "6"} | headers)
        assert (answer.status_code, answer.json()["code"]) == (503, "55P03"), answer.text
        assert "The prepared transaction 'Shop-1' of " in answer.json()["hint"]
        assert " seconds ago, holds locks on t: COMMIT PREPARED 'Shop-1' or ROLLBACK" in answer.json()["hint"]
        assert answer.json()["prepared_transactions"] == ["Shop-1"]
        await owner.execute("COMMIT PREPARED 'Shop-1'")
        again = await gateway.patch("/v1/data/t/1", json={"v": "y"}, headers={"X-Fence-Token": "6"} | headers)
        assert (again.status_code, again.json()["v"]) == (200, "y")


@pytest.mark.usefixtures("owner")
async def test_doctor_names_those_that_hold_a_protected_table(connect: Connect, database: str) -> None:
    await prepare(connect, "new", "INSERT INTO plain VALUES (1)")
    await prepare(connect, "p", "UPDATE t SET v = 'x' WHERE id = 1")
    lines = [line for line in (await command("doctor", database=database)).output.splitlines() if "prepared" in line]
    assert len(lines) == 1
    assert lines[0].startswith("WARNING  prepared: the prepared transaction 'p' of ")
    assert "seconds ago, holds locks on t: writes to its rows" in lines[0]


async def test_doctor_names_old_ones_whatever_they_hold(owner: PreparedConnection, connect: Connect) -> None:
    await prepare(connect, "p", "INSERT INTO plain VALUES (1)")
    (found,) = await examine([replace(each, when=None) for each in SERVER if each.name == "prepared-old"], owner)
    assert "holds locks on plain, and keeps VACUUM, and the pruning of marks" in found.text


@pytest.mark.long("time limits")
@pytest.mark.usefixtures("owner")
async def test_doctor_reports_one_whose_lock_keeps_it_from_looking(connect: Connect, database: str) -> None:
    await prepare(connect, "ddl", "ALTER TABLE t ADD CHECK (id > 0)")
    found = await command("doctor", database=database)
    assert found.exit_code == 1
    assert "WARNING  prepared: the prepared transaction 'ddl'" in found.output
    assert "ERROR    locks: a protected table has been locked for 5s" in found.output


# A preference that changes statements reaches all that write what a request gives, and plans are kept under it.

ROW = {"customer": "Ada", "status": "paid"}


@pytest.mark.parametrize(
    ("method", "path", "body", "written_by"),
    [
        ("PATCH", "orders/order-123", ROW, keyed.update),
        ("PUT", "orders/order-123", ROW, keyed.update),
        ("PUT", "orders/new", ROW, keyed.create),
        ("POST", "orders", {**ROW, "order_id": "new"}, keyed.insert),
        ("POST", "orders", [{**ROW, "order_id": "new"}, {**ROW, "order_id": "newer"}], keyed.insert),
        ("DELETE", "orders/order-123", None, keyed.delete),
        ("PATCH", "orders?order_id=eq.order-123", ROW, many.by_filter),
        ("DELETE", "orders?order_id=eq.order-123", None, many.by_filter),
        ("PATCH", "orders", [{**ROW, "order_id": "order-123"}], many.by_array),
    ],
)
async def test_it_reaches_the_statement_of(
    database: str, monkeypatch: pytest.MonkeyPatch, method: str, path: str, body: object, written_by: Callable[..., Any]
) -> None:
    made: set[frozenset[str]] = set()

    def noted(*of: Any, **options: Any) -> Any:
        made.update(each.preferences for each in of if isinstance(each, Change))
        return written_by(*of, **options)

    monkeypatch.setattr(keyed if written_by.__module__ == keyed.__name__ else many, written_by.__name__, noted)
    writes = next(each.routes for each in PREFERENCES if each.name == "return")
    planted = Preference("planted", writes, "`planted`: of this test.", ("yes",), in_sql=True)
    monkeypatch.setitem(preferences._BY_NAME, planted.name, planted)  # noqa: SLF001 - as one more of PREFERENCES
    await demo.load(database)
    async with in_process(database) as client:
        for token, row, prefer in ((101, "order-123", "planted=yes"), (102, "order-124", "return=minimal")):
            headers = {"X-Fence-Token": str(token), "Prefer": prefer}
            answer = await client.request(
                method, f"/v1/data/{path.replace('order-123', row)}", json=body, headers=headers
            )
            assert answer.headers.get("Preference-Applied") == prefer or answer.status_code == 409, answer.text
    assert made == {frozenset({"planted=yes"}), frozenset()}


# Every statement that requests send for tables of several kinds, compared with tests/statements/sent/: who changes a
# statement changes it there too, and looks at each line.
# `FENCEPOST_WRITE_STATEMENTS=1 pytest tests/integration/test_group_commit.py -k embedded` writes the files anew.

SENT = Path(__file__).parents[1] / "statements" / "sent"
DATABASE = "statements_sent"


@pytest.fixture(scope="module")
def tables(postgres: PostgresServer, template: str) -> Iterator[str]:
    """Make a database with all tables, each protected, and give its URL."""
    asyncio.run(_make(postgres.url, template))
    yield in_database(postgres.url, DATABASE)
    asyncio.run(run_on(postgres.url, f"DROP DATABASE {DATABASE} WITH (FORCE)"))


async def _make(server: str, template: str) -> None:
    await clone(server, DATABASE, template)
    async with connection_to(in_database(server, DATABASE)) as connection:
        await make(connection)


@pytest.mark.parametrize("rows", TABLES, ids=[rows.path for rows in TABLES])
async def test_what_is_sent_is_what_is_written_down(rows: Rows, tables: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(monkeypatch)
    async with in_process(tables) as client:
        await recorder.know_oids(tables)
        await Driver(client, recorder, rows).all()
    file = SENT / f"{rows.path}.sql"
    base = "" if rows is ORDERS else (SENT / f"{ORDERS.path}.sql").read_text()
    sent = recorder.text(rows.path, base, rows.options.get("rule", "strict"))
    if os.environ.get("FENCEPOST_WRITE_STATEMENTS"):
        file.write_text(sent)
    assert sent == file.read_text(), f"{file.name} differs: look at each line, then write it anew"


# Bounds of how many files a request passes, and how often it comes back to one: `python -m tools.walk`.
# As in tests/unit/test_tools.py, a bound is what the tree had when it was last made better.

PAGE = Path(__file__).parents[2] / "ARCHITECTURE.md"


async def test_a_request_passes_no_more_files_and_comes_back_no_more_often(database: str) -> None:
    # Files, returns. Before files were merged: 54 and 189, 42 and 156, 53 and 202, 68 and 285. Read by hand on that
    # tree, without the HTTP parser's callbacks and calls that return at once: 50 and 101, 39 and 84, 52 and 115, 56
    # and 122.
    bounds = {"patch": (16, 44), "get": (14, 38), "lease": (18, 54), "batch": (18, 60)}
    for name, walked in (await walk(database, list(bounds))).items():
        files, _, returns = walked.figures
        most_files, most_returns = bounds[name]
        assert files <= most_files, (name, walked.stays)
        assert returns <= most_returns, (name, walked.stays)
        if name == "patch":
            shown = re.findall(r"^ ?\d+ (\S+\.py) ", PAGE.read_text("utf-8"), re.MULTILINE)
            assert [f"server/{file}" for file in shown] == list(dict.fromkeys(walked.stays)), "ARCHITECTURE.md"
