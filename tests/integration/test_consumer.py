"""A consumer on its log, the table in PostgreSQL: order, bounds, pauses, what it meets that fails, and its end."""

import asyncio
import base64
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
from tests.support.consuming import (
    Member,
    Queue,
    both_applied_and_not_done,
    consumed,
    make_tables,
    member,
    opened,
    token,
    write,
    wrong_effects,
)
from tests.support.interleave import Connect, Connection, blocks_another_session
from tests.support.manual_clock import UNHURRIED
from tests.support.postgres import database_away, failing, renamed

from fencepost.server.consuming.applying import Applier, Ledger, QueueNow, Verdict
from fencepost.server.consuming.consumer import ConsumerLimits
from fencepost.server.consuming.deciding import MOST_FAULTS
from fencepost.server.fence.caller import Caller
from fencepost.server.fence.seal import parse_keys
from fencepost.server.observe.events import ConsumerFailed, ConsumerPaused, ConsumerResumed, QueueBlocked, Refused
from fencepost.server.ops.embedded import PostgresServer
from fencepost.server.postgres import queues, sources
from fencepost.server.postgres.queues import DROPPED, IN_HAND, RETRIED_AS, Result
from fencepost.server.queues.log import Message, Received
from fencepost.server.queues.message import MessageName, WriteId, nonce_of, sign
from fencepost.server.queues.postgres import PostgresConsumer, PostgresLog
from fencepost.server.queues.registry import DEFAULT
from fencepost.server.times import ConsumingTimes, Times
from fencepost.testing.servers.processes import PATIENCE, eventually

UNHURRIED_WRITES: dict[str, Any] = {"lock_timeout": 600, "statement_timeout": 600, "shutdown_timeout": 2 * PATIENCE}
"""A write waits for its row, and the end of a consumer for its writes, as long as a test has them wait."""
SOON = replace(
    UNHURRIED,
    consuming=ConsumingTimes(
        take_for=0.1, alive_every=0.05, note_every=0.05, committed_every=0.05, end_within=PATIENCE / 2
    ),
)
NAMESAKE = """
CREATE OR REPLACE FUNCTION fencepost.queue_join(p_member text, p_process text, p_ttl_ms integer, p_comes boolean)
  RETURNS boolean LANGUAGE sql AS 'SELECT false'"""
NOTED = "SELECT ARRAY[sum(applied), sum(redelivered)]::int[] FROM fencepost.queue_partitions"


@pytest.fixture
async def owner(connect: Connect) -> Connection:
    connection = await connect()
    await make_tables(connection, effects=True)
    return connection


@pytest.fixture
async def queue(database: str, owner: Connection) -> AsyncIterator[Queue]:
    async with opened(database, owner, **UNHURRIED_WRITES) as queue:
        yield queue


@dataclass
class Takes:
    """The calls of `take`: for how many messages each, and what it gave."""

    asked: list[int]
    taken: list[Received]

    async def go_on(self, by: int = 2) -> None:
        """Wait until the log was called so many times more: by then a consumer has done what it does at once."""
        before = len(self.asked)

        async def called() -> bool:
            return len(self.asked) >= before + by

        await eventually(called, what="calls of the log")


@pytest.fixture
def takes(monkeypatch: pytest.MonkeyPatch) -> Takes:
    takes, genuine = Takes([], []), PostgresConsumer.take

    async def take(consumer: PostgresConsumer, most: int, wait_s: float) -> Sequence[Received]:
        takes.asked.append(most)
        taken = await genuine(consumer, most, wait_s)
        takes.taken += taken
        return taken

    monkeypatch.setattr(PostgresConsumer, "take", take)
    return takes


class Held:
    """Rows of `orders` that another transaction has locked."""

    def __init__(self, holder: Connection, owner: Connection) -> None:
        self._holder, self._owner = holder, owner
        self._transaction = holder.transaction()

    async def lock(self, key: str) -> None:
        await self._transaction.start()
        await self._holder.execute("SELECT FROM orders WHERE order_id = $1 FOR UPDATE", key)

    async def execute(self, sql: str) -> None:
        await self._holder.execute(sql)

    async def is_waited_for(self) -> None:
        await blocks_another_session(self._holder, self._owner)

    async def let_go(self) -> None:
        await self._transaction.commit()


