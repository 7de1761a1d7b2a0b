"""Queues in the database (R12), and which records of messages may be forgotten (R16).

Messages are of partition 0, and of postgres:default; what a log says, the test says.
"""

from collections.abc import Awaitable, Callable

from tests.support.interleave import Connect, Connection, start

from fencepost.server.postgres import keyed, queues, sources
from fencepost.server.postgres.queues import PARTITIONS, LogCheck, MessageRow, RecordedLog

ORDERS = "kafka:orders"
TTL_MS = 10_000


def message(key: str) -> MessageRow:
    return MessageRow(0, key.encode(), (("method", b"PATCH"), ("x-a", b"\xff")), b"{}")


async def appended(connection: Connection, *keys: str) -> list[int]:
    return await queues.append(connection, [message(key) for key in keys])


async def member(connect: Connect, name: str = "a") -> Connection:
    connection = await connect()
    await queues.own(connection, name, TTL_MS, ())
    return connection


async def taken(connection: Connection, name: str = "a", *in_hand: int) -> list[str]:
    """Take, and return the keys."""
    found = await queues.take(connection, name, range(PARTITIONS), [(0, offset) for offset in in_hand], 100, 2**20)
    return [each.row.key.decode() for each in found]


async def test_an_append_waits_for_an_earlier_one_of_its_key(connect: Connect) -> None:
    """Else the later one could be applied first, and the earlier one be refused as a stale one."""
    first, second, observer, consumer = await connect(), await connect(), await connect(), await member(connect)
    transaction = first.transaction()
    await transaction.start()
    [earlier] = await appended(first, "orders/1")
    appending = await start(observer, appended(second, "orders/2", "orders/1"), second.get_server_pid())
    assert await taken(consumer) == [], "a later message of the key was seen without the earlier one"
    await transaction.commit()
    assert await appending == [earlier + 1, earlier + 2]
    assert await taken(consumer) == ["orders/1", "orders/2", "orders/1"]


async def test_appends_of_the_same_keys_in_another_order_do_not_deadlock(connect: Connect) -> None:
    first, second, observer = await connect(), await connect(), await connect()
    transaction = first.transaction()
    await transaction.start()
    await appended(first, "orders/1", "orders/2")
    appending = await start(observer, appended(second, "orders/2", "orders/1"), second.get_server_pid())
    await appended(first, "orders/2")
    await transaction.commit()
    assert len(await appending) == 2


async def committed_late(connect: Connect) -> tuple[Connection, int]:
    """Commit a message after one of another key with a higher offset was taken: (who took that one, its offset)."""
    slow, quick, consumer = await connect(), await connect(), await member(connect)
    transaction = slow.transaction()
    await transaction.start()
    await appended(slow, "orders/slow")
    [offset] = await appended(quick, "orders/quick")
    assert await taken(consumer) == ["orders/quick"]
    await transaction.commit()
    return consumer, offset


async def test_done_leaves_what_was_committed_meanwhile(connect: Connect) -> None:
    consumer, offset = await committed_late(connect)
    await queues.done(consumer, [(0, offset)])
    assert await taken(consumer) == ["orders/slow"], "what was not decided is gone"


async def test_a_lower_offset_is_taken_after_a_higher_one(connect: Connect) -> None:
    consumer, offset = await committed_late(connect)
    assert await taken(consumer, "a", offset) == ["orders/slow"], "it is never taken, or what is in hand comes twice"


async def test_an_owner_that_was_paused_takes_nothing_of_its_successors(connect: Connect) -> None:
    paused, successor = await member(connect), await connect()
    await appended(successor, "orders/1")
    assert (await queues.own(successor, "b", TTL_MS, ())).partitions == (), "the owner is alive"
    expire = "UPDATE fencepost.queue_owners SET until = clock_timestamp() - interval '1 ms' WHERE member = $1"
    await paused.execute(expire, "a")
    await paused.execute("UPDATE fencepost.queue_members SET seen_at = seen_at - interval '1 h' WHERE member = 'a'")
    assert await taken(paused) == [], "it may be another's by now"
    assert len((await queues.own(successor, "b", TTL_MS, ())).partitions) == PARTITIONS
    assert await taken(successor, "b") == ["orders/1"]
    assert await taken(paused) == []
    assert (await queues.own(paused, "a", TTL_MS, ())).partitions == (), "it woke up, and took them back"


