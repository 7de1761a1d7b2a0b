"""Taking from a queue in Redis: each partition has one owner at a time, who reads its stream in order.

Who owns a partition stands in a key that expires; `take` sets it anew about once a second, and takes partitions that
no member has, as many as its share of the members that are there. A member that has more than its share reads nothing
more of the partitions that are too many, and gives each up when all that it took of it is done. One that does not come
any more loses its partitions when the keys expire, and a new owner begins with everything that is not done. What a
paused owner has in its hands then is the business of the fence.
"""

import asyncio
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

from fencepost.server.queues.log import TAKEN_BYTES, LogChangedError, LogError, Received, namesake
from fencepost.server.queues.redis.entry import read_entry
from fencepost.server.queues.redis.layout import Layouts, QueueLayout
from fencepost.server.queues.redis.scripts import CLAIM, DONE, GIVE_UP, MISSED, READ
from fencepost.server.queues.redis.server import RedisServer
from fencepost.server.queues.redis.url import QueueKeys

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
            CLAIM,
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
            MISSED,
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
            GIVE_UP,
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
            READ,
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
                    DONE,
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
