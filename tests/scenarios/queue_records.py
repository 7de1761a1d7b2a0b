"""Records of messages (R16): which may be forgotten, and which are needed. See queues.py."""

from tests.scenarios.queues import QueueScenario
from tests.support.interleave import Connect, Connection, start

from fencepost.server.postgres import keyed, queues, sources

DAY = 86_400.0
COMMITTED = "SELECT count(*) FROM fencepost.queue_partitions WHERE committed IS NOT NULL"
RECORD = """
INSERT INTO fencepost.idempotency (caller, key, payload_hash, status, headers, answer, created_at)
VALUES ('queue', $1, convert_to($1::text, 'UTF8'), 200, '{}', '', now() - interval '2 days')"""
IDS = ["kafka:a.b.0.4.0123456789abcdef", "kafka:a.b.0.5.0123456789abcdef", "kafka:a.b.1.9.0123456789abcdef"]
LEFT = "SELECT array_agg(key ORDER BY key) FROM fencepost.idempotency"


async def looked_at(connection: Connection, incarnation: str, *ends: int) -> int:
    """Have a consumer look at the log for the first time in a generation."""
    epochs = [None] * len(ends)
    again = await queues.check(connection, "kafka:a.b", incarnation, ends, epochs)
    found = await queues.check(connection, "kafka:a.b", incarnation, ends, epochs, before=again.recorded)
    assert found.verdict == "ok"
    return found.generation


async def records_go_when_they_are_committed_and_not_before(connect: Connect) -> None:
    a = await connect()
    await queues.register(a, "kafka:a.b")
    for each in IDS:
        await a.execute(RECORD, each)
    generation = await looked_at(a, "x", 9, 10)
    assert await keyed.prune(a, DAY) == 0, "it is not known what is committed"
    await queues.note_committed(a, "kafka:a.b", generation, [5, 9])
    assert await keyed.prune(a, DAY) == 1
    assert await a.fetchval(LEFT) == IDS[1:]
    assert await queues.is_committed(a, "kafka:a.b", generation, 0, 4)
    assert not await queues.is_committed(a, "kafka:a.b", generation, 0, 5)


async def after_a_raise_what_is_committed_is_asked_anew(connect: Connect) -> None:
    a = await connect()
    await queues.register(a, "kafka:a.b")
    for each in IDS:
        await a.execute(RECORD, each)
    generation = await looked_at(a, "x", 9, 10)
    await queues.note_committed(a, "kafka:a.b", generation, [9, 10])
    await sources.raise_source(a, "kafka:a.b", "for a test")
    assert not await queues.is_committed(a, "kafka:a.b", generation, 0, 4)
    await queues.note_committed(a, "kafka:a.b", generation, [9, 10])
    assert await keyed.prune(a, DAY) == 0, "the generation before is not this one"
    before, generation = generation, await looked_at(a, "y", 5)
    await queues.note_committed(a, "kafka:a.b", before, [9, 10])
    assert not await queues.is_committed(a, "kafka:a.b", generation, 0, 4), "the generation before is not this one"
    assert await keyed.prune(a, DAY) == 1, "there is no partition 1 any more"
    await queues.note_committed(a, "kafka:a.b", generation, [3])
    assert await keyed.prune(a, DAY) == 1, "there is no offset 5 now"
    assert await a.fetchval(LEFT) == IDS[:1]


async def a_callers_record_goes_when_no_copy_of_its_time_waits(connect: Connect) -> None:
    a, queue = await connect(), "kafka:a.b"
    await queues.register(a, queue)
    await a.execute(RECORD.replace("'{}'", "'{fencepost-caller,x}'"), IDS[0])
    generation, now = await looked_at(a, "x", 9, 10), await queues.now(a)
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


async def a_clock_that_is_set_back_holds_no_records_back(connect: Connect) -> None:
    a, queue = await connect(), "kafka:a.b"
    await queues.register(a, queue)
    generation, now = await looked_at(a, "x", 9), await queues.now(a)
    for minutes in (-8998, -9000, 60, 58):
        await queues.note_look(a, queue, generation, now - 60 * minutes, [9], ("x", [9]))
    assert await queues.applied_to(a, queue) == now - 60 * 60


async def what_is_said_during_a_raise_is_of_the_generation_before(connect: Connect) -> None:
    a, b, observer = await connect(), await connect(), await connect()
    await queues.register(a, "kafka:a.b")
    generation = await looked_at(a, "x", 9)
    await queues.note_committed(a, "kafka:a.b", generation, [1])
    transaction = b.transaction()
    await transaction.start()
    await b.execute("SELECT fencepost.source_raise('kafka:a.b', 'test', 0)")
    noting = await start(observer, queues.note_committed(a, "kafka:a.b", generation, [9]), a.get_server_pid())
    assert not noting.done()
    await transaction.commit()
    await noting
    assert await observer.fetchval(COMMITTED) == 0


SCENARIOS: list[QueueScenario] = [
    a_callers_record_goes_when_no_copy_of_its_time_waits, records_go_when_they_are_committed_and_not_before,
    after_a_raise_what_is_committed_is_asked_anew, a_clock_that_is_set_back_holds_no_records_back,
    what_is_said_during_a_raise_is_of_the_generation_before,
]  # fmt: skip