async def test_members_share_and_keep_what_they_are_busy_with(connect: Connect) -> None:
    first, second = await member(connect), await connect()
    assert (await queues.own(second, "b", TTL_MS, ())).partitions == ()
    kept = await queues.own(first, "a", TTL_MS, (7, 6))
    assert (kept.share, kept.partitions) == (4, (0, 1, 6, 7))
    assert (await queues.own(second, "b", TTL_MS, ())).partitions == (2, 3, 4, 5)
    await queues.leave(first, "a")
    assert (await queues.own(second, "b", TTL_MS, ())).partitions == tuple(range(PARTITIONS))


async def test_members_that_come_at_once_do_not_wait_for_each_other(connect: Connect) -> None:
    first, second, observer = await connect(), await connect(), await connect()
    transaction = first.transaction()
    await transaction.start()
    had = await queues.own(first, "a", TTL_MS, ())
    coming = await start(observer, queues.own(second, "b", TTL_MS, ()), second.get_server_pid())
    assert coming.done(), "it waits for the other one's transaction"
    await transaction.commit()
    assert not {*had.partitions} & {*(await coming).partitions}


async def check(
    connection: Connection,
    *ends: int,
    incarnation: str = "x",
    epochs: tuple[int | None, ...] = (),
    generation: int | None = None,
    before: RecordedLog | None = None,
) -> LogCheck:
    epochs = epochs or (None,) * len(ends)
    return await queues.check(connection, ORDERS, incarnation, ends, epochs, generation=generation, before=before)


async def looked_at(connection: Connection, *ends: int, epochs: tuple[int | None, ...] = ()) -> LogCheck:
    """Register the queue, and let its log be looked at for the first time in its generation."""
    await queues.register(connection, ORDERS)
    again = await check(connection, *ends, epochs=epochs)
    assert again.verdict == "again", "what the log said may be from before the generation was raised"
    first = await check(connection, *ends, epochs=epochs, before=again.recorded)
    assert first.verdict == "ok"
    return first


async def issued(connection: Connection) -> int:
    return int(await connection.fetchval("SELECT fencepost.issued($1)", ORDERS))


async def test_tokens_up_to_the_ends_are_issued(connect: Connect) -> None:
    a = await connect()
    looked = await looked_at(a, 3, 7)
    assert (looked.generation, looked.token(6), await issued(a)) == (0, 7, 7)
    assert (await check(a, 3, 9, generation=0)).verdict == "ok"
    assert (await check(a, 4, 9, generation=0)).verdict == "ok"
    assert await issued(a) == 9


async def test_a_late_answer_is_no_fault(connect: Connect) -> None:
    """Another consumer has asked the log later, and recorded its answer first."""
    a, b = await connect(), await connect()
    await looked_at(a, 5)
    assert (await check(b, 9, generation=0)).verdict == "ok"
    again = await check(a, 7, generation=0)
    assert again.verdict == "again"
    assert (await check(b, 11, generation=0)).verdict == "ok"
    assert (await check(a, 9, generation=0, before=again.recorded)).verdict == "ok", "it would never be in time"
    assert await issued(a) == 11


async def test_two_first_looks_are_no_fault(connect: Connect) -> None:
    """Two consumers look at the log for the first time in its generation; who asked later records the answer first."""
    a, b = await connect(), await connect()
    await queues.register(a, ORDERS)
    first = [await check(each, 5) for each in (a, b)]
    assert [each.verdict for each in first] == ["again", "again"]
    generation = first[0].generation
    assert (await check(a, 6, generation=generation, before=first[0].recorded)).verdict == "ok"
    again = await check(b, 5, generation=generation, before=first[1].recorded)
    assert again.verdict == "again", "what b asked for is older, and no fault of the log"
    assert (await check(b, 6, generation=generation, before=again.recorded)).verdict == "ok"


async def _refused(
    connection: Connection, because: str, second: Callable[[RecordedLog | None], Awaitable[LogCheck]]
) -> None:
    again = await second(None)
    assert again.verdict == "again", "one answer may be late"
    quarantined = await second(again.recorded)
    assert quarantined.verdict == "quarantined"
    assert because in (quarantined.because or "")
    assert (await check(connection, 100, 100, generation=0)).verdict == "quarantined"
    log = await connection.fetch("SELECT event FROM fencepost.source_log WHERE source = $1 ORDER BY at", ORDERS)
    assert [row["event"] for row in log] == ["registered", "quarantined"]
    assert await sources.raise_source(connection, ORDERS, "vouched for") == 1
    assert (await check(connection, 1, 1, generation=0)).verdict == "raised", "what was taken before is void"
    looked = await looked_at(connection, 1, 1)
    assert (looked.generation, looked.token(0)) == (1, (1 << 48) + 1)


