"""What is committed with a position: the generation of the source under which it was decided, and the id of the topic.

A topic that is made again counts its offsets and its leader epochs from 0, so they do not show that a position was the
one of another topic.
"""

import re
from typing import Final, NamedTuple, Self

from confluent_kafka import TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from fencepost.server.queues.kafka.errors import made, place
from fencepost.server.queues.kafka.url import KafkaSettings
from fencepost.server.queues.log import LogUnavailableError

_ANSWERS_WITHIN_S: Final = 5.0
_LABEL: Final = re.compile(r"generation (\d+) of (\S*)")


class Label(NamedTuple):
    """One of them."""

    generation: int
    topic_id: str

    def __str__(self) -> str:
        return f"generation {self.generation} of {self.topic_id}"

    @classmethod
    def read(cls, text: str | None) -> Self | None:
        """Read a position's metadata; None where it is no label."""
        found = _LABEL.fullmatch(text or "")
        return None if found is None else cls(int(found[1]), found[2])


def label_of(position: TopicPartition) -> Label | None:
    """Read the label of a committed position."""
    return Label.read(position.metadata)


class TopicId:
    """Asks for the topic's id. Its calls wait: they are for a thread."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._client: AdminClient | None = None
        self.last = ""
        """What the last answer was."""

    def ask(self) -> str:
        """Ask for it. Raises KafkaException, LogUnavailableError."""
        if self._client is None:
            self._client = made(self._settings, AdminClient, self._settings.of_admin())
        topic = self._settings.topic
        asked = self._client.describe_topics(TopicCollection([topic]), request_timeout=_ANSWERS_WITHIN_S)
        try:
            self.last = str(asked[topic].result(_ANSWERS_WITHIN_S + 1).topic_id)
        except TimeoutError:
            raise LogUnavailableError(f"{place(self._settings)}: no answer in {_ANSWERS_WITHIN_S:g} s") from None
        return self.last
