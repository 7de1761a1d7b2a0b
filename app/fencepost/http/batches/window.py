"""The lines of a batch that are in hand, for their verdicts are not sent: so many at most, and of so many bytes."""

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Final

MOST_BYTES: Final = 8_388_608
"""Bytes that lines and verdicts in hand may have before no more lines are read."""


@dataclass(slots=True, eq=False)
class Entry:
    """A line in hand. `verdict` None: it is not decided; empty: it gets none. `size` is the line's."""

    size: int
    verdict: bytes | None = None


class Window:
    """`most` lines are in hand at most."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._entries: deque[Entry] = deque()
        self._held = self._bytes = 0
        self._complete = False
        self._moved = asyncio.Event()
        """The first line is decided, or there are no more."""
        self._room = asyncio.Event()

    @property
    def is_full(self) -> bool:
        """Whether no line is to be read now."""
        return self._held >= self._most or self._bytes > MOST_BYTES

    async def room(self) -> None:
        """Wait until a line may be read. One is always let in."""
        while self._held and self.is_full:
            self._room.clear()
            await self._room.wait()

    def enter(self, size: int) -> Entry:
        """Take a line in hand, behind the others."""
        entry = Entry(size)
        self._entries.append(entry)
        self._held += 1
        self._bytes += size
        return entry

    def decide(self, entry: Entry, verdict: bytes) -> None:
        """Give a line its verdict."""
        entry.verdict = verdict
        self._bytes += len(verdict)
        if entry is self._entries[0]:
            self._moved.set()

    def complete(self) -> None:
        """No more lines come."""
        self._complete = True
        self._moved.set()

    async def next(self) -> list[Entry]:
        """Wait for the verdicts that are next, in the order of their lines. None of them: all were given out."""
        while not self._entries or self._entries[0].verdict is None:
            if self._complete and not self._entries:
                return []
            self._moved.clear()
            await self._moved.wait()
        ready = []
        while self._entries and self._entries[0].verdict is not None:
            ready.append(self._entries.popleft())
        return ready

    def sent(self, entries: list[Entry]) -> None:
        """Hand out the room of lines whose verdicts were sent."""
        self._held -= len(entries)
        self._bytes -= sum(entry.size + len(entry.verdict or b"") for entry in entries)
        self._room.set()
