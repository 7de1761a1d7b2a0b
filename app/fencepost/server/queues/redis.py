"""A queue in Redis: appending, taking, dead letters, and what the queue is now. In the server: redis_server.py."""

import asyncio
import base64
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import orjson

from fencepost.server.locks.source import SourceUrl
from fencepost.server.queues import redis_server
from fencepost.server.queues.log import (
    TAKEN_BYTES,
    DeadLetter,
    LogChangedError,
    LogError,
    LogState,
    LogUnavailableError,
    Message,
    Position,
    Received,
    namesake,
    partition_of,
)
from fencepost.server.queues.redis_server import Layouts, QueueKeys, QueueLayout, RedisServer, Script, advice, read_url

# An entry of a stream, as a message: its id is `0-<offset + 1>`, its fields `at`, `key`, `value` and `h:<header>`.

_HEADER: Final = b"h:"
_NO_TIME: Final = 1e11
"""Seconds that no clock shows, and PostgreSQL need not keep: the year 5138."""


def fields_of(message: Message) -> list[bytes]:
    """Give the fields of a message and their values in turn, but for `at`: the server's own clock says when."""
    fields = [b"key", message.key]
    if message.value is not None:
        fields += [b"value", message.value]
    for name, value in message.headers:
        fields += [_HEADER + name.encode(), value]
    return fields


def sequence_of(entry_id: bytes, stream: str) -> int:
    """Read an entry's place in its stream, 1 or more. Raises LogChangedError."""
    if not entry_id.startswith(b"0-"):
        raise LogChangedError(
            f"{stream} has the entry {entry_id.decode()}, which was not added as 0-*: its time would be the token. The "
            "stream has to be deleted, and the source raised"
        )
    return int(entry_id[2:])


def read_entry(
    entry: Sequence[Sequence[bytes]] | tuple[bytes, Sequence[bytes]],
    partition: int,
    stream: str,
    handle: object,
) -> Received:
    """Make a message of an entry. What it has no field for is empty; other fields are left out."""
    entry_id, fields = entry
    assert isinstance(entry_id, bytes)  # noqa: S101 - for the type checker
    at, key, value, headers = 0.0, b"", None, []
    for name, content in zip(fields[::2], fields[1::2], strict=True):
        if name.startswith(_HEADER):
            headers.append((name[len(_HEADER) :].decode(errors="replace"), content))
        elif name == b"at":
            at = seconds_of(content)
        elif name == b"key":
            key = content
        elif name == b"value":
            value = content
    position = Position(partition, sequence_of(entry_id, stream) - 1)
    return Received(position, Message(key, value, tuple(headers)), at, None, handle)


def seconds_of(content: bytes) -> float:
    """When a message was appended; 0 where a program that adds entries itself gave something else than a time."""
    try:
        seconds = float(content)
    except ValueError:
        return 0.0
    return seconds if 0 < seconds < _NO_TIME else 0.0  # NaN is neither


# Dead letters in Redis: a hash by the id of the write, a sorted set that has their order, and how many there are of
# each partition.


class RedisDeadLetters:
    """See DeadLetters in queues/log.py."""

    def __init__(self, server: RedisServer, keys: QueueKeys) -> None:
        self._server, self._keys = server, (keys.dead, keys.dead_order, keys.dead_counts)
        self._about = f"the dead letters {keys.dead}"

    async def put(self, letter: DeadLetter) -> None:
        """Add one, as durable as a message; none where one of this id is there."""
        written = _write(letter)
        values = (letter.id, repr(letter.at), written, letter.position.partition)
        await self._server.run(redis_server.PUT_DEAD, self._keys, *values, about=self._about, durable=True)

    async def list(self, most: int) -> Sequence[DeadLetter]:
        if most <= 0:
            return ()
        written = await self._server.run(redis_server.LIST_DEAD, self._keys, most, about=self._about)
        return [self._read(each) for each in written]

    async def get(self, letter_id: str) -> DeadLetter | None:
        written = await self._server.command("HGET", self._keys[0], letter_id, about=self._about)
        return None if written is None else self._read(written)

    async def drop(self, letter_id: str) -> bool:
        return bool(await self._server.run(redis_server.DROP_DEAD, self._keys, letter_id, about=self._about))

    async def count(self) -> dict[int, int]:
        answer: list[bytes] | dict[bytes, bytes] = await self._server.command(
            "HGETALL", self._keys[2], about=self._about
        )
        pairs = answer.items() if isinstance(answer, dict) else zip(answer[::2], answer[1::2], strict=True)
        return {int(partition): int(count) for partition, count in pairs if int(count) > 0}

    def _read(self, written: bytes) -> DeadLetter:
        try:
            return _read(written)
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise LogUnavailableError(
                f"{self._server.name} has something else than a dead letter in {self._keys[0]}: {written[:60]!r}"
            ) from error


