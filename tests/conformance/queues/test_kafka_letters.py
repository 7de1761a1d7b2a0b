"""Reading a large topic of dead letters: as long as records come, and from where a call that failed had got to."""

import asyncio
import json
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as KafkaMessage
from tests.conformance.queues.benches import ConsumedTopic, consumed_topic, make_topic, next_topic
from tests.support.consuming import write
from tests.support.interleave import Connect
from tests.support.servers import until

from fencepost.server.queues.kafka_cluster import DeadTopic
from fencepost.server.queues.kafka_settings import read_url
from fencepost.server.queues.log import LogUnavailableError
from fencepost.testing.servers.kafka import Kafka
from fencepost.testing.servers.processes import eventually

pytestmark = pytest.mark.long("tests with kafka")

FEW = "queued.min.messages=1&fetch.message.max.bytes=1000&fetch.queue.backoff.ms=500"
"""The client has one record, or a few, and fetches no other one until they are taken."""
LETTERS = 10
BEFORE_IT_STOPS = 2
"""How many letters a read is allowed before the test stops something under it."""


class Gated(DeadTopic):
    """Reads as many records as it is allowed. At each one its clock goes on by half of the time for which it may be
    silent.
    """

    def __init__(self, url: str, silent_s: float) -> None:
        super().__init__(read_url(url), silent_s)
        self.gate = threading.Semaphore(0)
        self.passed = 0.0

    def now(self) -> float:
        return super().now() + self.passed

    def _note(self, record: KafkaMessage) -> None:
        self.gate.acquire()
        self.passed += self._silent_s / 2
        super()._note(record)


@pytest.fixture(scope="module")
def topic(one_broker: Kafka) -> str:
    """Make a topic with dead letters, each larger than a fetch and in a batch of its own."""
    topic = next_topic()
    make_topic(one_broker, f"{topic}.dead", 1)
    producer = Producer({"bootstrap.servers": one_broker.bootstrap})
    for number in range(LETTERS):
        producer.produce(f"{topic}.dead", b"x" * 2000, f"letter-{number}")
        assert producer.flush(30) == 0
    return topic


Open = Callable[[float], Gated]


@pytest.fixture
def open_dead(one_broker: Kafka, topic: str) -> Iterator[Open]:
    """Open a reader that may be silent for so many seconds."""
    opened: list[Gated] = []

    def open_one(silent_s: float) -> Gated:
        opened.append(Gated(f"kafka://{one_broker.bootstrap}/{topic}?{FEW}", silent_s))
        return opened[-1]

    yield open_one
    for each in opened:
        each.gate.release(LETTERS)
        each.close()


async def stopped_in_the_middle(dead: Gated) -> asyncio.Task[None]:
    """Begin a read, and return once it has got somewhere and goes no further."""
    reading = asyncio.create_task(asyncio.to_thread(dead.catch_up))
    dead.gate.release(BEFORE_IT_STOPS)
    await until(lambda: len(dead.places) == BEFORE_IT_STOPS, what="the first letters")
    return reading


async def test_a_topic_is_read_to_its_end_however_long_that_takes(open_dead: Open) -> None:
    dead = open_dead(30.0)
    dead.gate.release(LETTERS)
    await asyncio.to_thread(dead.catch_up)
    assert [*dead.places] == [f"letter-{number}" for number in range(LETTERS)]
    assert dead.passed > 30.0


async def test_a_read_ends_when_it_is_stopped(open_dead: Open) -> None:
    dead = open_dead(30.0)
    reading = await stopped_in_the_middle(dead)
    dead.stop()
    dead.gate.release(LETTERS)
    with pytest.raises(LogUnavailableError, match="is not open"):
        await reading
    assert len(dead.places) < LETTERS


