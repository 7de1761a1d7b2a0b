"""Batches: lines go to the gateway some at a time, each of which is a request of its own (POST /v1/batch).

A request has so few bytes that it can always be sent before its answer is read: so neither side ever waits for the
other one, whatever HTTP client is under it. Each line has an Idempotency-Key, and lines whose verdicts did not come are
sent again under theirs, before any later line is.
"""

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from fencepost.client.errors import ApiError, OutcomeUnknown, Unavailable
from fencepost.client.http.exchange import Call, Exchange, no_answer
from fencepost.client.http.retry import DEFINITE, IN_FLIGHT, run_with_retry
from fencepost.client.problem import Problem, as_token
from fencepost.client.problem_errors import error_of
from fencepost.client.rows.lines import Line, Lines, Ready, as_sent, chunks

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
    number = 0
    async with aclosing(chunks(lines)) as requests:
        async for chunk in requests:
            left: Sequence[Ready] = chunk
            unknown: OutcomeUnknown | None = None
            while left:
                verdicts, unknown = await _send(exchange, left, unknown)
                for ready, verdict in zip(left, verdicts, strict=False):
                    number += 1
                    yield _read(number, ready.key, verdict, unknown)
                left = left[len(verdicts) :]


async def _send(
    exchange: Exchange, lines: Sequence[Ready], unknown: OutcomeUnknown | None
) -> tuple[Sequence[Mapping[str, Any]], OutcomeUnknown | None]:
    """Send lines, again if need be, and give the verdicts of the first of them: at least of one. `unknown`, given and
    returned: the error of an earlier request, if they were sent before and what became of that is not known.

    All are sent again, from the first one on, also while an earlier request works on one of them: its verdict is to
    come before any later one's.
    """
    call = Call(method="POST", path="/v1/batch", body=[ready.text for ready in lines], lines=True, writes=True)

    async def attempt(most: float) -> Sequence[Mapping[str, Any]]:
        nonlocal unknown
        try:
            verdicts = _verdicts(call, (await exchange.once(call, most)).body, len(lines))
            if any(each["body"].get("code") == IN_FLIGHT for each in verdicts if each["status"] >= _REFUSED):
                raise no_answer(call, "an earlier request works on its lines still")
        except OutcomeUnknown as error:
            unknown = error
            raise
        if not verdicts:
            raise Unavailable("the gateway has stopped to read the batch")
        return verdicts

    verdicts = await run_with_retry(exchange.retry, exchange.clock, attempt, seconds=exchange.seconds(call))
    return verdicts, unknown


async def landed(exchange: Exchange, lines: Iterable[Line]) -> list[Verdict]:
    """Send lines that land all, or none: their verdicts, or the error of the first one that is refused."""
    ready = [as_sent(number, line) for number, line in enumerate(lines, 1)]
    body, whole = [each.text for each in ready], (("atomic", "true"),)
    call = Call(method="POST", path="/v1/batch", params=whole, body=body, lines=True, writes=True)

    async def attempt(most: float) -> list[Verdict]:
        verdicts = _verdicts(call, (await exchange.once(call, most)).body, len(ready))
        return [
            _read(number, one.key, verdict, None)
            for number, (one, verdict) in enumerate(zip(ready, verdicts, strict=True), 1)
        ]

    keyed = all(each.key for each in ready)
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


def _read(number: int, key: str, members: Mapping[str, Any], unknown: OutcomeUnknown | None) -> Verdict:
    status, body, error = members["status"], members["body"], None
    if status >= _REFUSED:
        error = error_of(Problem(body, status, members.get("retry_after")), writes=True)
        if unknown is not None and not isinstance(error, DEFINITE):  # the earlier one may be on its way still, and land
            refusal, error = error, OutcomeUnknown(str(unknown))
            error.__cause__ = refusal
        if isinstance(error, OutcomeUnknown):
            error.idempotency_key = key
    mark = as_token(members.get("mark"))
    return Verdict(number, status, mark, body, "replayed" in members, key, error, {**members, "number": number})
