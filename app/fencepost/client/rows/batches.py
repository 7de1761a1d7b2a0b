"""Batches: lines go to the gateway some at a time, each of which is a request of its own (POST /v1/batch).

A request has so few bytes that it can always be sent before its answer is read: so neither side ever waits for the
other one, whatever HTTP client is under it. Each line has an Idempotency-Key, and lines whose verdicts did not come are
sent again under theirs, before any later line is; so are those whose verdicts say to send them again.
"""

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from fencepost.client.errors import ApiError, OutcomeUnknown, Unavailable
from fencepost.client.http.exchange import Call, Exchange, no_answer
from fencepost.client.http.retry import DEFINITE, run_with_retry
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