def _write(letter: DeadLetter) -> bytes:
    message = letter.message
    return orjson.dumps(
        {
            "id": letter.id,
            "reason": letter.reason,
            "partition": letter.position.partition,
            "offset": letter.position.offset,
            "at": letter.at,
            "key": _text(message.key),
            "value": None if message.value is None else _text(message.value),
            "headers": [[name, _text(value)] for name, value in message.headers],
        }
    )


def _read(written: bytes) -> DeadLetter:
    found = orjson.loads(written)
    value = found["value"]
    message = Message(
        _bytes(found["key"]),
        None if value is None else _bytes(value),
        tuple((name, _bytes(content)) for name, content in found["headers"]),
    )
    position = Position(found["partition"], found["offset"])
    return DeadLetter(found["id"], found["reason"], position, message, float(found["at"]))


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def _bytes(content: str) -> bytes:
    return base64.b64decode(content, validate=True)


# Taking from a queue in Redis: each partition has one owner at a time, who reads its stream in order.
#
# Who owns a partition stands in a key that expires; `take` sets it anew about once a second, and takes partitions that
# no member has, as many as its share of the members that are there. A member that has more than its share reads
# nothing more of the partitions that are too many, and gives each up when all that it took of it is done. One that
# does not come any more loses its partitions when the keys expire, and a new owner begins with everything that is not
# done. What a paused owner has in its hands then is the business of the fence.

TTL_MS: Final = 10_000
"""How long a partition stays with an owner that does not come any more."""
CLAIM_EVERY: Final = 1.0
"""Seconds between two looks at who owns what."""
_AT_ONCE: Final = 1000
"""Messages that one script deletes at most."""


