"""Kafka's cluster as the gateway asks it: topics, groups, what is appended; and the topic of dead letters."""

import asyncio
import functools
import threading
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka import Message as KafkaMessage
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, TopicDescription
from confluent_kafka.admin import ListOffsetsResultInfo as Ends
from confluent_kafka.cimpl import NewTopic

from fencepost.server.queues.kafka_settings import (
    LEAVES_OUT,
    LOGGER,
    MORE_THAN_ITS_MESSAGE,
    NO_TOPIC,
    BrokerErrors,
    KafkaSettings,
    OldestMessages,
    TooLargeError,
    kafka_error,
    label_of,
    letter_from,
    made,
    not_appended,
    place,
    place_of,
    record_of,
    unavailable,
)
from fencepost.server.queues.log import DeadLetter, LogState, LogUnavailableError, Message, Position
from fencepost.server.queues.message import MalformedWriteIdError, parse_write_id

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
    """Asks what one topic is now: its id, its ends and leader epochs, what its group has committed, its settings."""

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


# Appends messages: librdkafka batches and sends them; one thread here waits for the acknowledgements.
#
# That thread hands over all acknowledgements that came together with one wake-up of the event loop.

_POLL_S: Final = 0.2
_FLUSH_S: Final = 10.0

Acknowledged = asyncio.Future[Position]


