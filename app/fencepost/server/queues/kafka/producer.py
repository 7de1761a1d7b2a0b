"""Appends messages: librdkafka batches and sends them; one thread here waits for the acknowledgements.

That thread hands over all acknowledgements that came together with one wake-up of the event loop.
"""

import asyncio
import functools
import threading
from collections import deque
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as KafkaMessage

from fencepost.server.queues.kafka.errors import LOGGER, BrokerErrors, kafka_error, made, not_appended, place
from fencepost.server.queues.kafka.url import KafkaSettings
from fencepost.server.queues.log import LogUnavailableError, Message, Position

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