async def test_a_log_that_lost_messages_quarantines(connect: Connect) -> None:
    a = await connect()
    await looked_at(a, 5, 9)
    await _refused(
        a, "partition 1 ends at offset 8, and had reached 9", lambda before: check(a, 6, 8, generation=0, before=before)
    )


async def test_a_log_that_was_made_again_quarantines(connect: Connect) -> None:
    a = await connect()
    await looked_at(a, 5, 9)
    await _refused(
        a, "deleted and made again", lambda before: check(a, 6, 9, incarnation="y", generation=0, before=before)
    )


async def test_a_log_that_got_other_partitions_quarantines(connect: Connect) -> None:
    a = await connect()
    await looked_at(a, 5, 9)
    await _refused(
        a, "it has 3 partitions now, and had 2", lambda before: check(a, 6, 9, 0, generation=0, before=before)
    )


async def test_a_leader_epoch_that_went_back_quarantines(connect: Connect) -> None:
    a = await connect()
    await looked_at(a, 5, 9, epochs=(3, 4))
    assert (await check(a, 5, 9, epochs=(3, 5), generation=0)).verdict == "ok"
    await _refused(
        a,
        "the leader epoch of partition 1 is 4, and had been 5",
        lambda before: check(a, 6, 9, epochs=(3, 4), generation=0, before=before),
    )


async def test_a_check_waits_for_a_raise_under_way(connect: Connect) -> None:
    a, b, observer = await connect(), await connect(), await connect()
    await looked_at(a, 5)
    transaction = b.transaction()
    await transaction.start()
    await b.execute("SELECT fencepost.source_raise($1, 'test', 0)", ORDERS)
    checking = await start(observer, check(a, 7, generation=0), a.get_server_pid())
    assert not checking.done()
    await transaction.commit()
    assert (await checking).verdict == "raised"
    assert await issued(observer) == 1 << 48, "an offset of the old generation counts as one of the new"
    assert await observer.fetchval("SELECT incarnation FROM fencepost.queues WHERE source = $1", ORDERS) is None


async def test_a_raised_generation_of_the_database_is_one_of_its_own_log(connect: Connect) -> None:
    """It forgot what it had handed out, with the database. Kafka did not."""
    a = await connect()
    await queues.register(a, ORDERS)
    await queues.register(a, "postgres:default")
    raised = await a.fetchval("SELECT fencepost.raise_generation('failed over')")
    now = {each.name: each.generation for each in await sources.list_known(a)}
    assert now["postgres:default"] >= raised
    assert now[ORDERS] == 0


async def test_a_loss_that_was_found_before_the_raise_quarantines_no_more(connect: Connect) -> None:
    """A consumer that found it says so late, when an operator has raised the source already."""
    a = await connect()
    await queues.register(a, ORDERS)
    await queues.quarantine(a, ORDERS, "cut off", 0)
    assert (await sources.state(a, ORDERS, "")).quarantined == "cut off"
    await sources.raise_source(a, ORDERS, "vouched for")
    await queues.quarantine(a, ORDERS, "cut off", 0)
    assert (await sources.state(a, ORDERS, "")).quarantined is None
    await queues.quarantine(a, ORDERS, "cut off again", None)
    assert (await sources.state(a, ORDERS, "")).quarantined == "cut off again"


# Records of messages

DAY = 86_400.0
COMMITTED = "SELECT count(*) FROM fencepost.queue_partitions WHERE committed IS NOT NULL"
RECORD = """
INSERT INTO fencepost.idempotency (caller, key, payload_hash, outcome, state, owner, created_at)
VALUES ('queue', $1, convert_to($1::text, 'UTF8'), '{}', 'applied', NULL, now() - interval '2 days')"""
IDS = ["kafka:a.b.0.4.0123456789abcdef", "kafka:a.b.0.5.0123456789abcdef", "kafka:a.b.1.9.0123456789abcdef"]
LEFT = "SELECT array_agg(key ORDER BY key) FROM fencepost.idempotency"


async def first_look(connection: Connection, incarnation: str, *ends: int) -> int:
    """Have a consumer look at the log for the first time in a generation."""
    epochs = [None] * len(ends)
    again = await queues.check(connection, "kafka:a.b", incarnation, ends, epochs)
    found = await queues.check(connection, "kafka:a.b", incarnation, ends, epochs, before=again.recorded)
    assert found.verdict == "ok"
    return found.generation


