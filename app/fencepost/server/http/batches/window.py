"""The lines of a batch that are in hand, for their verdicts are not sent: so many at most, and of so many bytes.

Some lines are in hand in any case. For more the batch takes room among the bodies in this process's memory
(requests/bodies.py). Where there is none it goes on with as few: no batch waits for another one's room.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

MOST_BYTES: Final = 8_388_608
"""Bytes that lines and verdicts in hand may have before no more lines are read, and none is begun but the first."""
_LITTLE: Final = 65_536
"""As many as a batch may have before it takes room for MOST_BYTES, and where there is no room."""
LONG: Final = _LITTLE
"""A line that is longer is taken where there is room only."""
OF_A_LINE: Final = 4_096
"""Bytes that a line takes in memory beside its own."""
_SENT_AT_ONCE: Final = 65_536
"""Bytes of verdicts that are sent as one message. A longer one is sent by itself."""


@dataclass(slots=True, eq=False)
class Entry:
    """A line in hand. `verdict` None: it is not decided; empty: it gets none. `size` is the line's."""

    size: int
    verdict: bytes | None = None


class Window:
    """`most` lines are in hand at most. `take` takes room for so many bytes, or says that there is none; `keep` counts
    so many more bytes of verdicts that are not sent.
    """

    def __init__(self, most: int, take: Callable[[int], bool], keep: Callable[[int], None] = lambda _: None) -> None:
        self._most, self._take, self._keep, self._limit = most, take, keep, _LITTLE
        self._entries: deque[Entry] = deque()
        self._held = self._bytes = self._begun = 0
        self._expected = 0
        """Bytes that a verdict may have which is not there yet: those of the largest ones of late."""
        self._complete = False
        self._moved = asyncio.Event()
        """The first line is decided, or there are no more."""
        self._room = asyncio.Event()

    def lets_in(self) -> bool:
        """Whether a line may be read now. Where it needs more room than the batch has, that is taken."""
        return self._held < self._most and self._fits(self._bytes)

    def widens(self) -> bool:
        """Whether the batch has room for more than a few lines, which is taken if it is there."""
        if self._limit != MOST_BYTES and self._take(MOST_BYTES):
            self._limit = MOST_BYTES
        return self._limit == MOST_BYTES

    def _fits(self, size: int) -> bool:
        return size <= self._limit or (self.widens() and size <= self._limit)

    async def room(self) -> None:
        """Wait until a line may be read. One is always let in."""
        while self._held and not self.lets_in():
            self._room.clear()
            await self._room.wait()

    def enter(self, size: int) -> Entry:
        """Take a line of so many bytes in hand, behind the others."""
        size += OF_A_LINE
        entry = Entry(size)
        self._entries.append(entry)
        self._held += 1
        self._bytes += size
        return entry

    async def begin(self, entry: Entry) -> bool:
        """Wait until the line may be decided: there is room for its verdict, or it is the first. True."""
        while entry is not self._entries[0] and not self._fits(self._bytes + (self._begun + 1) * self._expected):
            self._room.clear()
            await self._room.wait()
        self._begun += 1
        return True

    def decide(self, entry: Entry, verdict: bytes, *, begun: bool = False) -> None:
        """Give a line its verdict. `begun`: `begin` has let it."""
        entry.verdict = verdict
        self._bytes += len(verdict)
        self._keep(len(verdict))
        self._begun -= begun
        self._expected = max(len(verdict), self._expected * 15 // 16)
        if entry is self._entries[0]:
            self._moved.set()

    def complete(self) -> None:
        self._complete = True
        self._moved.set()

    async def next(self) -> list[Entry]:
        """Wait for the verdicts that are next, in the order of their lines. None of them: all were given out."""
        while not self._entries or self._entries[0].verdict is None:
            if self._complete and not self._entries:
                return []
            self._moved.clear()
            await self._moved.wait()
        ready: list[Entry] = []
        size = 0
        while self._entries and (verdict := self._entries[0].verdict) is not None:
            size += len(verdict)
            if ready and size > _SENT_AT_ONCE:
                break
            ready.append(self._entries.popleft())
        return ready

    def sent(self, entries: list[Entry]) -> None:
        """Hand out the room of lines whose verdicts were sent."""
        verdicts = sum(len(entry.verdict or b"") for entry in entries)
        self._held -= len(entries)
        self._bytes -= sum(entry.size for entry in entries) + verdicts
        self._keep(-verdicts)
        self._room.set()