async def test_a_read_goes_on_from_where_one_that_failed_had_got_to(one_broker: Kafka, open_dead: Open) -> None:
    dead = open_dead(3.0)
    reading = await stopped_in_the_middle(dead)
    (broker,) = one_broker.brokers
    broker.server.pause()
    try:
        dead.gate.release(LETTERS)
        with pytest.raises(LogUnavailableError, match=r"nothing came of \S+\.dead for 3 s"):
            await reading
    finally:
        broker.server.resume()
    assert 0 < (read_to := dead.read_to[0]) < LETTERS
    first = dead.places.pop("letter-0")  # a second reading from the beginning would find it again
    dead.gate.release(LETTERS)

    async def read_to_the_end() -> bool:
        try:
            await asyncio.to_thread(dead.catch_up)
        except (LogUnavailableError, KafkaException):  # the broker has just been resumed
            return False
        return True

    await eventually(read_to_the_end, what="the rest of the letters")
    assert (first, [*dead.places]) == ((0, 0), [f"letter-{number}" for number in range(1, LETTERS)])
    assert dead.read_to[0] == LETTERS > read_to


# Dead letters of messages that are nearly as large as their topic takes: a letter is larger than its message.

Opened = Callable[[str], AbstractAsyncContextManager[ConsumedTopic]]
LIMIT: Final = 200_000
NOISE: Final = random.Random(17).randbytes(3_000_000)


@pytest.fixture
def kafka(one_broker: Kafka) -> Kafka:
    return one_broker


@pytest.fixture
async def opened(kafka: Kafka, database: str, connect: Connect) -> Opened:
    """Give a function that opens the queue of a topic, on a table of its own."""
    owner = await connect()
    return lambda topic: consumed_topic(kafka, topic, owner, database)


def append(kafka: Kafka, topic: str, value: bytes, more: Sequence[tuple[str, bytes]] = (), codec: str = "none") -> bool:
    """Append a write of k0 with these headers more, as a producer of another service; whether the topic took it."""
    properties: dict[str, str | int] = {
        "bootstrap.servers": kafka.bootstrap, "message.max.bytes": 100_000_000, "compression.codec": codec,
    }  # fmt: skip
    producer, errors = Producer(properties), list[KafkaError | None]()

    def delivered(error: KafkaError | None, _: KafkaMessage) -> None:
        errors.append(error)

    headers: list[tuple[str, str | bytes | None]] = [*write("orders/k0", body={}).headers, *more]
    producer.produce(topic, value, "orders/k0", headers=headers, on_delivery=delivered)
    assert producer.flush(30) == 0
    (error,) = errors
    assert error is None or error.code() == KafkaError.MSG_SIZE_TOO_LARGE
    return error is None


def append_largest(kafka: Kafka, topic: str, limit: int) -> bytes:
    """Append the largest write of k0 that a topic of this limit takes; return its value, which is no JSON."""
    return next(NOISE[:size] for size in range(limit, 0, -20) if append(kafka, topic, NOISE[:size]))


@pytest.mark.parametrize("limit", [LIMIT, 3_000_000])
async def test_the_letter_of_the_largest_message_has_its_value(kafka: Kafka, opened: Opened, limit: int) -> None:
    topic = next_topic()
    await asyncio.to_thread(make_topic, kafka, topic, 1, {"max.message.bytes": str(limit)})
    async with opened(topic) as queue, queue.consumed():
        value = await asyncio.to_thread(append_largest, kafka, topic, limit)
        await queue.append("k0", 1)
        await queue.has(("k0", 1, 0))
        (letter,) = await queue.letters(1)
        assert (letter.message.value, letter.left_out) == (value, "")


async def test_the_letter_of_a_message_that_was_compressed_has_its_value(kafka: Kafka, opened: Opened) -> None:
    topic, value = next_topic(), NOISE[:1000] * 4000
    await asyncio.to_thread(make_topic, kafka, topic, 1, {"max.message.bytes": str(LIMIT)})
    async with opened(topic) as queue, queue.consumed():
        assert await asyncio.to_thread(append, kafka, topic, value, (), "gzip")
        (letter,) = await queue.letters(1)
        assert (letter.message.value, letter.left_out) == (value, "")