@pytest.fixture
async def k1(connect: Connect, queue: Queue) -> Held:
    """Lock the row k1."""
    held = Held(await connect(), queue.owner)
    await held.lock("k1")
    return held


async def writes(queue: Queue, *keys: str) -> None:
    """Queue writes of these rows, numbered from 1."""
    await queue.append(*(write(f"orders/{key}", body={"n": n}) for n, key in enumerate(keys, 1)))


async def effects(queue: Queue) -> list[tuple[str, int]]:
    rows = await queue.owner.fetch("SELECT resource, n FROM public.effects ORDER BY id")
    return [(row["resource"].partition("/")[2], row["n"]) for row in rows]


async def waits(queue: Queue) -> list[str]:
    """List the resources of the messages that are in the log."""
    rows = await queue.owner.fetch("SELECT key FROM fencepost.queued ORDER BY position")
    return [row["key"].decode() for row in rows]


async def has(queue: Queue, *expected: tuple[str, int]) -> None:
    async def there() -> bool:
        return await effects(queue) == [*expected]

    await eventually(there, what=f"the effects {expected}")


@asynccontextmanager
async def running(queue: Queue, times: Times = SOON) -> AsyncIterator[tuple[Member, "asyncio.Task[None]"]]:
    """Run a member until it ends by itself, or for its being stopped."""
    async with member(queue, times) as one:
        task = asyncio.create_task(one.consumer.run())
        try:
            yield one, task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def members(queue: Queue) -> int:
    """Count those that have a partition."""
    found: int = await queue.owner.fetchval("SELECT count(DISTINCT member) FROM fencepost.queue_owners")
    return found


# Order and bounds.


async def test_messages_of_a_resource_are_decided_one_after_the_other_and_others_meanwhile(
    queue: Queue, connect: Connect
) -> None:
    """The first one makes the row. Were the second one begun before that is done, it would find none."""
    holder = await connect()
    await queue.owner.execute("""
        CREATE FUNCTION public.held() RETURNS trigger LANGUAGE plpgsql AS
          $$ BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NEW; END $$;
        CREATE TRIGGER held BEFORE INSERT ON public.orders FOR EACH ROW EXECUTE FUNCTION public.held()""")
    await holder.execute("SELECT pg_advisory_lock(7)")
    await queue.append(
        write("orders/new", "POST", {"order_id": "new", "n": 1}),
        write("orders/new", body={"n": 2}),
        write("orders/k2", body={"n": 3}),
        write("orders/k2", body={"n": 4}),
    )
    async with consumed(queue, SOON):
        await has(queue, ("k2", 3), ("k2", 4))
        await blocks_another_session(holder, queue.owner)

        async def are_done() -> bool:  # an effect is there before its message is gone
            return await waits(queue) == ["orders/new", "orders/new"]

        await eventually(are_done, what="the other row's messages gone")
        await holder.execute("SELECT pg_advisory_unlock(7)")
        await queue.empty()
    assert await effects(queue) == [("k2", 3), ("k2", 4), ("new", 1), ("new", 2)]
    assert await queue.letters() == {}
    assert await queue.owner.fetchval(NOTED) == [4, 0]
    [known] = await queues.known(queue.owner)
    assert sum(each.decided or 0 for each in known.partitions) == 4
    assert {each.oldest_s for each in known.partitions} == {None}
    assert await members(queue) == 0, "it has left"


async def test_no_more_are_in_hand_than_the_limit_and_those_that_are_held_keep_their_room(
    queue: Queue, k1: Held, takes: Takes
) -> None:
    queue.settings = queue.settings.model_copy(update={"max_waiting": 8})  # half of them
    await writes(queue, *["k1"] * 10)
    async with consumed(queue, SOON):
        await k1.is_waited_for()
        await takes.go_on()
        assert (len(takes.taken), takes.asked[-1]) == (4, 0)
        await k1.let_go()
        await queue.empty()
    assert await effects(queue) == [("k1", n) for n in range(1, 11)]


