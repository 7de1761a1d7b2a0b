"""A consumer is stopped (SIGSTOP) with messages in hand until another has its partitions and has applied them, and
then goes on: nothing is applied twice. A consumer without fence and record, in the same place, applies twice.
"""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager

import asyncpg
import pytest
from confluent_kafka import KafkaError, Message, Producer
from tests.robustness.queues.log_servers import OneKafka
from tests.robustness.queues.oracle import Submission, effects_of
from tests.robustness.queues.submitters import Connection, Submitters
from tests.robustness.queues.world import World, world
from tests.support.violations import assert_none

from fencepost.testing.faults import paused
from fencepost.testing.servers.kafka import Kafka
from fencepost.testing.servers.launcher import Launcher
from fencepost.testing.servers.processes import PATIENCE, eventually
from fencepost.testing.servers.server import Server

pytestmark = pytest.mark.long("storms of queued writes")

KEY = "k0"
IN_HAND = 450
WRITTEN_BEFORE = 5
OPEN_TRANSACTIONS = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL"""
TAKEN_OVER_WITHIN = 2 * PATIENCE
"""Seconds. A session of Kafka is 3 here, ownership in PostgreSQL and Redis 10, and a transaction that was left open is
ended after STATEMENT_TIMEOUT."""
STATEMENT_TIMEOUT = "5"
ATTEMPTS = 5
SEEN_WITHIN = 10.0
"""Seconds. A consumer writes at once when it goes on, and reports it a second later."""
EFFECTS = "SELECT count(*) FROM oracle.effects"
NOTHING_LEFT = "SELECT bool_and(oldest_at IS NULL) FROM fencepost.queue_partitions"
"""By the reports of consumers, once a second; NULL before the first one."""
REDELIVERED = "SELECT sum(redelivered) FROM fencepost.queue_partitions"
"""What consumers found decided already, by the fence or by the record, when they came to write it."""


@asynccontextmanager
async def row_locked(house: World) -> AsyncIterator[asyncpg.Connection]:
    """Hold the row's lock, so that whoever writes it waits."""
    connection = await house.connect()
    try:
        async with connection.transaction():
            await connection.execute("SELECT FROM orders WHERE id = $1 FOR UPDATE", KEY)
            yield connection
    finally:
        await connection.close()