class RedisConsumer:
    """A member of those who take (Consumer in queues/log.py)."""

    def __init__(
        self,
        server: RedisServer,
        keys: QueueKeys,
        layouts: Layouts,
        member: str,
        lost: Callable[[frozenset[int]], None],
        claim_every: float = CLAIM_EVERY,
    ) -> None:
        self._server, self._keys, self._layouts, self._lost = server, keys, layouts, lost
        # The digits: the same member that is started again has another name.
        self._member = member
        self._asker = f"{secrets.token_hex(8)}:{member}"
        self._layout: QueueLayout | None = None
        self._read: dict[int, int] = {}
        """By partition that this member has, the sequence of the last message that it read."""
        self._in_hand: dict[int, set[int]] = {}
        """By partition, the sequences of messages that were taken and are not done."""
        self._to_delete: dict[int, set[int]] = {}
        """By partition, the sequences of messages that are done, and still in the stream."""
        self._giving_up: set[int] = set()
        self._turn = 0
        self._came_at, self._claim_every = float("-inf"), claim_every
        self._has_claimed = False

    @property
    def partitions(self) -> frozenset[int]:
        return frozenset(self._read)

    def begin(self, generation: int) -> None:
        """Nothing to do: their state and each batch show what the streams lost."""

    async def take(self, most: int, wait_s: float) -> Sequence[Received]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        while True:
            if loop.time() >= self._came_at + self._claim_every and await self._claim():
                self._came_at = loop.time()
            if most > 0 and (received := await self._read_streams(most)):
                return received
            left = deadline - loop.time()
            if left <= 0:
                return []
            await self._wait(min(left, max(self._came_at + self._claim_every - loop.time(), 0.001)), most)

    async def done(self, received: Sequence[Received]) -> None:
        """Delete what is decided. What could not be deleted is tried again with the next, or with the next `take`."""
        for each in received:
            partition, sequence = each.position.partition, each.position.offset + 1
            if partition in self._read and each.handle == self._layout:
                self._to_delete.setdefault(partition, set()).add(sequence)
        await self._delete()

    async def close(self) -> None:
        """Leave: others get the partitions at once; when Redis cannot be reached, after the TTL."""
        mine = sorted(self._read)
        with suppress(LogError):
            await self._delete()
        with suppress(LogError):
            await self._give_up(mine, leaves=True)
        self._forget(mine)

    async def _claim(self) -> bool:
        """Stay the owner of what this member has, and become that of what it should have; whether that is settled."""
        layout = await self._layouts.get()
        if layout != self._layout:
            self._forget(list(self._read), lost=True)
            self._layout = layout
        await self._delete()
        owners = [self._keys.owner(partition) for partition in range(layout.partitions)]
        answer = await self._server.run(
            redis_server.CLAIM,
            (self._keys.queue, self._keys.members, *owners),
            *(layout.text, self._asker, TTL_MS, int(not self._has_claimed)),
            about=f"partitions of {self._keys.queue}",
        )
        if not isinstance(answer, list):
            self._changed(layout)
            return False
        if answer[0] < 0:
            self._forget(list(self._read), lost=True)
            raise namesake(f"{self._server.name}, {self._keys.queue}", self._member)
        self._has_claimed = True
        quota, mine = answer[0], frozenset(answer[1:])
        self._forget([partition for partition in self._read if partition not in mine], lost=True)
        for partition in mine:
            self._read.setdefault(partition, 0)
        await self._share(quota)
        return await self._has_all(layout)

    async def _has_all(self, layout: QueueLayout) -> bool:
        """Look whether messages are gone that nobody has done (LogChangedError); False: the queue is another one."""
        streams = [self._keys.stream(partition) for partition in range(layout.partitions)]
        answer = await self._server.run(
            redis_server.MISSED,
            (self._keys.queue, self._keys.done, *streams),
            *(layout.text, QueueLayout.new(layout.partitions).text),
            about=f"what is missing in {self._keys.queue}",
        )
        if answer == [layout.text.encode()]:
            return True
        self._changed(layout)
        if len(answer) == 1:
            return False
        number, missed = answer
        raise LogChangedError(
            f"{missed} messages of {streams[number - 1]} that it had acknowledged are gone, and nobody has decided"
            " them: the stream was trimmed (XTRIM), or they were deleted by hand (XDEL)"
        )

    async def _share(self, quota: int) -> None:
        """Give up what is too much: partitions first of which nothing is in hand."""
        too_many = max(len(self._read) - quota, 0)
        by_load = sorted(self._read, key=lambda each: (each not in self._giving_up, len(self._in_hand.get(each, ()))))
        self._giving_up = set(by_load[:too_many])
        ready = [partition for partition in self._giving_up if not self._in_hand.get(partition)]
        if ready:
            await self._give_up(ready)
            self._forget(ready, lost=True)

    async def _give_up(self, partitions: Iterable[int], *, leaves: bool = False) -> None:
        owners = [self._keys.owner(partition) for partition in partitions]
        await self._server.run(
            redis_server.GIVE_UP,
            (self._keys.queue, self._keys.members, *owners),
            *(self._asker, int(leaves)),
            about=f"giving up partitions of {self._keys.queue}",
        )

    async def _read_streams(self, most: int) -> list[Received]:
        layout = self._layout
        partitions = [partition for partition in self._read if partition not in self._giving_up]
        if layout is None or not partitions:
            return []
        # Another one is the first each time: where messages are large, the last ones get none.
        self._turn += 1
        first = self._turn % len(partitions)
        partitions = partitions[first:] + partitions[:first]
        pairs = [key for each in partitions for key in (self._keys.owner(each), self._keys.stream(each))]
        answer: Any = await self._server.run(
            redis_server.READ,
            (self._keys.queue, *pairs),
            *(layout.text, self._asker, most, TAKEN_BYTES, QueueLayout.new(layout.partitions).text),
            *(self._read[partition] for partition in partitions),
            about=f"messages of {self._keys.queue}",
        )
        if not isinstance(answer, list):
            self._changed(layout)
            return []
        received: list[Received] = []
        for number, entries in answer:
            partition = partitions[number - 1]
            if entries is None:
                self._forget([partition], lost=True)
            else:
                received += self._took(partition, entries, layout)
        return received

    def _took(self, partition: int, entries: Sequence[Any], layout: QueueLayout) -> list[Received]:
        stream = self._keys.stream(partition)
        received = [read_entry(entry, partition, stream, layout) for entry in entries]
        self._in_hand.setdefault(partition, set()).update(each.position.offset + 1 for each in received)
        self._read[partition] = received[-1].position.offset + 1
        return received

    async def _wait(self, seconds: float, most: int) -> None:
        """Return when a message may be there, or after so many seconds."""
        reading = {} if most <= 0 else {each: at for each, at in self._read.items() if each not in self._giving_up}
        if not reading:
            await asyncio.sleep(seconds)
            return
        # Only to be woken: what is read counts in READ alone, which looks at the owner.
        streams = [self._keys.stream(partition) for partition in reading]
        await self._server.command(
            "XREAD",
            *("BLOCK", max(int(seconds * 1000), 1)),
            *("COUNT", 1),
            *("STREAMS", *streams, *(f"0-{at}" for at in reading.values())),
            about=f"news of {self._keys.queue}",
            blocks_s=seconds,
        )

    async def _delete(self) -> None:
        for partition, sequences in list(self._to_delete.items()):
            while sequences and self._layout is not None:
                some = sorted(sequences)[:_AT_ONCE]
                ids = [f"0-{sequence}" for sequence in some]
                stream = self._keys.stream(partition)
                deleted = await self._server.run(
                    redis_server.DONE,
                    (self._keys.queue, self._keys.owner(partition), stream, self._keys.done),
                    *(self._layout.text, self._asker, partition),
                    *ids,
                    about=f"deleting what is done of {stream}",
                )
                if deleted < 0:  # not its owner any more: the next one decides them anew, and that may be this member
                    self._forget([partition], lost=True)
                    break
                sequences.difference_update(some)
                self._in_hand.get(partition, set()).difference_update(some)

    def _changed(self, layout: QueueLayout) -> None:
        """The queue is another one than this: what was taken is worth nothing, and partitions are to be claimed anew.

        No error: before anything of the other one is written, its incarnation is compared with what was recorded. An
        error here would quarantine it once more where a member was paused while an operator raised its source.
        """
        self._layouts.forget(layout)
        self._came_at = float("-inf")
        self._forget(list(self._read), lost=True)

    def _forget(self, partitions: Iterable[int], *, lost: bool = False) -> None:
        gone = frozenset(partitions)
        for partition in gone:
            for known in (self._read, self._in_hand, self._to_delete):
                known.pop(partition, None)
        self._giving_up -= gone
        if gone and lost:
            self._lost(gone)


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
        self._keys = QueueKeys(where[redis_server.PREFIX], stream)
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
            redis_server.APPEND,
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
        layout, ends = await self._look(redis_server.STATE, "where it ends", 0)
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
        _, firsts = await self._look(redis_server.DECIDED, "what is decided", 1)
        return [max(first - 1, 0) for first in firsts]

    async def oldest(self) -> Sequence[float | None]:
        _, times = await self._look(redis_server.OLDEST, "what waits", b"")
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
        if self._ends_of != layout:
            self._ends, self._ends_of = {}, layout
        self._ends[partition] = max(self._ends.get(partition, 0), end)