async def test_records_go_when_they_are_committed_and_not_before(connect: Connect) -> None:
    a = await connect()
    await queues.register(a, "kafka:a.b")
    for each in IDS:
        await a.execute(RECORD, each)
    generation = await first_look(a, "x", 9, 10)
    assert await keyed.prune(a, DAY) == 0, "it is not known what is committed"
    await queues.note_committed(a, "kafka:a.b", generation, [5, 9])
    assert await keyed.prune(a, DAY) == 1
    assert await a.fetchval(LEFT) == IDS[1:]
    assert await queues.is_committed(a, "kafka:a.b", generation, 0, 4)
    assert not await queues.is_committed(a, "kafka:a.b", generation, 0, 5)


async def test_after_a_raise_what_is_committed_is_asked_anew(connect: Connect) -> None:
    a = await connect()
    await queues.register(a, "kafka:a.b")
    for each in IDS:
        await a.execute(RECORD, each)
    generation = await first_look(a, "x", 9, 10)
    await queues.note_committed(a, "kafka:a.b", generation, [9, 10])
    await sources.raise_source(a, "kafka:a.b", "for a test")
    assert not await queues.is_committed(a, "kafka:a.b", generation, 0, 4)
    await queues.note_committed(a, "kafka:a.b", generation, [9, 10])
    assert await keyed.prune(a, DAY) == 0, "the generation before is not this one"
    before, generation = generation, await first_look(a, "y", 5)
    await queues.note_committed(a, "kafka:a.b", before, [9, 10])
    assert not await queues.is_committed(a, "kafka:a.b", generation, 0, 4), "the generation before is not this one"
    assert await keyed.prune(a, DAY) == 1, "there is no partition 1 any more"
    await queues.note_committed(a, "kafka:a.b", generation, [3])
    assert await keyed.prune(a, DAY) == 1, "there is no offset 5 now"
    assert await a.fetchval(LEFT) == IDS[:1]


async def test_a_callers_record_goes_when_no_copy_of_its_time_waits(connect: Connect) -> None:
    a, queue = await connect(), "kafka:a.b"
    await queues.register(a, queue)
    await a.execute(RECORD.replace("NULL", "'x'"), IDS[0])
    generation, now = await first_look(a, "x", 9, 10), await queues.now(a)
    await queues.note_committed(a, queue, generation, [9, 10])

    async def looked(minutes: int, *decided: int, log: str = "x") -> int:
        """Note a look of so many minutes ago; how many records are forgotten then."""
        await queues.note_look(a, queue, generation, now - 60 * minutes, decided, (log, [9, 10]))
        return await keyed.prune(a, DAY)

    assert [await looked(each, 8, 10) for each in (90, 80, 70)] == [0, 0, 0], "offset 8 is not decided"
    assert await looked(60, 9, 11) == 0, "the log does not come to 11"
    assert await looked(60, 9, 10, log="y") == 0, "that is another log"
    assert await queues.applied_to(a, queue) is None
    assert await looked(60, 9, 10) == 0, "who asks now has a minute"
    assert await queues.applied_to(a, queue) == now - 60 * 90
    assert await looked(60, 9, 10) == 0, "that is the same minute"
    await a.execute("UPDATE fencepost.idempotency SET created_at = to_timestamp($1)", now - 60 * 99 - DAY)
    assert await looked(50, 9, 10) == 0, "clocks differ"
    await a.execute("UPDATE fencepost.idempotency SET created_at = to_timestamp($1)", now - 60 * 101 - DAY)
    assert await looked(50, 9, 10) == 1
    await sources.raise_source(a, queue, "for a test")
    await looked(40, 9, 10)
    assert await queues.applied_to(a, queue) is None


async def test_a_clock_that_is_set_back_holds_no_records_back(connect: Connect) -> None:
    a, queue = await connect(), "kafka:a.b"
    await queues.register(a, queue)
    generation, now = await first_look(a, "x", 9), await queues.now(a)
    for minutes in (-8998, -9000, 60, 58):
        await queues.note_look(a, queue, generation, now - 60 * minutes, [9], ("x", [9]))
    assert await queues.applied_to(a, queue) == now - 60 * 60


async def test_what_is_said_during_a_raise_is_of_the_generation_before(connect: Connect) -> None:
    a, b, observer = await connect(), await connect(), await connect()
    await queues.register(a, "kafka:a.b")
    generation = await first_look(a, "x", 9)
    await queues.note_committed(a, "kafka:a.b", generation, [1])
    transaction = b.transaction()
    await transaction.start()
    await b.execute("SELECT fencepost.source_raise('kafka:a.b', 'test', 0)")
    noting = await start(observer, queues.note_committed(a, "kafka:a.b", generation, [9]), a.get_server_pid())
    assert not noting.done()
    await transaction.commit()
    await noting
    assert await observer.fetchval(COMMITTED) == 0