async def somebody_waits(connection: asyncpg.Connection) -> bool:
    """Whether a statement waits for the row."""
    return bool(await connection.fetchval("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))


async def stop_between_writes(consumer: Server, looking: asyncpg.Connection, stopped: ExitStack) -> None:
    """Stop a consumer that writes, at a moment at which it has no transaction open: such a one would be ended before
    another can write the row, and not be a late write.
    """

    async def between() -> bool:
        if await looking.fetchval(EFFECTS) < WRITTEN_BEFORE:
            return False
        with ExitStack() as attempt:
            attempt.enter_context(paused(consumer))
            try:  # a statement that was sent with its commit ends by itself
                await eventually(lambda: none_open(looking), within=0.5)
            except TimeoutError:
                return False
            stopped.push(attempt.pop_all())
            return True

    await eventually(between, what="a moment between two writes")
    assert await looking.fetchval(EFFECTS) < IN_HAND, "it was too late: all are written"


async def none_open(looking: asyncpg.Connection) -> bool:
    """Whether no transaction is open but the asking one."""
    return not await looking.fetchval(OPEN_TRANSACTIONS)


async def submit_some(submitters: Submitters) -> None:
    """Submit IN_HAND writes of one row, one after the other."""
    connection = Connection(submitters.url)
    for number in range(IN_HAND):
        status, body = await connection.patch(KEY, f"w-{number}", None)
        assert status == 202, body
        offset = int(str(body["id"]).rsplit(".", 2)[1])
        submitters.submissions.append(Submission("w", KEY, f"w-{number}", "acknowledged", offset))
    connection.close()


async def test_what_a_stopped_consumer_writes_when_it_goes_on_is_not_applied_twice(
    kind: str, launcher: Launcher, one_kafka: OneKafka, seed: int
) -> None:
    """Its log may tell a consumer that goes on of its loss before it comes to write: then nothing is shown, and it is
    done again.
    """
    for attempt in range(ATTEMPTS):
        if await late_writes_are_not_applied_twice(kind, launcher, one_kafka, seed + attempt):
            return
    pytest.fail(f"no consumer wrote late in {ATTEMPTS} attempts")


async def late_writes_are_not_applied_twice(kind: str, launcher: Launcher, one_kafka: OneKafka, seed: int) -> bool:
    """Stop a consumer, have another one take over, and let the first one go on. False: it wrote nothing then."""
    async with world(kind, launcher=launcher, one_kafka=one_kafka, statement_timeout=STATEMENT_TIMEOUT) as house:
        submitters = Submitters(house.gateway.url, seed, lambda: True)
        await submit_some(submitters)
        looking = await house.connect()
        with ExitStack() as stopped:
            await stop_between_writes(await house.consumer("a"), looking, stopped)
            await house.consumer("b")
            await eventually(
                lambda: all_applied(house, submitters), within=TAKEN_OVER_WITHIN, what="what the first one had in hand"
            )

            async def reported() -> bool:
                return bool(await looking.fetchval(NOTHING_LEFT))

            await eventually(reported, what="the second one's report that nothing is left")
            before: int = await looking.fetchval(REDELIVERED)

        async def found_decided() -> bool:
            now: int = await looking.fetchval(REDELIVERED)
            return now > before

        try:
            await eventually(found_decided, within=SEEN_WITHIN, what="a late write of the one that goes on")
        except TimeoutError:
            late = False
        else:
            late = True
        assert await all_applied(house, submitters)
        await house.end(submitters)
        await looking.close()
        wrong = await house.wrong(submitters.submissions)
        assert_none(wrong, f"FENCEPOST_STORM_SEED={seed}", house.logs())
        return late


async def all_applied(house: World, submitters: Submitters) -> bool:
    """Whether each acknowledged submission had an effect."""
    return await house.missing(submitters) == 0


async def test_without_fence_and_record_a_stopped_consumer_applies_twice(
    launcher: Launcher, one_kafka: OneKafka
) -> None:
    """The control, in the same place."""
    async with world("kafka", launcher=launcher, one_kafka=one_kafka, protected=False) as house:
        kafka = house.log.kafka
        assert kafka is not None
        tags = await asyncio.to_thread(produce_some, kafka, house.log.topic)
        looking = await house.connect()
        with plain(house, kafka, "a") as first:
            async with row_locked(house):
                first.start()
                await eventually(lambda: somebody_waits(looking), what="the first consumer's write")
                first.pause()
            with plain(house, kafka, "b") as other:
                other.start()

                async def taken_over() -> bool:
                    return {each.tag for each in await effects_of(looking)} == set(tags)

                await eventually(taken_over, within=TAKEN_OVER_WITHIN, what="what the first one had in hand")
                first.resume()

                async def twice() -> bool:
                    done = [each.tag for each in await effects_of(looking)]
                    return Counter(done).most_common(1)[0][1] > 1

                await eventually(twice, what="a second effect")
                await eventually(lambda: out_of_order(looking, tags), what="an older write after a newer one")
        await looking.close()


async def out_of_order(connection: asyncpg.Connection, tags: list[str]) -> bool:
    """Whether a write was done after one that was submitted after it."""
    places = [tags.index(each.tag) for each in await effects_of(connection)]
    return places != sorted(places)


@contextmanager
def plain(house: World, kafka: Kafka, name: str) -> Iterator[Server]:
    """Give a consumer as most would write it, not started; it is ended with the block."""
    command = (
        sys.executable,
        "-m",
        "tests.robustness.queues.plain_consumer",
        kafka.bootstrap,
        house.log.topic,
        house.database,
    )
    server = Server(command, house.directory / f"plain-{name}.log", lambda: True)
    try:
        yield server
    finally:
        server.crash()


def produce_some(kafka: Kafka, topic: str) -> list[str]:
    """Produce IN_HAND messages of one row."""
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer({"bootstrap.servers": kafka.bootstrap, "acks": "all", "enable.idempotence": True})
    tags = [f"w-{number}" for number in range(IN_HAND)]
    for tag in tags:
        producer.produce(topic, json.dumps({"tag": tag}), f"orders/{KEY}", on_delivery=delivered)
    assert producer.flush(30) == 0
    assert not failed
    return tags
