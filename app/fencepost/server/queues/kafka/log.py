"""A topic of Kafka as a log of writes: one producer, one client that asks, and a member of its group each who takes."""

from collections.abc import Callable, Sequence

from fencepost.server.queues.kafka.advice import advice
from fencepost.server.queues.kafka.cluster import Cluster
from fencepost.server.queues.kafka.consumer import KafkaConsumer
from fencepost.server.queues.kafka.dead_letters import KafkaDeadLetters
from fencepost.server.queues.kafka.errors import BrokerErrors
from fencepost.server.queues.kafka.producer import TopicAppender
from fencepost.server.queues.kafka.url import KafkaSettings, read_url
from fencepost.server.queues.log import LogState, Message, Position


class KafkaLog:
    """The log that a URL names. The topic is an operator's to make; that of the dead letters makes itself."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._brokers = BrokerErrors()
        self._cluster = Cluster(settings, self._brokers)
        self._appender = TopicAppender(settings, self._brokers)
        self._dead = KafkaDeadLetters(settings, self._brokers, self._cluster.make_dead_topic)

    @property
    def dead(self) -> KafkaDeadLetters:
        return self._dead

    async def open(self) -> None:
        """Get ready. Raises LogConfigError for properties that librdkafka does not take."""
        self._cluster.open()
        self._appender.open()

    async def close(self) -> None:
        """Wait for appends that are under way, ten seconds at most, and close connections."""
        await self._appender.close()
        await self._dead.close()
        await self._cluster.close()

    async def append(self, message: Message) -> Position:
        """Append a message to the partition of its key."""
        return await self._appender.append(self._settings.topic, message)

    async def state(self) -> LogState:
        return await self._cluster.state()

    async def decided(self) -> Sequence[int]:
        """Ask what the group has committed."""
        return await self._cluster.decided()

    async def oldest(self) -> Sequence[float | None]:
        """Read when the first messages were appended that the group has not committed."""
        return await self._cluster.oldest()

    async def waiting(self, position: Position) -> None:
        """Nothing can be said: a topic is read by a consumer only, and what is decided stays in it."""

    def consumer(self, member: str, lost: Callable[[frozenset[int]], None]) -> KafkaConsumer:
        """Make a member of the topic's group. It joins at its first `take`."""
        return KafkaConsumer(self._settings, self._brokers, member, lost)

    async def advice(self) -> list[str]:
        """List what in the settings of the topic may lose messages."""
        return await advice(self._cluster, self._settings)


def from_url(url: str) -> KafkaLog:
    """Make the log of a URL. Raises LogConfigError."""
    return KafkaLog(read_url(url))