class TopicAppender:
    """One idempotent producer, for one event loop. After a fatal error of librdkafka it makes itself a new one."""

    def __init__(self, settings: KafkaSettings, brokers: BrokerErrors) -> None:
        self._settings, self._brokers = settings, brokers
        self._producer: Producer | None = None
        self._thread: threading.Thread | None = None
        self._ends = threading.Event()
        self._reports: deque[tuple[Acknowledged, KafkaError | None, int, int]] = deque()
        self._woken = False

    def open(self) -> None:
        """Start, without a connection. Raises LogConfigError."""
        self._producer = self._made()
        self._start(self._producer)

    def _made(self) -> Producer:
        return made(self._settings, Producer, self._settings.of_producer(), error_cb=self._brokers.note)

    def _start(self, producer: Producer) -> None:
        self._ends = threading.Event()
        arguments = (producer, self._ends)
        self._thread = threading.Thread(target=_wait_for_reports, args=arguments, name="kafka-appends", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await asyncio.to_thread(self._end, producer, _FLUSH_S)
            self._hand_over()

    def _end(self, producer: Producer, flush_s: float) -> None:
        if producer.flush(flush_s):
            producer.purge()
            producer.flush(1)
        self._ends.set()
        if self._thread is not None:
            self._thread.join()

    async def append(self, topic: str, message: Message) -> Position:
        """Append a message to the partition of its key. Raises LogUnavailableError, LogUnknownError, LogConfigError."""
        if self._producer is None:
            raise LogUnavailableError(f"{place(self._settings)} is not open")
        acknowledged: Acknowledged = asyncio.get_running_loop().create_future()
        headers: list[tuple[str, str | bytes | None]] = [*message.headers]
        try:
            self._producer.produce(
                topic,
                message.value,
                message.key,
                headers=headers,
                on_delivery=functools.partial(self._reported, acknowledged),
            )
        except BufferError:
            raise LogUnavailableError(f"{place(self._settings)}: too many messages wait for Kafka") from None
        except KafkaException as error:
            found = kafka_error(error)
            if found.code() == KafkaError._FATAL:  # noqa: SLF001 - so librdkafka's own codes are named
                await self._replace(self._producer)
            raise not_appended(self._settings, found, self._brokers) from None
        return await acknowledged

    async def _replace(self, broken: Producer) -> None:
        """Make a new producer in the place of one that had a fatal error, once that has reported all its messages."""
        if self._producer is broken:
            self._producer = None
            await asyncio.to_thread(self._end, broken, 0)
            self._hand_over()
            self._producer = self._made()
            self._start(self._producer)

    def _reported(self, acknowledged: Acknowledged, error: KafkaError | None, message: KafkaMessage) -> None:
        """Note an acknowledgement, in the thread; the loop is woken unless it is on its way."""
        partition, offset = message.partition(), message.offset()
        self._reports.append(
            (acknowledged, error, -1 if partition is None else partition, -1 if offset is None else offset)
        )
        if not self._woken:
            self._woken = True
            acknowledged.get_loop().call_soon_threadsafe(self._hand_over)

    def _hand_over(self) -> None:
        self._woken = False  # before the deque is emptied: what is added later wakes the loop again
        while self._reports:
            acknowledged, error, partition, offset = self._reports.popleft()
            if acknowledged.done():  # the task that asked was cancelled
                continue
            if error is not None:
                acknowledged.set_exception(not_appended(self._settings, error, self._brokers))
            else:
                acknowledged.set_result(Position(partition, offset))


def _wait_for_reports(producer: Producer, ends: threading.Event) -> None:
    while not ends.is_set():
        try:
            producer.poll(_POLL_S)
        except KafkaException as error:
            # A fatal error, which librdkafka has logged. Acknowledgements still come; the next append finds it.
            LOGGER.warning("a producer is replaced: %s", kafka_error(error).name())


# Reads the topic of the dead letters, from its beginning to its end, and keeps in memory the ids and where they are.
#
# It may be large: how far it was read is kept when a call fails, and the next one goes on from there. A call fails
# when nothing comes for some seconds, however long all of it takes.
#
# Its calls of librdkafka wait: they are for a thread.

SILENT_S: Final = 10.0
"""A read fails after so many seconds without a record."""
_LOOKS_EVERY_S: Final = 0.2
_AT_ONCE: Final = 1000


class DeadTopic:
    """The ids that are there, oldest first, each with the partition and offset of its letter."""

    def __init__(self, settings: KafkaSettings, silent_s: float = SILENT_S) -> None:
        self._settings, self._silent_s = settings, silent_s
        self._client: Consumer | None = None
        self._stopped = threading.Event()
        self.places: dict[str, tuple[int, int]] = {}
        self.counts: Counter[int] = Counter()
        """How many are there, by the partition of their messages; -1: of keys that are no ids of writes."""
        self.read_to: dict[int, int] = {}
        """By partition, the offset below which all was read."""

    def catch_up(self) -> None:
        """Read to the end. Raises KafkaException, LogUnavailableError."""
        ends = self._ends(self._made())
        if any(self.read_to.get(each, 0) > end for each, end in ends.items()):  # the topic was made again
            self.places, self.counts, self.read_to = {}, Counter(), {}
        behind = {each: end for each, end in ends.items() if self.read_to.get(each, 0) < end}
        for record in self._records({each: self.read_to.get(each, 0) for each in behind}, behind):
            self._note(record)
        self.read_to.update(behind)

    def _note(self, record: KafkaMessage) -> None:
        key, where = (record.key() or b"").decode(errors="replace"), place_of(record)
        before = len(self.places)
        if record.value() is None:
            self.places.pop(key, None)
        else:
            self.places[key] = (where.partition, where.offset)
        self.counts[_partition_of(key)] += len(self.places) - before
        self.read_to[where.partition] = where.offset + 1

    def _made(self) -> Consumer:
        if self._client is None:
            self._client = made(self._settings, Consumer, self._settings.of_reader())
        return self._client

    def _ends(self, client: Consumer) -> dict[int, int]:
        """Ask where the topic's partitions end; none where it is not there."""
        topic = self._settings.dead_topic
        found = client.list_topics(topic, timeout=_ANSWERS_WITHIN_S).topics[topic]
        if found.error is not None:
            if found.error.code() in NO_TOPIC:
                return {}
            raise KafkaException(found.error)
        return {
            each: client.get_watermark_offsets(TopicPartition(topic, each), timeout=_ANSWERS_WITHIN_S, cached=False)[1]
            for each in found.partitions
        }

    def _records(self, begins: dict[int, int], ends: dict[int, int]) -> Iterator[KafkaMessage]:
        """Read these partitions from where they begin to before their ends, record by record."""
        if not begins:
            return
        client, topic = self._made(), self._settings.dead_topic
        client.assign([TopicPartition(topic, each, begin) for each, begin in begins.items()])
        open_, heard = set(begins), self.now()
        try:
            while open_:
                self._may_go_on(heard)
                first = client.poll(_LOOKS_EVERY_S)
                for record in () if first is None else (first, *client.consume(_AT_ONCE, 0)):
                    partition, offset, error = record.partition(), record.offset() or 0, record.error()
                    if partition is None or partition not in open_:
                        continue
                    if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's own
                        raise KafkaException(error)
                    heard = self.now()
                    if error is None and offset < ends[partition]:
                        yield record
                    if error is not None or offset + 1 >= ends[partition]:
                        open_.discard(partition)
        finally:
            client.unassign()

    def now(self) -> float:
        """Give the time by which silence is measured; seconds."""
        return time.monotonic()

    def _may_go_on(self, heard: float) -> None:
        """Raise LogUnavailableError where no record came since `heard`, for too long."""
        if self._stopped.is_set():
            raise LogUnavailableError(f"{place(self._settings)} is not open")
        if self.now() - heard > self._silent_s:
            raise LogUnavailableError(
                f"{place(self._settings)}: nothing came of {self._settings.dead_topic} for {self._silent_s:g} s, and it"
                " is not read to its end"
            )

    def read(self, ids: Sequence[str]) -> list[KafkaMessage]:
        """Read the records of these ids, in their order. Raises KafkaException, LogUnavailableError."""
        wanted = [self.places[each] for each in ids]
        begins: dict[int, int] = {}
        ends: dict[int, int] = {}
        for partition, offset in wanted:
            begins[partition] = min(offset, begins.get(partition, offset))
            ends[partition] = max(offset + 1, ends.get(partition, 0))
        chosen = set(wanted)
        found = ((place_of(each), each) for each in self._records(begins, ends))
        records = {here: each for where, each in found if (here := (where.partition, where.offset)) in chosen}
        return [records[where] for where in wanted if where in records]

    def stop(self) -> None:
        """Have a read that runs in another thread end with LogUnavailableError."""
        self._stopped.set()

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def _partition_of(letter_id: str) -> int:
    try:
        return parse_write_id(letter_id).position.partition
    except MalformedWriteIdError:
        return -1


# The dead letters of a topic: `<topic>.dead`, compacted, the id of a write its key.
#
# A record without a value removes the letter of its key. The topic is made, with as many replicas as the log has, when
# the first letter is put. What a letter consists of is in kafka_settings.py.

Result = TypeVar("Result")


class KafkaDeadLetters:
    """Reads the topic to its end before each answer. Appends by a producer of its own, which takes larger records."""

    def __init__(
        self, settings: KafkaSettings, brokers: BrokerErrors, make_topic: Callable[[], Awaitable[None]]
    ) -> None:
        self._settings, self._make_topic = settings, make_topic
        self._appender = TopicAppender(settings.of_dead_letters(), brokers)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"kafka-{settings.dead_topic}")
        self._appends = self._made = self._closed = False
        self._topic = DeadTopic(settings)  # of the thread

    async def close(self) -> None:
        """Wait for a letter that is being put, and end the thread and its connections. The second time nothing is left
        to do.
        """
        if self._closed:
            return
        self._closed = True
        await self._appender.close()
        self._topic.stop()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._topic.close)
        self._thread.shutdown(wait=False)

    async def put(self, letter: DeadLetter) -> None:
        """Add one, in the place of another of the same id. What is too large for the topic is left out of it."""
        if not self._made:
            await self._make_topic()
            self._made = True
        for left_out in LEAVES_OUT:
            try:
                await self._append(record_of(letter, self._settings, left_out))
            except TooLargeError:
                if left_out == LEAVES_OUT[-1]:
                    raise
                LOGGER.warning("%s: the dead letter %s is too large", place(self._settings), letter.id)
            except LogUnavailableError:
                self._made = False  # it may have been deleted
                raise
            else:
                return

    async def list(self, most: int) -> Sequence[DeadLetter]:
        return await self._call(lambda: self._letters([*self._topic.places][:most]))

    async def get(self, letter_id: str) -> DeadLetter | None:
        found = await self._call(lambda: self._letters([letter_id] if letter_id in self._topic.places else []))
        return found[0] if found else None

    async def drop(self, letter_id: str) -> bool:
        if not await self._call(lambda: letter_id in self._topic.places):
            return False
        await self._append(Message(letter_id.encode(), None))
        return True

    async def count(self) -> dict[int, int]:
        return await self._call(lambda: {each: count for each, count in self._topic.counts.items() if count})

    async def _append(self, record: Message) -> None:
        if not self._appends and not self._closed:
            self._appender.open()
            self._appends = True
        await self._appender.append(self._settings.dead_topic, record)

    async def _call(self, answer: Callable[[], Result]) -> Result:
        def call() -> Result:
            try:
                self._topic.catch_up()
                return answer()
            except KafkaException as error:
                raise unavailable(self._settings, error) from None

        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def _letters(self, ids: Sequence[str]) -> Sequence[DeadLetter]:
        return [letter_from(record) for record in self._topic.read(ids)]
