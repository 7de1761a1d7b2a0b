"""Batches: lines go to the gateway some at a time, each of which is a request of its own (POST /v1/batch).

A request has so few bytes that it can always be sent before its answer is read: so neither side ever waits for the
other one, whatever HTTP client is under it. Each line has an Idempotency-Key, and lines whose verdicts did not come are
sent again under theirs, before any later line is.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from fencepost.client.errors import ApiError, OutcomeUnknown, Unavailable
from fencepost.client.fence_token import FenceToken
from fencepost.client.http.exchange import Call, Exchange
from fencepost.client.http.idempotency import new_key
from fencepost.client.http.jsontext import dumps
from fencepost.client.http.retry import IN_FLIGHT, run_with_retry
from fencepost.client.problem import Problem, as_token
from fencepost.client.problem_errors import error_of

Line: TypeAlias = Mapping[str, Any] | bytes
"""A line as docs/batch.md has it: `{"method": "PATCH", "path": "orders/7", "token": 34, "body": {…}}`, or a claim. Or
its text, which is sent as it is, also again: it has a key of its own, or must not matter."""
Lines: TypeAlias = AsyncIterable[Line] | Iterable[Line]

MOST_LINES: Final = 256
MOST_BYTES: Final = 65_536
SECONDS: Final = 0.02
"""For so long more lines are waited for before those that are there are sent."""
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


@dataclass(frozen=True, slots=True)
class _Ready:
    key: str
    text: bytes


async def decided(exchange: Exchange, lines: Lines) -> AsyncGenerator[Verdict, None]:
    """Send lines, and give their verdicts in order."""
    number = 0
    async for chunk in _chunks(aiter(lines) if isinstance(lines, AsyncIterable) else _each(lines)):
        left: Sequence[_Ready] = chunk
        while left:
            verdicts = await _send(exchange, left)
            for ready, verdict in zip(left, verdicts, strict=False):
                number += 1
                yield _read(number, ready.key, verdict)
            left = left[len(verdicts) :]


async def _each(lines: Iterable[Line]) -> AsyncIterator[Line]:
    for line in lines:
        yield line


def _ready(line: Line) -> _Ready:
    if isinstance(line, bytes):
        return _Ready("", line)
    members = dict(line)
    if isinstance(token := members.get("token"), FenceToken):
        members["token"] = token.text
    key = members.setdefault("idempotency_key", new_key())
    return _Ready(str(key), dumps(members))


async def _next(source: AsyncIterator[Line]) -> _Ready | None:
    line = await anext(source, None)
    return None if line is None else _ready(line)


async def _chunks(source: AsyncIterator[Line]) -> AsyncGenerator[Sequence[_Ready], None]:
    """Gather lines for as long as they come quickly: the next one may be made of a verdict."""
    chunk: list[_Ready] = []
    taking: asyncio.Task[_Ready | None] | None = None
    try:
        while True:
            taking = taking or asyncio.create_task(_next(source))
            if chunk:
                await asyncio.wait((taking,), timeout=SECONDS)
            else:
                await asyncio.wait((taking,))
            line = taking.result() if taking.done() else None
            size = sum(len(ready.text) for ready in chunk)
            if chunk and (line is None or len(chunk) >= MOST_LINES or size + len(line.text) > MOST_BYTES):
                yield chunk
                chunk = []
            elif line is None:
                return
            else:
                chunk.append(line)
                taking = None
    finally:
        if taking is not None:
            taking.cancel()


async def _send(exchange: Exchange, lines: Sequence[_Ready]) -> Sequence[Mapping[str, Any]]:
    """Send lines, again if need be, and give the verdicts of the first of them: at least of one."""
    call = Call(method="POST", path="/v1/batch", body=[ready.text for ready in lines], lines=True, writes=True)

    async def attempt(most: float) -> Sequence[Mapping[str, Any]]:
        verdicts: Sequence[Mapping[str, Any]] = (await exchange.once(call, most)).body or ()
        if verdicts and "stopped" in verdicts[-1]:
            verdicts = verdicts[:-1]
        in_flight = (each["body"].get("code") == IN_FLIGHT for each in verdicts if each["status"] >= _REFUSED)
        if not verdicts or any(in_flight):
            raise Unavailable("the gateway has stopped to read the batch, or works on its lines still")
        return verdicts

    return await run_with_retry(exchange.retry, exchange.clock, attempt, seconds=exchange.seconds(call))


def _read(number: int, key: str, members: Mapping[str, Any]) -> Verdict:
    status, body, error = members["status"], members["body"], None
    if status >= _REFUSED:
        error = error_of(Problem(body, status, members.get("retry_after")), writes=True)
        if isinstance(error, OutcomeUnknown):
            error.idempotency_key = key
    mark = as_token(members.get("mark"))
    return Verdict(number, status, mark, body, "replayed" in members, key, error, {**members, "number": number})
