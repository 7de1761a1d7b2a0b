"""`Client.batch`: many lines, sent as they come, and a verdict for each."""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from contextvars import copy_context
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Protocol, TypeAlias

from fencepost.client.answers import FenceToken
from fencepost.client.errors import ApiError, OutcomeUnknown, Problem, Unavailable, as_token, error_of
from fencepost.client.http import DEFINITE, Call, Exchange, dumps, loads, new_key, no_answer, run_with_retry

# Lines of a batch on their way to the gateway: what a line may be, and so many at a time as a request has.
#
# Those at hand are sent while the next one is waited for. An iterable that may wait, for a pipe or a cursor, does so
# in a thread of its own: there is one, which takes lines ahead, and no hop between threads for each line.

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

    def close(self) -> None: ...


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


# Batches: lines go to the gateway some at a time, each of which is a request of its own (POST /v1/batch).
#
# A request has so few bytes that it can always be sent before its answer is read: so neither side ever waits for the
# other one, whatever HTTP client is under it. Each line has an Idempotency-Key, and lines whose verdicts did not come
# are sent again under theirs, before any later line is; so are those whose verdicts say to send them again.

_REFUSED: Final = 400


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a line was answered. `number` counts lines from 1; `members` is the verdict as the gateway sent it."""

    number: int
    status: int
    mark: int | None
    body: Any
    replayed: bool
    """Whether it was done before, under its key."""
    idempotency_key: str
    """Empty: the line was a text."""
    error: ApiError | None
    """What a call of the client would have raised; None: the line was accepted."""
    members: Mapping[str, Any]

    def result(self) -> Any:
        """Give the body of the answer, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.body


async def decided(exchange: Exchange, lines: Lines) -> AsyncGenerator[Verdict, None]:
    """Send lines, and give their verdicts in order."""
    first = 1
    async with aclosing(chunks(lines)) as requests:
        async for ready in requests:
            verdicts, failed = await decide(exchange, ready, first)
            for verdict in verdicts:
                yield verdict
            if failed is not None:
                raise failed
            first += len(ready)


async def decide(exchange: Exchange, ready: Sequence[Ready], first: int) -> tuple[list[Verdict], ApiError | None]:
    """Send the lines of one request, of which the first one has this number: their verdicts, up to the one for which
    the error is raised then.
    """
    chunk = _Chunk(exchange, [_Sent(each) for each in ready])
    failed = await chunk.decide()
    passes = isinstance(failed, Unavailable | OutcomeUnknown) and chunk.any_decided
    ends = failed is not None and not passes
    verdicts: list[Verdict] = []
    for number, one in enumerate(chunk.lines, first):
        if one.verdict is None or (ends and one.left):
            return verdicts, failed
        verdicts.append(_read(number, one.ready, one.verdict, one.unknown))
    return verdicts, None


@dataclass(slots=True)
class _Sent:
    """A line that was sent. `unknown`: the error of an earlier request, of which it is not known what became."""

    ready: Ready
    verdict: Mapping[str, Any] | None = None
    unknown: OutcomeUnknown | None = None

    @property
    def left(self) -> bool:
        """Whether it is to be sent again: it has no verdict, or one that says so."""
        return self.verdict is None or self.error is not None

    @property
    def error(self) -> Unavailable | OutcomeUnknown | None:
        """Give the error of a verdict that says to send the line again; None: it does not."""
        if self.verdict is None or self.verdict["status"] < _REFUSED:
            return None
        error = _error(self.verdict)
        return error if isinstance(error, Unavailable | OutcomeUnknown) else None