async def test_a_letter_that_its_topic_does_not_take_is_kept_without_the_value(kafka: Kafka, opened: Opened) -> None:
    """The topic of the dead letters was made by an operator, with too low a limit. The row goes on all the same."""
    topic = next_topic()
    await asyncio.to_thread(make_topic, kafka, topic, 1)
    await asyncio.to_thread(make_topic, kafka, f"{topic}.dead", 1, {"max.message.bytes": "10000"})
    # max.message.bytes of a topic that has none of its own.
    brokers_own = 1_048_588
    async with opened(topic) as queue, queue.consumed():
        await queue.append("k0", 1)
        assert await asyncio.to_thread(append, kafka, topic, NOISE[:20_000])
        await queue.append("k0", 2)
        await queue.has(("k0", 1, 0), ("k0", 2, 0))
        (letter,) = await queue.letters(1)
        shown = json.loads((await queue.run("dead", "show", queue.name, letter.id)).output)
        assert (shown["resource"], shown["body"], shown["left_out"]) == ("orders/k0", None, "value")
        assert ["method", "PATCH"] in shown["headers"]
        assert f"has no value of the message, which is at offset 1 of partition 0 of {topic})" in shown["reason"]
        retried = await queue.run("dead", "retry", queue.name, letter.id)
        assert retried.exit_code == 1
        assert f"{letter.id} orders/k0: its message was too large, and the letter has no value of it" in retried.output
        assert f"The message is at offset 1 of partition 0 of {queue.name}" in retried.output
        assert [each.id for each in await queue.letters(1)] == [letter.id]
        dropped = await queue.run("dead", "drop", queue.name, letter.id)
        assert (dropped.exit_code, await queue.log.dead.count()) == (0, {})
        advice = "\n".join(await queue.log.advice())
        assert f"max.message.bytes of topic {topic}.dead is 10000" in advice
        assert f"set it to {brokers_own + 65_536}." in advice


async def test_a_letter_is_kept_without_headers_that_are_too_large(kafka: Kafka, opened: Opened) -> None:
    topic = next_topic()
    await asyncio.to_thread(make_topic, kafka, topic, 1)
    await asyncio.to_thread(make_topic, kafka, f"{topic}.dead", 1, {"max.message.bytes": "10000"})
    async with opened(topic) as queue, queue.consumed():
        assert await asyncio.to_thread(append, kafka, topic, b"no JSON", [("trace", NOISE[:20_000])])
        await queue.append("k0", 1)
        await queue.has(("k0", 1, 0))
        (letter,) = await queue.letters(1)
        assert (letter.message.key, letter.message.value, letter.message.headers) == (b"orders/k0", None, ())
        assert letter.left_out == "value and headers"
        assert (
            f"has no value and no headers of the message, which is at offset 0 of partition 0 of {topic}"
            in letter.reason
        )
        assert (await queue.run("dead", "retry", queue.name, "--all")).exit_code == 1


@pytest.mark.parametrize("times", ["CreateTime", "LogAppendTime"])
async def test_advice_is_on_the_times_of_producers_and_on_no_topic_that_is_not_there(
    kafka: Kafka, opened: Opened, times: str
) -> None:
    topic = next_topic()
    await asyncio.to_thread(make_topic, kafka, topic, 1, {"message.timestamp.type": times})
    async with opened(topic) as queue:
        advice = "\n".join(await queue.log.advice())
    assert "dead" not in advice
    assert ("message.timestamp.type" in advice) == (times == "CreateTime")


@pytest.mark.parametrize(
    ("setting", "value", "named"),
    [
        ("cleanup.policy", "compact", "is compacted: earlier writes of a resource are deleted before they are applied"),
        ("retention.ms", "1000", "is 1000: writes that wait longer, as for a database that is away, are deleted"),
        ("retention.bytes", "5000", "is 5000: under load writes are deleted before they are applied"),
        ("unclean.leader.election.enable", "true", "is true: a replica that is behind may become the leader"),
    ],
)
async def test_advice_is_on_what_a_topic_may_lose(
    kafka: Kafka, opened: Opened, setting: str, value: str, named: str
) -> None:
    topic = next_topic()
    await asyncio.to_thread(make_topic, kafka, topic, 1, {"retention.ms": "-1", setting: value})
    async with opened(topic) as queue:
        replicas, other = await queue.log.advice()
    assert f"Topic {topic} has 1 replica: a write that was acknowledged is lost with that broker" in replicas
    assert named in other
