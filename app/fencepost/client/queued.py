"""Writes that are submitted to a queue, and what they come to."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, Final, Generic, Literal, TypeVar, Unpack
from urllib.parse import unquote

from fencepost.client import rows
from fencepost.client.answers import Key, Row, resource_of
from fencepost.client.clock import before
from fencepost.client.errors import ApiError, Problem, RowsNotKept, StillQueued, Unavailable, WriteFailed, error_of
from fencepost.client.http import Exchange
from fencepost.client.lease import Lease
from fencepost.client.rows import AnyLease, How, Writer

T = TypeVar("T")

State = Literal["queued", "applied", "refused", "failed"]
"""What became of a queued write. Refused: the fence refused its token. Failed: refused for another reason, and a dead
letter. All but `queued` are final."""

LONGEST_WAIT: Final = 20
"""Seconds that one request waits for a decision: proxies bear that."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A state that is final, and the answer that the write would have had at once."""

    state: State
    status: int
    body: Any

    @classmethod
    def read(cls, page: Mapping[str, Any]) -> "Decision | None":
        """Read GET /v1/writes/{id}; None while the write is queued."""
        if page["state"] == "queued":
            return None
        answer = page["answer"]
        return cls(page["state"], answer["status"], answer["body"])

    @property
    def error(self) -> ApiError:
        """The error that the same write would have raised at once."""
        return error_of(Problem(self.body if isinstance(self.body, Mapping) else {}, self.status), writes=True)


class QueuedWrite(Generic[T]):
    """A write that was queued: the gateway answers for it that it is kept, in its place.

    `id` names it, for `client.submit.queued(id)` in another process. None: the gateway gave the answer at once, since
    the write was a repetition and is long done.
    """

    id: str | None
    """What names it."""

    def __init__(
        self, exchange: Exchange, write_id: str | None, read: Callable[[Any], T], decision: Decision | None = None
    ) -> None:
        self.id = write_id
        self._exchange = exchange
        self._read = read
        self._decision = decision
        self._outage: Unavailable | None = None

    def __repr__(self) -> str:
        return f"<QueuedWrite {self.id}{'' if self._decision is None else f', {self._decision.state}'}>"

    async def state(self) -> State:
        """Ask what became of it, without waiting. NotFound when the gateway no longer knows."""
        decision = await self._ask(0)
        return "queued" if decision is None else decision.state

    async def result(self, timeout: float | None = None) -> T:  # noqa: ASYNC109 - as a Future's, and by the client's clock
        """Wait until it is decided, and return what the same write would have returned at once: the row; None after a
        delete. May be called again.

        timeout: seconds, then StillQueued; None: for ever. A gateway that cannot be reached is asked again, however
        long that takes: StillQueued has the last such error as its cause. StaleToken, SpentToken: the fence refused its
        token. WriteFailed: it was refused for another reason, and is a dead letter. NotFound: the gateway no longer
        knows.
        """
        decision = await self._decided(timeout)
        if decision.state == "applied":
            return self._read(decision.body)
        error = decision.error
        if decision.state == "refused" or self.id is None:
            raise error
        raise WriteFailed(self.id, error) from error

    async def _decided(self, within: float | None) -> Decision:
        if within is None:
            return await self._wait()
        clock = self._exchange.clock
        try:
            if within > 0:
                return await before(clock, clock.now() + within, self._wait(within))
            if decision := await self._ask(0):
                return decision
        except TimeoutError:
            pass
        raise StillQueued(f"write {self.id} is not decided after {within:g} s") from self._outage

    async def _wait(self, most: float = LONGEST_WAIT) -> Decision:
        clock, wait = self._exchange.clock, min(ceil(most), LONGEST_WAIT)
        early = 0
        while True:
            asked = clock.now()
            try:
                if decision := await self._ask(wait):
                    return decision
            except Unavailable as outage:
                if not outage.may_repeat:
                    raise
                self._outage = outage
            else:
                self._outage = None
            early = early + 1 if clock.now() - asked < wait / 2 else 0
            if early:  # the gateway is away, or is stopping and lets no request wait
                await clock.sleep(self._exchange.retry.delay(early))

    async def _ask(self, wait: int) -> Decision | None:
        if self._decision is None and self.id is not None:
            answer = await self._exchange.repeat(rows.queued_write(self.id, wait))
            self._decision = Decision.read(answer.body)
        return self._decision


class SubmitCalls(Generic[AnyLease]):
    """The methods of `Submit` that take a lease."""

    def __init__(self, exchange: Exchange, writer: Writer) -> None:
        self._exchange = exchange
        self._writer = writer

    async def post(self, table: str, row: Mapping[str, Any], **how: Unpack[How[AnyLease]]) -> QueuedWrite[Row]:
        """Queue the insert of one row, which names its key; its result is the row."""
        return await self._submit(None, lambda fresh: rows.post(table, row, fresh), _first, **how)

    async def patch(
        self, table: str, key: Key, changes: Mapping[str, Any], **how: Unpack[How[AnyLease]]
    ) -> QueuedWrite[Row]:
        """Queue a change of columns of one row; its result is the row."""
        resource = resource_of(table, key)
        return await self._submit(resource, lambda fresh: rows.patch(table, key, changes, fresh), _row, **how)

    async def put(self, table: str, key: Key, row: Mapping[str, Any], **how: Unpack[How[AnyLease]]) -> QueuedWrite[Row]:
        """Queue that one row is created or replaced; its result is the row."""
        resource = resource_of(table, key)
        return await self._submit(resource, lambda fresh: rows.put(table, key, row, fresh), _row, **how)

    async def delete(self, table: str, key: Key, **how: Unpack[How[AnyLease]]) -> QueuedWrite[None]:
        """Queue the deletion of one row; its result is None."""
        resource = resource_of(table, key)
        return await self._submit(resource, lambda fresh: rows.delete(table, key, fresh), _nothing, **how)

    async def _submit(
        self, resource: str | None, call: rows.WithToken, read: Callable[[Any], T], **how: Unpack[How[AnyLease]]
    ) -> QueuedWrite[T]:
        answer = await self._writer.submit(resource, call, **how)
        if answer.status == rows.QUEUED:
            return QueuedWrite(self._exchange, unquote(answer.headers["Location"].rpartition("/")[2]), read)
        return QueuedWrite(self._exchange, None, read, Decision("applied", answer.status, answer.body))


class Submit(SubmitCalls[Lease]):
    """Writes that are queued instead of done at once, with the arguments of the client's methods of the same names.

    Each returns when the write is kept: on disk, and on all replicas that the queue's settings ask for. Writes of one
    row are applied in the order in which they were kept. A table that was protected with `--queue` takes neither
    `lease` nor `token`: the place in the queue is the token. Any other takes one of them, and the fence judges the
    token when the write is applied, not before.

    Each submission is sent under an Idempotency-Key, and again under the same one when its answer gets lost.
    """

    def queued(self, write_id: str) -> QueuedWrite[Any]:
        """Give a write that was queued before, maybe by another process; its result is the JSON of its answer."""
        return QueuedWrite(self._exchange, write_id, _any)


def _any(body: Any) -> Any:
    return body


def _row(body: Any) -> Any:
    if body is None:
        raise RowsNotKept("the write is applied, and its row was not kept: read it")
    return body


def _first(body: Any) -> Row:
    row: Row = _row(body)[0]
    return row


def _nothing(_: object) -> None:
    return None
