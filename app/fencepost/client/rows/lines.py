"""Lines of a batch on their way to the gateway: what a line may be, and so many at a time as a request has.

Those at hand are sent while the next one is waited for. An iterable that may wait, for a pipe or a cursor, does so in a
thread of its own: there is one, which takes lines ahead, and no hop between threads for each line.
"""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Protocol, TypeAlias

from fencepost.client.fence_token import FenceToken
from fencepost.client.http.idempotency import new_key
from fencepost.client.http.jsontext import dumps, loads

Line: TypeAlias = Mapping[str, Any] | bytes
"""A line as docs/batch.md has it: `{"method": "PATCH", "path": "orders/7", "token": 34, "body": {…}}`, or a claim. Or
its text, which is sent as it is, also again: it has a key of its own, or must not matter."""
Lines: TypeAlias = AsyncIterable[Line] | Iterable[Line]

MOST_LINES: Final = 256
MOST_BYTES: Final = 65_536
SECONDS: Final = 0.02
"""For so long more lines are waited for before those that are there are sent."""
_BLANKS: Final = b" \t\r\n"


@dataclass(frozen=True, slots=True)
class Ready:
    """A line as it is sent. `key`: its Idempotency-Key; empty, if the line is a text."""

    key: str
    text: bytes
    keyed: bool = True
    """Whether it has an Idempotency-Key; a text may have one of its own."""


class _Sign(Enum):
    LATE = "no line came in time"
    END = "there are no more lines"


@dataclass(frozen=True, slots=True)
class _Raised:
    error: BaseException


def _check(number: int, line: object) -> None:
    """Refuse what would be no line, or more than one: verdicts count lines. Raises TypeError, ValueError."""
    if not isinstance(line, bytes | Mapping):
        raise TypeError(f"line {number}: a line is a mapping or bytes, not {type(line).__name__}")
    if isinstance(line, bytes):
        text = line.strip(_BLANKS)
        if not text:
            raise ValueError(f"line {number}: the text is blank; a blank line has no verdict")
        if b"\n" in text:
            raise ValueError(f"line {number}: the text has an end of line within, and would be several lines")


def as_sent(number: int, line: Line) -> Ready:
    """Write a line, with a key if it is none's text. Raises TypeError, ValueError."""
    _check(number, line)
    if isinstance(line, bytes):
        return Ready("", line.strip(_BLANKS), _has_key(line))
    members = dict(line)
    if isinstance(token := members.get("token"), FenceToken):
        members["token"] = token.text
    if (key := members.get("idempotency_key")) is None:
        key = members["idempotency_key"] = new_key()
    try:
        return Ready(str(key), dumps(members))
    except (TypeError, ValueError) as error:
        raise type(error)(f"line {number}: {error}") from error


def _has_key(text: bytes) -> bool:
    try:
        members = loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(members, dict) and isinstance(members.get("idempotency_key"), str)


async def chunks(lines: Lines) -> AsyncGenerator[Sequence[Ready], None]:
    """Gather lines for as long as they come quickly: the next one may be made of a verdict.

    Raises what the iterable does, and TypeError or ValueError for what is no line; then those gathered are not sent.
    """
    chunk: list[Ready] = []
    number = size = 0
    source = _source(lines)
    try:
        while (line := await source.next(SECONDS if chunk else None)) is not _Sign.END:
            if line is not _Sign.LATE:
                number += 1
                ready = as_sent(number, line)
                if chunk and size + len(ready.text) > MOST_BYTES:
                    yield chunk
                    chunk, size = [], 0
                chunk.append(ready)
                size += len(ready.text)
            if chunk and (line is _Sign.LATE or len(chunk) == MOST_LINES):
                yield chunk
                chunk, size = [], 0
        if chunk:
            yield chunk
    finally:
        source.close()


class _Source(Protocol):
    """Where lines come from."""

    async def next(self, seconds: float | None) -> Line | _Sign:
        """Give the next line. LATE: it did not come in so many seconds, and is to be asked for again."""
        ...

    def close(self) -> None:
        """Take no more."""
        ...


def _source(lines: Lines) -> _Source:
    if isinstance(lines, AsyncIterable):
        return _Asynchronous(lines)
    if isinstance(lines, list | tuple):
        return _AtHand(lines)
    return _Thread(lines)


class _Asynchronous:
    def __init__(self, lines: AsyncIterable[Line]) -> None:
        self._lines = aiter(lines)
        self._taking: asyncio.Task[Line | _Sign] | None = None

    async def next(self, seconds: float | None) -> Line | _Sign:
        self._taking = taking = self._taking or asyncio.create_task(self._take())
        await asyncio.wait((taking,), timeout=seconds)
        if not taking.done():
            return _Sign.LATE
        self._taking = None
        return taking.result()

    async def _take(self) -> Line | _Sign:
        return await anext(self._lines, _Sign.END)

    def close(self) -> None:
        if self._taking is not None:
            self._taking.cancel()


class _AtHand:
    def __init__(self, lines: Iterable[Line]) -> None:
        self._lines = iter(lines)

    async def next(self, seconds: float | None) -> Line | _Sign:  # noqa: ARG002 - nothing is waited for
        return next(self._lines, _Sign.END)

    def close(self) -> None:
        pass


class _Thread:
    """Lines of an iterable that may wait for them: a thread takes them, as many ahead as a request has. The thread is a
    daemon: where it waits when the program ends, the program ends all the same.
    """

    def __init__(self, lines: Iterable[Line]) -> None:
        self._lines = lines
        self._taken: deque[Line | _Sign | _Raised] = deque()
        self._loop = asyncio.get_running_loop()
        self._came = asyncio.Event()
        self._awaited = self._closed = False
        self._room, self._given = threading.Semaphore(MOST_LINES), 0
        run = copy_context().run
        threading.Thread(target=run, args=(self._take,), name="fencepost batch", daemon=True).start()

    async def next(self, seconds: float | None) -> Line | _Sign:
        if not self._taken:
            self._came.clear()
            self._awaited = True
            if not self._taken:  # not in this moment either: from now on the thread sees that it is awaited
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await self._came.wait()
        if not self._taken:
            return _Sign.LATE
        line = self._taken.popleft()
        if isinstance(line, _Raised):
            raise line.error
        self._given += 1
        if not self._taken or self._given == MOST_LINES // 2:  # not for each line: that would be a change of threads
            self._room.release(self._given)
            self._given = 0
        return line

    def close(self) -> None:
        """Do not wait for the thread, which may wait for a line."""
        self._closed = True
        self._room.release()

    def _take(self) -> None:
        end: _Sign | _Raised = _Sign.END
        try:
            for line in self._lines:
                self._give(line)
                self._room.acquire()
                if self._closed:
                    return
        except BaseException as error:  # noqa: BLE001 - it is raised where lines are asked for
            end = _Raised(error)
        self._give(end)

    def _give(self, line: Line | _Sign | _Raised) -> None:
        self._taken.append(line)
        if self._awaited:
            self._awaited = False
            with suppress(RuntimeError):  # the loop is closed: nobody asks
                self._loop.call_soon_threadsafe(self._came.set)
