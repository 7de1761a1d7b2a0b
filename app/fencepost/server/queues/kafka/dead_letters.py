"""The dead letters of a topic: `<topic>.dead`, compacted, the id of a write its key.

A record without a value removes the letter of its key. The topic is made, with as many replicas as the log has, when
the first letter is put. What a letter consists of is in letters.py.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from confluent_kafka import KafkaException

from fencepost.server.queues.kafka.dead_topic import DeadTopic
from fencepost.server.queues.kafka.errors import LOGGER, BrokerErrors, TooLargeError, place, unavailable
from fencepost.server.queues.kafka.letters import LEAVES_OUT, letter_from, record_of
from fencepost.server.queues.kafka.producer import TopicAppender
from fencepost.server.queues.kafka.url import KafkaSettings
from fencepost.server.queues.log import DeadLetter, LogUnavailableError, Message

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
        """Remove one; whether it was there."""
        if not await self._call(lambda: letter_id in self._topic.places):
            return False
        await self._append(Message(letter_id.encode(), None))
        return True

    async def count(self) -> dict[int, int]:
        """Count those that are there, by the partition of their messages."""
        return await self._call(lambda: {each: count for each, count in self._topic.counts.items() if count})

    async def _append(self, record: Message) -> None:
        if not self._appends and not self._closed:
            self._appender.open()
            self._appends = True
        await self._appender.append(self._settings.dead_topic, record)

    async def _call(self, answer: Callable[[], Result]) -> Result:
        """Read the topic to its end, and answer, in the thread."""

        def call() -> Result:
            try:
                self._topic.catch_up()
                return answer()
            except KafkaException as error:
                raise unavailable(self._settings, error) from None

        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def _letters(self, ids: Sequence[str]) -> Sequence[DeadLetter]:
        return [letter_from(record) for record in self._topic.read(ids)]
