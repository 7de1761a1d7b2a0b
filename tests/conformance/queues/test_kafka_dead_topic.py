"""Reading a large topic of dead letters: as long as records come, and from where a call that failed had got to."""

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka import Message as KafkaMessage
from tests.conformance.queues.kafka_bench import make_topic, next_topic

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
        """Give the time."""
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

    async def some() -> bool:
        return len(dead.places) == BEFORE_IT_STOPS

    await eventually(some, what="the first letters")
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
