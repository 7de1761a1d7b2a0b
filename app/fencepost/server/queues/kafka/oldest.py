"""Finds when the first message that is not decided was appended. Kafka tells the time of a message only with the
message, so each is read, once for as long as it is the first of its partition.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from confluent_kafka import KafkaException

from fencepost.server.queues.kafka.epochs import Epochs, Written
from fencepost.server.queues.kafka.errors import unavailable
from fencepost.server.queues.kafka.url import KafkaSettings

_Read = dict[int, Written | None]
_NOTHING: Final = (-1, None)


class OldestMessages:
    """Of one topic. A read that was given up by who asked goes on, and serves the next one who asks."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._topic_id = ""
        self._known: dict[int, tuple[int, float | None]] = {}
        """By partition, the offset from which was read, and the time that was found."""
        self._reading: asyncio.Task[None] | None = None

    async def times(self, topic_id: str, offsets: Mapping[int, int]) -> dict[int, float | None]:
        """Give, by partition, when the message at this offset was appended, or the next one where there is none at it.
        None: not known. Raises LogUnavailableError.
        """
        if topic_id != self._topic_id:
            self._topic_id, self._known = topic_id, {}
        while unread := {each: at for each, at in offsets.items() if self._known.get(each, _NOTHING)[0] != at}:
            if self._reading is None:
                self._reading = asyncio.create_task(self._read(unread))
                self._reading.add_done_callback(self._over)
            await asyncio.shield(self._reading)
        return {each: self._known[each][1] for each in offsets}

    async def close(self) -> None:
        """Wait for a read that is under way: it ends within seconds."""
        if self._reading is not None:
            await asyncio.wait([self._reading])

    async def _read(self, offsets: dict[int, int]) -> None:
        try:
            found = await asyncio.to_thread(self._read_at, offsets)
        except KafkaException as error:
            raise unavailable(self._settings, error) from None
        self._known |= {each: (at, written.at if (written := found[each]) else None) for each, at in offsets.items()}

    def _read_at(self, offsets: dict[int, int]) -> _Read:
        with Epochs(self._settings) as messages:
            return messages.at(offsets)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._reading = None
        if not task.cancelled():
            task.exception()  # who asked has it; nobody may have waited for it