async def test_none_are_taken_while_as_many_bytes_are_in_hand_as_the_limit(
    queue: Queue, k1: Held, takes: Takes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fencepost.server.parts.ConsumerLimits", partial(ConsumerLimits, bytes=1000))
    await writes(queue, *["k1"] * 5)
    async with consumed(queue, SOON):
        await k1.is_waited_for()
        await takes.go_on()
        await writes(queue, *["k1"] * 5)
        await takes.go_on()
        assert (len(takes.taken), takes.asked[-1]) == (5, 0)
        await k1.let_go()
        await queue.empty()
    assert await effects(queue) == [("k1", n) for n in (1, 2, 3, 4, 5) * 2]


# What concerns everything: the log is another one, or away, or the database is.


async def test_while_its_queue_is_quarantined_a_consumer_takes_nothing_and_stays_a_member(
    queue: Queue, takes: Takes
) -> None:
    async with consumed(queue, SOON) as one:
        await writes(queue, "k1")
        await queue.empty()
        await queues.quarantine(queue.owner, DEFAULT, "it was made again", None)
        await writes(queue, "k1", "k2", "k3")
        await one.pauses("it was made again")
        await takes.go_on()
        before = len(takes.asked)
        await takes.go_on()
        assert set(takes.asked[before:]) == {0}
        assert await members(queue) == 1
        # This log is that of another incarnation from here on: it has one message less.
        await queue.owner.execute("DELETE FROM fencepost.queued WHERE key = 'orders/k2'")
        await sources.raise_source(queue.owner, DEFAULT, "for a test")
        await queue.empty()
    assert sorted(await effects(queue)) == [("k1", 1), ("k1", 1), ("k3", 3)], "what it had in hand it takes anew"
    paused = [each for each in one.reported if isinstance(each, ConsumerPaused | ConsumerResumed)]
    assert paused == [ConsumerPaused(DEFAULT, "it was made again"), ConsumerResumed(DEFAULT)]


async def test_an_outage_pauses_all_and_is_over_by_itself(
    queue: Queue, k1: Held, connect: Connect, postgres: PostgresServer, database: str
) -> None:
    await writes(queue, "k1", "k2", "k1")
    async with consumed(queue, SOON) as one:
        await k1.is_waited_for()
        async with database_away(postgres, database):
            await one.pauses()
        queue.owner = await connect()
        await queue.empty()
        assert await queue.states() == {"applied": 3}
        assert sorted(await effects(queue)) == [("k1", 1), ("k1", 3), ("k2", 2)]
        await eventually(lambda: goes_on(one), what="the end of the pause")


async def goes_on(one: Member) -> bool:
    return one.consumer.paused_because is None


@pytest.mark.parametrize("what", ["take", "state", "done"])
async def test_a_log_that_cannot_be_asked_is_asked_again(queue: Queue, database: str, what: str) -> None:
    async with consumed(queue, SOON) as one:
        async with renamed(database, f"FUNCTION fencepost.queue_{what}"):
            await writes(queue, "k1")
            if what == "done":
                await has(queue, ("k1", 1))
            else:
                await one.pauses("does not exist")
                assert await effects(queue) == []
            assert await waits(queue) == ["orders/k1"]
        await queue.empty()
    assert await effects(queue) == [("k1", 1)]
    assert await queue.owner.fetchval(NOTED) == [1, 0], "it is written once"


async def test_a_pause_that_a_former_process_of_the_member_has_noted_is_over(queue: Queue) -> None:
    async def noted() -> str | None:
        [known] = await queues.known(queue.owner)
        return known.paused

    await queues.note_pause(queue.owner, DEFAULT, "member-0", "no keys")
    assert await noted() == "member-0: no keys"

    async def over() -> bool:
        return await noted() is None

    async with consumed(queue, SOON):
        await eventually(over, what="the end of the pause")


# What concerns one message, or some.


async def test_a_message_that_is_tried_in_vain_is_reported_once_and_tried_until_it_is_decided(
    queue: Queue, k1: Held
) -> None:
    times = replace(SOON, consuming=replace(SOON.consuming, blocked_after=0.0, pause=0.01, longest_pause=0.01))
    queue.settings = queue.settings.model_copy(update={"lock_timeout": 0.05})
    await writes(queue, "k1", "k1", "k2")

    def blocked() -> list[QueueBlocked]:
        return [each for each in one.reported if isinstance(each, QueueBlocked) and each.resource == "orders/k1"]

    async def tried_again() -> bool:
        tries = [each for each in one.reported if isinstance(each, Refused) and each.code == "55P03"]
        return bool(blocked()) and len(tries) > 3

    async def noted() -> str | None:
        [known] = await queues.known(queue.owner)
        return next((each.blocked.because for each in known.partitions if each.blocked), None)

    async def no_more() -> bool:
        return await noted() is None

    async with consumed(queue, times) as one:
        await has(queue, ("k2", 3))
        await eventually(tried_again, what="several tries")
        assert "lock" in await eventually(noted, what="a note")
        await k1.let_go()
        await queue.empty()
        await eventually(no_more, what="a note that it is over")
        assert ["lock" in each.reason for each in blocked()] == [True]
    assert await effects(queue) == [("k2", 3), ("k1", 1), ("k1", 2)]


async def test_what_has_not_begun_of_a_lost_partition_is_left_out(queue: Queue, k1: Held, takes: Takes) -> None:
    """A process of the same name has taken its partitions over, and is seen all the time."""
    genuine = await queue.owner.fetchval("SELECT pg_get_functiondef('fencepost.queue_join'::regproc)")
    await writes(queue, "k1", "k1", "k1")
    async with consumed(queue, SOON) as one:
        await k1.is_waited_for()
        await queue.owner.execute(NAMESAKE)
        await one.pauses("member-0")
        await k1.let_go()
        await has(queue, ("k1", 1))
        await takes.go_on(4)
        assert await effects(queue) == [("k1", 1)]
        await queue.owner.execute(genuine)
        await queue.empty()
    assert await effects(queue) == [("k1", 1), ("k1", 2), ("k1", 3)]


# Faults of the gateway's own.


async def test_a_fault_where_what_is_done_is_said_is_reported_and_it_is_said_again(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    await writes(queue, "k1", "k2")
    async with consumed(queue, SOON) as one:
        with monkeypatch.context() as patched:
            patched.setattr(PostgresConsumer, "done", at_fault)
            await eventually(lambda: failed(one), what="the fault to be reported")
        await queue.empty()
    assert sorted(await effects(queue)) == [("k1", 1), ("k2", 2)]


async def test_a_fault_where_the_consumer_reports_is_reported_and_it_goes_on(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed = "SELECT bool_or(committed IS NOT NULL) FROM fencepost.queue_partitions"
    async with consumed(queue, SOON) as one:
        with monkeypatch.context() as patched:
            patched.setattr(PostgresLog, "decided", at_fault)
            await eventually(lambda: failed(one), what="the fault to be reported")
        await writes(queue, "k1")
        await eventually(lambda: queue.owner.fetchval(committed), what="what is committed to be noted")


async def test_a_session_that_ends_by_a_fault_leaves_its_place_to_the_next_one(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    await writes(queue, "k1")
    monkeypatch.setattr(PostgresConsumer, "done", at_fault)
    async with running(queue) as (one, task):
        await eventually(lambda: failed(one), what="the fault to be reported")
        assert await members(queue) == 1
        one.consumer.stop()
        with pytest.raises(RuntimeError, match="a fault"):
            await asyncio.wait_for(task, PATIENCE)
    assert await members(queue) == 0


async def at_fault(*_asked: object) -> None:
    raise RuntimeError("a fault")


async def failed(one: Member) -> bool:
    return any(isinstance(each, ConsumerFailed) and "a fault" in each.reason for each in one.reported)


# The end.


async def test_the_end_decides_what_has_begun_and_leaves_the_rest_to_others(queue: Queue, k1: Held) -> None:
    await writes(queue, "k1", "k1")
    async with running(queue) as (one, task):
        await k1.is_waited_for()
        one.consumer.stop()
        await asyncio.sleep(0)
        assert not task.done()
        await k1.let_go()
        await asyncio.wait_for(task, PATIENCE)
    assert (await effects(queue), await waits(queue)) == ([("k1", 1)], ["orders/k1"])
    assert await members(queue) == 0


async def test_the_end_does_not_wait_for_ever(queue: Queue, k1: Held) -> None:
    queue.settings = queue.settings.model_copy(update={"shutdown_timeout": 0.1})
    await writes(queue, "k1")
    async with running(queue) as (one, task):
        await k1.is_waited_for()
        one.consumer.stop()
        await asyncio.wait_for(task, PATIENCE)
    assert await waits(queue) == ["orders/k1"]


async def test_the_end_comes_while_the_database_is_away(
    queue: Queue, k1: Held, connect: Connect, postgres: PostgresServer, database: str
) -> None:
    await writes(queue, "k1", "k2")
    async with running(queue) as (one, task):
        await k1.is_waited_for()
        async with database_away(postgres, database):
            await one.pauses()
            one.consumer.stop()
            await asyncio.wait_for(task, PATIENCE)
    queue.owner = await connect()
    left = {each.partition("/")[2] for each in await waits(queue)}
    assert left | {key for key, _ in await effects(queue)} == {"k1", "k2"}


async def test_a_raise_while_a_message_is_written_makes_no_dead_letter_and_ends_the_session_at_once(
    queue: Queue, k1: Held
) -> None:
    """The row has a higher token when it is unlocked: what is refused then belongs to the generation before."""
    queue.settings = queue.settings.model_copy(update={"shutdown_timeout": 7200})  # not at its end
    await writes(queue, "k1")
    async with asyncio.timeout(3 * PATIENCE), consumed(queue, SOON):
        await k1.is_waited_for()
        await k1.execute(
            "SET LOCAL session_replication_role = replica; UPDATE orders SET last_fence_token = 99"
            " WHERE order_id = 'k1'; SET LOCAL session_replication_role = origin"
        )
        await sources.raise_source(queue.owner, DEFAULT, "for a test")
        await queue.append(write("orders/k2", body={"n": 2}))
        await k1.let_go()
        await queue.empty()
    assert await queue.letters() == {}
    assert sorted(await effects(queue)) == [("k1", 1), ("k2", 2)]


async def test_a_consumer_that_can_never_decide_a_message_leaves_it_and_all_else_to_others_and_says_so(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no keys, to verify of whom a message is. It tries once, of two such messages of a row."""
    tried: list[bytes] = []
    apply = Applier.apply

    async def applying(applier: Applier, received: Received, standing: QueueNow, name: MessageName) -> Verdict:
        tried.append(received.message.key)
        return await apply(applier, received, standing, name)

    monkeypatch.setattr(Applier, "apply", applying)
    keys = parse_keys(f"k1:{base64.b64encode(bytes(32)).decode()}")

    async def noted() -> str | None:
        [known] = await queues.known(queue.owner)
        return known.paused

    async with consumed(queue, SOON) as one:
        await writes(queue, "k1")
        await queue.empty()
        signed = sign(write("orders/k2", body={"n": 2}), DEFAULT, keys, Caller("ann", role="web"), 0)
        await queue.append(signed, signed, write("orders/k3", body={"n": 3}))
        assert "no keys are here" in await eventually(noted, what="the reason to be noted for others")
        assert "no keys are here" in await one.pauses()
        assert (one.consumer.partitions, await members(queue)) == (frozenset(), 0)
        paused = [each for each in one.reported if isinstance(each, ConsumerPaused)]
        assert len(paused) == 1
        await queue.append(write("orders/k4", body={"n": 4}))
        left = await waits(queue)
        assert (left.count("orders/k2"), "orders/k4" in left) == (2, True)
    assert tried.count(b"orders/k2") == 1
    assert {key for key, _ in await effects(queue)} <= {"k1", "k3"}


# What a message comes to, step by step: kept first, then a dead letter, and what a repetition finds.


async def test_a_message_that_is_tried_in_vain_for_a_short_time_is_not_reported(queue: Queue, k1: Held) -> None:
    times = replace(SOON, consuming=replace(SOON.consuming, blocked_after=3600.0, pause=0.01, longest_pause=0.01))
    queue.settings = queue.settings.model_copy(update={"lock_timeout": 0.05})
    await writes(queue, "k1")

    async def tried_again() -> bool:
        return sum(isinstance(each, Refused) and each.code == "55P03" for each in one.reported) > 3

    async with consumed(queue, times) as one:
        await eventually(tried_again, what="several tries")
        await k1.let_go()
        await queue.empty()
    assert not [each for each in one.reported if isinstance(each, QueueBlocked)]
    assert await effects(queue) == [("k1", 1)]


BAD = {"status": "bad"}


@pytest.fixture
async def deciding_owner(connect: Connect) -> Connection:
    return await connect()


@pytest.fixture
async def deciding_queue(database: str, deciding_owner: Connection) -> AsyncIterator[Queue]:
    """Give a queue whose resources stop at a dead letter."""
    await make_tables(deciding_owner)
    async with opened(database, deciding_owner, stop_resources=True, idempotency_retention=86_400) as queue:
        yield queue


async def consume(queue: Queue) -> None:
    async with consumed(queue):
        await queue.empty()


async def forget(_consumer: PostgresConsumer, _received: object) -> None:
    """Say nothing of what is done, in place of the log's `done`."""


async def stopped(queue: Queue) -> list[tuple[str, str]]:
    return [(each.resource, each.write_id) for each in await queues.stopped(queue.owner, DEFAULT)]


async def failed_here(queue: Queue) -> bool:
    return await queue.states() == {"failed": 1}


@pytest.mark.parametrize("marked", [False, True])
async def test_what_fails_is_kept_first_then_its_resource_stops_and_then_it_is_a_dead_letter(
    deciding_queue: Queue, database: str, marked: bool
) -> None:
    """So whoever deals with the letter finds what it stopped. What keeps the letter from being put is over later; it is
    put also where the fence refuses the message then. `marked`: its row has its token by then.
    """
    message, began = write("orders/k1", body=BAD), await queues.now(deciding_queue.owner)
    (position,) = await deciding_queue.append(message)
    name = str(WriteId(DEFAULT, position, nonce_of(message)))
    async with failing(database, "INSERT ON fencepost.queue_dead", "RAISE 'no room'"):
        async with consumed(deciding_queue):
            await eventually(lambda: failed_here(deciding_queue), what="it to be kept")
            await eventually(lambda: stopped(deciding_queue), what="the stop")
        assert (await stopped(deciding_queue), await deciding_queue.letters()) == ([("orders/k1", name)], {})
    if marked:
        await deciding_queue.owner.execute("SET session_replication_role = replica")
        await deciding_queue.owner.execute("UPDATE orders SET last_fence_token = 1 WHERE order_id = 'k1'")
    await consume(deciding_queue)
    letter = (await deciding_queue.letters())["orders/k1"]
    assert (letter.id, letter.position, letter.message) == (name, position, message)
    assert (letter.reason.startswith("23514: "), letter.at >= began) == (True, True)
    assert await failed_here(deciding_queue)


async def test_a_database_that_is_away_when_a_result_is_to_be_kept_has_everything_wait(
    deciding_queue: Queue, database: str
) -> None:
    async with consumed(deciding_queue) as one:
        async with failing(
            database, "INSERT ON fencepost.idempotency", "PERFORM pg_terminate_backend(pg_backend_pid())"
        ):
            await deciding_queue.append(write("orders/k1", body=BAD))
            await one.pauses()
        await deciding_queue.empty()
    assert await failed_here(deciding_queue)
    assert list(await deciding_queue.letters()) == ["orders/k1"]


async def test_what_was_applied_before_and_meets_an_error_now_is_no_dead_letter(
    database: str, deciding_owner: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_tables(deciding_owner, rule="epoch", source="external", effects=True)
    async with opened(database, deciding_owner) as queue:
        await queue.append(*(write("orders/k1", body={"n": n}, token=token(5)) for n in (1, 2)))
        await both_applied_and_not_done(queue, monkeypatch)
        await deciding_owner.execute("ALTER TABLE orders ADD CONSTRAINT none CHECK (n < 1) NOT VALID")
        await consume(queue)
        assert (await queue.states(), await queue.letters()) == ({"applied": 2}, {})
    assert not await wrong_effects(deciding_owner, {"orders/k1": [1, 2]})


@pytest.mark.parametrize(("letter", "stays"), [(DROPPED, False), (f"{RETRIED_AS}kafka:q.1.9", False), (IN_HAND, True)])
async def test_a_letter_that_was_dropped_while_it_was_put_again_is_removed(
    deciding_queue: Queue, connect: Connect, database: str, letter: str, stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two consumers had the message: the letter of the first was dropped before the second one put it."""
    holder = await connect()
    await deciding_queue.append(write("orders/k1", body=BAD))
    with monkeypatch.context() as patched:
        patched.setattr(PostgresConsumer, "done", forget)
        async with consumed(deciding_queue):
            await eventually(deciding_queue.letters, what="the letter of the first")
    name = (await deciding_queue.letters())["orders/k1"].id
    await holder.execute("SELECT pg_advisory_lock(7)")
    put = failing(database, "INSERT ON fencepost.queue_dead", "PERFORM pg_advisory_xact_lock(7)")
    async with put, consumed(deciding_queue):
        await blocks_another_session(holder, deciding_queue.owner)
        assert await queues.close_letter(deciding_queue.owner, name, letter)
        await holder.execute("SELECT pg_advisory_unlock(7)")
        await deciding_queue.empty()
    assert (bool(await deciding_queue.letters()), bool(await stopped(deciding_queue))) == (stays, stays)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(("minutes", "looked_up"), [(11 * 60 + 50, False), (12 * 60 + 1, True)])
async def test_an_old_message_is_looked_up_before_it_is_applied(
    deciding_queue: Queue, minutes: int, looked_up: bool, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records are kept for a day. What is `known` is not applied: its record may go at any moment."""
    steps: list[str] = []
    result, apply = Ledger.result, Applier.apply

    async def asking(ledger: Ledger, name: MessageName) -> Result | None:
        steps.append("looked up")
        return await result(ledger, name)

    async def applying(applier: Applier, received: Received, standing: QueueNow, name: MessageName) -> Verdict:
        steps.append("applied")
        return await apply(applier, received, standing, name)

    await deciding_queue.append(write("orders/k1", body={"n": 1}))
    if known:
        # Have a consumer apply all, and end before it says so.
        async def applied() -> bool:
            return await deciding_queue.states() == {"applied": 1}

        with monkeypatch.context() as patched:
            patched.setattr(PostgresConsumer, "done", forget)
            async with consumed(deciding_queue):
                await eventually(applied, what="the record")
    monkeypatch.setattr(Ledger, "result", asking)
    monkeypatch.setattr(Applier, "apply", applying)
    await deciding_queue.owner.execute(f"UPDATE fencepost.queued SET appended_at = now() - interval '{minutes} min'")
    await consume(deciding_queue)
    assert (steps[0], "applied" in steps) == ("looked up" if looked_up else "applied", not (looked_up and known))
    assert (await deciding_queue.n("k1"), await deciding_queue.states()) == (1, {"applied": 1})


async def test_the_message_that_stopped_its_resource_does_not_wait_for_itself(deciding_queue: Queue) -> None:
    message = write("orders/k1", body={"n": 1})
    (position,) = await deciding_queue.append(message)
    await queues.stop_resource(
        deciding_queue.owner, DEFAULT, "orders/k1", str(WriteId(DEFAULT, position, nonce_of(message)))
    )
    await consume(deciding_queue)
    assert (await deciding_queue.letters(), await deciding_queue.n("k1")) == ({}, 1)


async def test_a_message_that_the_gateway_fails_on_again_and_again_is_a_dead_letter(
    deciding_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[bytes] = []
    genuine = Applier.apply

    async def at_fault(applier: Applier, received: Received, standing: QueueNow, name: MessageName) -> Verdict:
        if received.message.key == b"orders/k1":
            tries.append(received.message.key)
            raise RuntimeError("a fault")
        return await genuine(applier, received, standing, name)

    monkeypatch.setattr(Applier, "apply", at_fault)
    await deciding_queue.append(write("orders/k1", body={"n": 1}), write("orders/k2", body={"n": 2}))
    await consume(deciding_queue)
    assert (await deciding_queue.letters())["orders/k1"].reason.startswith("FP023: ")
    assert (len(tries), await deciding_queue.n("k1"), await deciding_queue.n("k2")) == (MOST_FAULTS, 0, 2)


@pytest.mark.parametrize("key", [b"\x00\x00\x00\x01", b"\xff", b"orders", b"", b"orders/a\x00"])
async def test_a_key_that_names_no_resource_stops_none(deciding_queue: Queue, key: bytes) -> None:
    await deciding_queue.append(Message(key, b"{}"))
    await consume(deciding_queue)
    assert (len(await deciding_queue.letters()), await stopped(deciding_queue)) == (1, [])