@dataclass(slots=True)
class _Chunk:
    """Lines of one request."""

    exchange: Exchange
    lines: Sequence[_Sent]

    @property
    def any_decided(self) -> bool:
        """Whether some line has a verdict that lasts."""
        return not all(each.left for each in self.lines)

    async def decide(self) -> ApiError | None:
        """Send the lines, and again those that are left, in their order, for as long as `retry` allows it; the error
        for which some are left then.
        """
        seconds = self.exchange.seconds(self._call(self.lines))
        try:
            await run_with_retry(self.exchange.retry, self.exchange.clock, self._attempt, seconds=seconds)
        except ApiError as error:
            return error
        return None

    async def _attempt(self, most: float) -> None:
        left = [each for each in self.lines if each.left]
        call = self._call(left)
        try:
            verdicts = _verdicts(call, (await self.exchange.once(call, most)).body, len(left))
        except OutcomeUnknown as error:
            for each in left:
                each.unknown, each.verdict = error, None
            raise
        for each, verdict in zip(left, verdicts, strict=False):
            each.verdict = verdict
            if isinstance(each.error, OutcomeUnknown):
                each.unknown = each.error
        failed = next((each.error for each in left if each.error is not None), None)
        if failed is not None:
            raise failed
        if len(verdicts) < len(left):
            raise Unavailable("the gateway has stopped to read the batch")

    @staticmethod
    def _call(lines: Sequence[_Sent]) -> Call:
        texts = [each.ready.text for each in lines]
        return Call(method="POST", path="/v1/batch", body=texts, lines=True, writes=True)


async def landed(exchange: Exchange, lines: Iterable[Line]) -> list[Verdict]:
    """Send lines that land all, or none: their verdicts, or the error of the first one that is refused."""
    ready = [as_sent(number, line) for number, line in enumerate(lines, 1)]
    body, whole = [each.text for each in ready], (("atomic", "true"),)
    call = Call(method="POST", path="/v1/batch", params=whole, body=body, lines=True, writes=True)

    async def attempt(most: float) -> list[Verdict]:
        verdicts = _verdicts(call, (await exchange.once(call, most)).body, len(ready))
        return [
            _read(number, one, verdict, None)
            for number, (one, verdict) in enumerate(zip(ready, verdicts, strict=True), 1)
        ]

    keyed = all(each.keyed for each in ready)
    return await run_with_retry(exchange.retry, exchange.clock, attempt, seconds=exchange.seconds(call), once=not keyed)


def _verdicts(call: Call, found: Sequence[Any] | None, lines: int) -> Sequence[Mapping[str, Any]]:
    """Read an answer. A line has the verdict that names its number, or the answer is none."""
    verdicts = found or ()
    stopped = bool(verdicts) and isinstance(verdicts[-1], Mapping) and "stopped" in verdicts[-1]
    verdicts = verdicts[:-1] if stopped else verdicts
    for number, verdict in enumerate(verdicts, 1):
        match verdict:
            case {"number": int(named), "status": int(status), "body": body} if named == number <= lines:
                if status < _REFUSED or isinstance(body, Mapping):
                    continue
        raise no_answer(call, f"this is no verdict of line {number} of {lines}: {str(verdict)[:200]}")
    if len(verdicts) < lines and not stopped:
        raise no_answer(call, f"it has {len(verdicts)} verdicts of {lines} lines")
    return verdicts


def _error(members: Mapping[str, Any]) -> ApiError:
    return error_of(Problem(members["body"], members["status"], members.get("retry_after")), writes=True)


def _read(number: int, ready: Ready, members: Mapping[str, Any], unknown: OutcomeUnknown | None) -> Verdict:
    status, error = members["status"], None
    if status >= _REFUSED:
        error = _error(members)
        # The earlier one may be on its way still, and land; a refusal without a key may even be its echo.
        if unknown is not None and not (ready.keyed and isinstance(error, DEFINITE)):
            refusal, error = error, OutcomeUnknown(str(unknown))
            error.__cause__ = refusal
        if isinstance(error, OutcomeUnknown):
            error.idempotency_key = ready.key
    mark = as_token(members.get("mark"))
    replayed = "replayed" in members
    return Verdict(number, status, mark, members["body"], replayed, ready.key, error, {**members, "number": number})
