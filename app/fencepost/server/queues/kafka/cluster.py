"""Asks Kafka what the topic is now: its id, its ends and leader epochs, what its group has committed, its settings."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, TopicDescription
from confluent_kafka.admin import ListOffsetsResultInfo as Ends
from confluent_kafka.cimpl import NewTopic

from fencepost.server.queues.kafka.errors import NO_TOPIC, BrokerErrors, kafka_error, made, place, unavailable
from fencepost.server.queues.kafka.labels import label_of
from fencepost.server.queues.kafka.letters import MORE_THAN_ITS_MESSAGE
from fencepost.server.queues.kafka.oldest import OldestMessages
from fencepost.server.queues.kafka.url import KafkaSettings
from fencepost.server.queues.log import LogState, LogUnavailableError

_ANSWERS_WITHIN_S: Final = 5.0
_MADE_WITHIN_S: Final = 15.0
_SETTLES_WITHIN_S: Final = 3.0
_AGAIN_S: Final = 0.05
LOG_APPEND_TIME: Final = "LogAppendTime"
"""The value of message.timestamp.type by which the broker says when a message came."""
_MOST_BYTES: Final = 2**31 - 1
_MOVING: Final = frozenset(
    {
        *(KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.FENCED_LEADER_EPOCH),
        *(KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE),
        # A partition that was just added is not everywhere at once.
        *(KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.UNKNOWN_TOPIC_OR_PART),
    }
)

Answer = TypeVar("Answer")


def largest_letter(topic: Mapping[str, str]) -> int:
    """Give the size of the largest dead letter that a message of a topic with these settings may become."""
    return min(int(topic["max.message.bytes"]) + MORE_THAN_ITS_MESSAGE, _MOST_BYTES)


class Cluster:
    """A client that asks about one topic and its group."""

    def __init__(self, settings: KafkaSettings, brokers: BrokerErrors) -> None:
        self._settings, self._brokers = settings, brokers
        self._client: AdminClient | None = None
        self._reader: Consumer | None = None
        self._oldest = OldestMessages(settings)

    def open(self) -> None:
        """Get ready, without a connection. Raises LogConfigError."""
        self._client = made(self._settings, AdminClient, self._settings.of_admin(), error_cb=self._brokers.note)

    async def close(self) -> None:
        """Let the clients go: their connections end with them."""
        await self._oldest.close()
        self._client = None
        reader, self._reader = self._reader, None
        if reader is not None:
            await asyncio.to_thread(reader.close)

    async def state(self) -> LogState:
        """Ask for the topic's id, ends and leader epochs. A topic that is not there is unavailable: a broker that just
        started may say so of one that is, and when it is made again it has another id.
        """
        return await self._settled(self._state)

    async def _state(self) -> LogState:
        described = await self._described()
        ends = await self._offsets(described, OffsetSpec.latest())
        return LogState(
            str(described.topic_id), tuple(each.offset for each in ends), tuple(each.leader_epoch for each in ends)
        )

    async def _starts(self) -> list[int]:
        return [each.offset for each in await self._offsets(await self._described(), OffsetSpec.earliest())]

    async def _offsets(self, described: TopicDescription, which: OffsetSpec) -> list[Ends]:
        count = len(described.partitions)
        asked = {TopicPartition(self._settings.topic, each): which for each in range(count)}
        answers = await self._ask_each(self._the_client.list_offsets(asked, request_timeout=_ANSWERS_WITHIN_S))
        found: dict[int, Ends] = {partition.partition: each for partition, each in answers.items()}
        return [found[each] for each in range(count)]

    async def decided(self) -> list[int]:
        """Ask what the group has committed, by partition; 0 where it has nothing, or what it has is of a topic of this
        name that was deleted.
        """
        return await self._settled(self._decided)

    async def _decided(self) -> list[int]:
        topic = self._settings.topic
        described = await self._described()
        count = len(described.partitions)
        asked = [TopicPartition(topic, each) for each in range(count)]
        found = await asyncio.to_thread(self._the_reader.committed, asked, timeout=_ANSWERS_WITHIN_S)
        for each in found:
            if each.error is not None:
                raise KafkaException(each.error)
        committed = {
            each.partition: each.offset
            for each in found
            if (label := label_of(each)) is None or label.topic_id == str(described.topic_id)
        }
        return [max(0, committed.get(each, 0)) for each in range(count)]

    async def oldest(self) -> list[float | None]:
        """Read, by partition, when the first message was appended that the group has not committed. None where there is
        none, also where all that it has not committed was deleted.
        """
        decided, state, starts = await asyncio.gather(self.decided(), self.state(), self._settled(self._starts))
        first = [max(below, start) for below, start in zip(decided, starts, strict=False)]
        waiting = {each: at for each, (at, end) in enumerate(zip(first, state.ends, strict=False)) if at < end}
        times = await self._oldest.times(state.incarnation, waiting)
        return [times.get(each) for each in range(state.partitions)]

    async def described(self) -> TopicDescription:
        """Ask for the topic's id, partitions and replicas."""
        return await self._settled(self._described)

    async def _described(self) -> TopicDescription:
        topic = self._settings.topic
        asked = TopicCollection([topic])
        answers = self._the_client.describe_topics(asked, request_timeout=_ANSWERS_WITHIN_S)
        return await self._ask(answers[topic])

    async def settings_of(self, topic: str) -> Mapping[str, str]:
        return await self._settled(functools.partial(self._settings_of, topic))

    async def _settings_of(self, topic: str) -> Mapping[str, str]:
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        answers = self._the_client.describe_configs([resource], request_timeout=_ANSWERS_WITHIN_S)
        found = await self._ask(answers[resource])
        return {each: entry.value for each, entry in found.items() if entry.value is not None}

    async def make_dead_topic(self) -> None:
        """Make the topic of the dead letters, compacted, with as many replicas as the log; it may be there already."""
        described = await self.described()
        replicas = min(len(each.replicas) for each in described.partitions)
        topic = await self.settings_of(self._settings.topic)
        config = {
            "cleanup.policy": "compact",
            "message.timestamp.type": LOG_APPEND_TIME,
            "min.insync.replicas": topic.get("min.insync.replicas", "1"),
            "max.message.bytes": str(largest_letter(topic)),
        }
        name = self._settings.dead_topic
        asked = self._the_client.create_topics([NewTopic(name, 1, replicas, config=config)])
        try:
            await asyncio.wait_for(asyncio.wrap_future(asked[name]), _MADE_WITHIN_S)
        except KafkaException as error:
            if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
                raise self._unavailable(error) from None
        except TimeoutError:
            raise LogUnavailableError(f"{place(self._settings)}: {name} could not be made in time") from None

    async def largest_of_dead_topic(self) -> int | None:
        """Ask how many bytes a record of the dead letters may have; None where their topic is not there."""
        try:
            found = await self._settings_of(self._settings.dead_topic)
        except KafkaException as error:
            if kafka_error(error).code() in NO_TOPIC:
                return None
            raise self._unavailable(error) from None
        return int(found["max.message.bytes"])

    @property
    def _the_client(self) -> AdminClient:
        if self._client is None:
            raise LogUnavailableError(f"{place(self._settings)} is not open")
        return self._client

    @property
    def _the_reader(self) -> Consumer:
        """A client of the group that never joins it. The admin client could ask, too; but librdkafka was seen to end
        the process when a broker died meanwhile (confluentinc/librdkafka, issue 4605).
        """
        if self._client is None:
            raise LogUnavailableError(f"{place(self._settings)} is not open")
        if self._reader is None:
            self._reader = made(self._settings, Consumer, self._settings.of_group())
        return self._reader

    async def _settled(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """Ask again for some seconds where a leader or a coordinator has just changed: the client learns of the new one
        from the error. Raises LogUnavailableError.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + _SETTLES_WITHIN_S
        while True:
            try:
                return await ask()
            except KafkaException as error:
                if kafka_error(error).code() not in _MOVING or loop.time() > until:
                    raise self._unavailable(error) from None
            await asyncio.sleep(_AGAIN_S)

    def _unavailable(self, error: KafkaException) -> LogUnavailableError:
        self._the_client.poll(0)  # lets it call error_cb
        return unavailable(self._settings, error, self._brokers)

    async def _ask_each(self, asked: Mapping[Any, Future[Answer]]) -> dict[Any, Answer]:
        answers = await asyncio.gather(*(self._ask(each) for each in asked.values()))
        return dict(zip(asked, answers, strict=True))

    async def _ask(self, asked: Future[Answer]) -> Answer:
        try:
            return await asyncio.wait_for(asyncio.wrap_future(asked), _ANSWERS_WITHIN_S + 1)
        except TimeoutError:
            raise LogUnavailableError(f"{place(self._settings)}: no answer in {_ANSWERS_WITHIN_S:g} s") from None
