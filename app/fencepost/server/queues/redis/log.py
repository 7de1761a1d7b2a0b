"""A queue in Redis: appending, and what it is now. Taking is in consumer.py, what is in the server in scripts.py."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fencepost.server.locks.source_url import SourceUrl
from fencepost.server.queues.log import LogChangedError, LogState, LogUnavailableError, Message, Position, Received
from fencepost.server.queues.partitioner import partition_of
from fencepost.server.queues.redis.advice import advice
from fencepost.server.queues.redis.consumer import CLAIM_EVERY, RedisConsumer
from fencepost.server.queues.redis.dead import RedisDeadLetters
from fencepost.server.queues.redis.entry import fields_of, read_entry, seconds_of
from fencepost.server.queues.redis.layout import Layouts, QueueLayout
from fencepost.server.queues.redis.scripts import APPEND, DECIDED, OLDEST, STATE, Script
from fencepost.server.queues.redis.server import RedisServer
from fencepost.server.queues.redis.url import PREFIX, QueueKeys, read_url

_LOOKS = 3
"""How often the queue may be another one each time it is looked at, before that is an error."""


def from_url(url: str) -> "RedisLog":
    """Make the log that a redis:// or rediss:// URL describes. Raises LogConfigError."""
    return RedisLog(read_url(url))


class RedisLog:
    """A log (queues/log.py) in Redis Streams. Its queue is called `redis:<stream>`."""

    def __init__(self, where: SourceUrl) -> None:
        stream = where.path.removeprefix("/")
        self.name = f"redis:{stream}"
        self._where = where
        self._keys = QueueKeys(where[PREFIX], stream)
        self._server = RedisServer(where)
        self._layouts = Layouts(where, self._server, self._keys)
        self._ends: dict[int, int] = {}
        """By partition, the highest sequence that was seen by this process, of the layout `_ends_of`."""
        self._ends_of: QueueLayout | None = None
        self._dead = RedisDeadLetters(self._server, self._keys)

    @property
    def dead(self) -> RedisDeadLetters:
        return self._dead

    async def open(self) -> None:
        """Nothing to do: connections are made when they are needed, and the queue when it is first used."""

    async def close(self) -> None:
        await self._server.close()

    async def append(self, message: Message) -> Position:
        """Append a message. The script compares the stream with what this process has seen of it: a server that lost
        messages which it had acknowledged takes no more of them as the same queue.
        """
        layout = await self._layouts.get()
        partition = partition_of(message.key, layout.partitions)
        known, successor = self._end(layout, partition), QueueLayout.new(layout.partitions).text
        stream = self._keys.stream(partition)
        answer = await self._server.run(
            APPEND,
            (self._keys.queue, stream, self._keys.done),
            *(layout.text, known, successor, partition),
            *fields_of(message),
            about=f"a message to {stream}",
            durable=True,
        )
        if isinstance(answer, int):
            self._saw(layout, partition, answer)
            return Position(partition, answer - 1)
        self._layouts.forget(layout)
        if answer == successor.encode():
            raise LogUnavailableError(
                f"{self._server.name} has lost messages of {stream} that it had acknowledged: it had come to offset "
                f"{known - 1}, and went on at or below it. Nothing was appended; the queue has a new incarnation"
            )
        raise LogUnavailableError(
            f"{self._server.name} has another queue as {self._keys.queue} than before: appended nothing"
        )

    async def state(self) -> LogState:
        """Ask what the queue is now. One that is not there has nothing, and no incarnation yet; where this process has
        appended or taken, it is made anew: then it is another incarnation.
        """
        layout, ends = await self._look(STATE, "where it ends", 0)
        for partition, end in enumerate(ends):
            if end < 0:
                raise LogChangedError(
                    f"{self._keys.stream(partition)} has entries that were not added as 0-*: their time would be the "
                    "token. The stream has to be deleted, and the source raised"
                )
            self._saw(layout, partition, end)
        return LogState(layout.incarnation, tuple(ends))

    async def decided(self) -> Sequence[int]:
        """Ask, by partition, for the offset of the oldest message that is there, or else of the next one."""
        _, firsts = await self._look(DECIDED, "what is decided", 1)
        return [max(first - 1, 0) for first in firsts]

    async def oldest(self) -> Sequence[float | None]:
        """Ask, by partition, when the oldest message that is there was added."""
        _, times = await self._look(OLDEST, "what waits", b"")
        return [seconds_of(each) or None for each in times]

    async def waiting(self, position: Position) -> Sequence[Received]:
        """Read the entry of a position, if it is there: what is decided is deleted."""
        layout = await self._layouts.seen()
        if layout is None:
            return []
        stream, entry_id = self._keys.stream(position.partition), f"0-{position.offset + 1}"
        entries: list[Any] = await self._server.command(
            "XRANGE", stream, entry_id, entry_id, about=f"a message of {self._keys.queue}"
        )
        return [read_entry(each, position.partition, stream, layout) for each in entries]

    def consumer(
        self, member: str, lost: Callable[[frozenset[int]], None], claim_every: float = CLAIM_EVERY
    ) -> RedisConsumer:
        return RedisConsumer(self._server, self._keys, self._layouts, member, lost, claim_every)

    async def advice(self) -> list[str]:
        """See redis/advice.py."""
        return await advice(self._server, self._where, await self._layouts.seen() or self._layouts.none_yet, self._keys)

    async def _look(self, script: Script, about: str, nothing: object) -> tuple[QueueLayout, list[Any]]:
        """Run a script that gives a value for each partition, on the queue as it is now. `nothing`: the value where
        there is no queue.
        """
        for _ in range(_LOOKS):
            layout = await self._layouts.seen()
            if layout is None:
                none_yet = self._layouts.none_yet
                return replace(none_yet, incarnation=""), [nothing] * none_yet.partitions
            streams = [self._keys.stream(partition) for partition in range(layout.partitions)]
            answer: list[Any] = await self._server.run(
                script, (self._keys.queue, *streams), layout.text, about=f"{about} ({self._keys.queue})"
            )
            if answer and answer[0] == layout.text.encode():
                return layout, answer[1:]
            self._layouts.forget(layout)
        raise LogUnavailableError(f"{self._server.name} has another queue as {self._keys.queue} each time it is asked")

    def _end(self, layout: QueueLayout, partition: int) -> int:
        return self._ends.get(partition, 0) if self._ends_of == layout else 0

    def _saw(self, layout: QueueLayout, partition: int, end: int) -> None:
        """Remember how far a partition has come."""
        if self._ends_of != layout:
            self._ends, self._ends_of = {}, layout
        self._ends[partition] = max(self._ends.get(partition, 0), end)
