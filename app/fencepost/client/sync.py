"""`SyncClient`: each method of `Client` under the same name, for programs without asyncio."""

import contextlib
import ssl
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, overload

import httpx

from fencepost.client.answers import Claimed, FenceState, Key, LockState, Row
from fencepost.client.batches import MOST_BYTES, MOST_LINES, SECONDS, Line, Ready, Verdict, as_sent, decide
from fencepost.client.client import Client
from fencepost.client.clock import Clock, SystemClock
from fencepost.client.elections import Leader
from fencepost.client.http import DEFAULT_RETRY, Retry, Token
from fencepost.client.lease import FIRST_TOKENS, Claims, Names, Writes
from fencepost.client.queued import QueuedWrite, State, Submit
from fencepost.client.rows import Filters
from fencepost.client.sync_lease import Loop, SyncCampaign, SyncLease, SyncLock

# Queued writes for code that is not asynchronous.

T = TypeVar("T")


class SyncQueuedWrite(Generic[T]):
    """A write that was queued, as `QueuedWrite` is."""

    def __init__(self, queued: QueuedWrite[T], loop: Loop) -> None:
        self._queued = queued
        self._loop = loop

    def __repr__(self) -> str:
        return repr(self._queued).replace("<QueuedWrite", "<SyncQueuedWrite", 1)

    @property
    def id(self) -> str | None:
        """What names it."""
        return self._queued.id

    def state(self) -> State:
        """Ask what became of it, without waiting. NotFound when the gateway no longer knows."""
        return self._loop.run(self._queued.state)

    def result(self, timeout: float | None = None) -> T:
        """Wait until it is decided, and return what the same write would have returned at once: the row; None after a
        delete. May be called again.

        timeout: seconds, then StillQueued; None: for ever. A gateway that cannot be reached is asked again, however
        long that takes: StillQueued has the last such error as its cause. StaleToken, SpentToken: the fence refused its
        token. WriteFailed: it was refused for another reason, and is a dead letter. NotFound: the gateway no longer
        knows.
        """
        return self._loop.run(lambda: self._queued.result(timeout))


class SyncSubmitCalls:
    """The calls of a SyncSubmit."""

    asynchronous: Submit
    _loop: Loop

    def post(
        self,
        table: str,
        row: Mapping[str, Any],
        *,
        lease: SyncLease | None = None,
        token: int | None = None,
        idempotency_key: str | None = None,
    ) -> SyncQueuedWrite[Row]:
        """Queue the insert of one row, which names its key; its result is the row."""
        return SyncQueuedWrite(
            self._loop.run(
                lambda: self.asynchronous.post(
                    table,
                    row,
                    lease=None if lease is None else lease.asynchronous,
                    token=token,
                    idempotency_key=idempotency_key,
                )
            ),
            self._loop,
        )

    def patch(
        self,
        table: str,
        key: Key,
        changes: Mapping[str, Any],
        *,
        lease: SyncLease | None = None,
        token: int | None = None,
        idempotency_key: str | None = None,
    ) -> SyncQueuedWrite[Row]:
        """Queue a change of columns of one row; its result is the row."""
        return SyncQueuedWrite(
            self._loop.run(
                lambda: self.asynchronous.patch(
                    table,
                    key,
                    changes,
                    lease=None if lease is None else lease.asynchronous,
                    token=token,
                    idempotency_key=idempotency_key,
                )
            ),
            self._loop,
        )

    def put(
        self,
        table: str,
        key: Key,
        row: Mapping[str, Any],
        *,
        lease: SyncLease | None = None,
        token: int | None = None,
        idempotency_key: str | None = None,
    ) -> SyncQueuedWrite[Row]:
        """Queue that one row is created or replaced; its result is the row."""
        return SyncQueuedWrite(
            self._loop.run(
                lambda: self.asynchronous.put(
                    table,
                    key,
                    row,
                    lease=None if lease is None else lease.asynchronous,
                    token=token,
                    idempotency_key=idempotency_key,
                )
            ),
            self._loop,
        )

    def delete(
        self,
        table: str,
        key: Key,
        *,
        lease: SyncLease | None = None,
        token: int | None = None,
        idempotency_key: str | None = None,
    ) -> SyncQueuedWrite[None]:
        """Queue the deletion of one row; its result is None."""
        return SyncQueuedWrite(
            self._loop.run(
                lambda: self.asynchronous.delete(
                    table,
                    key,
                    lease=None if lease is None else lease.asynchronous,
                    token=token,
                    idempotency_key=idempotency_key,
                )
            ),
            self._loop,
        )

    def queued(self, write_id: str) -> SyncQueuedWrite[Any]:
        """Give a write that was queued before, maybe by another process; its result is the JSON of its answer."""
        return SyncQueuedWrite(self.asynchronous.queued(write_id), self._loop)


# `SyncClient.submit`: writes to be queued, for code that is not asynchronous.


class SyncSubmit(SyncSubmitCalls):
    """Writes that are queued instead of done at once, as `Submit` has them."""

    def __init__(self, submit: Submit, loop: Loop) -> None:
        self.asynchronous = submit
        self._loop = loop


class SyncClientCalls:
    """The calls of a SyncClient."""

    _client: Client
    _loop: Loop

    def __init__(
        self,
        url: str,
        *,
        token: Token | None = None,
        owner: str | None = None,
        retry: Retry = DEFAULT_RETRY,
        timeout: float = 30.0,
        headers: Mapping[str, str] | None = None,
        verify: ssl.SSLContext | bool = True,
        decimals: bool = False,
        transport: httpx.AsyncBaseTransport | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._loop = Loop()
        self._client = Client(
            url,
            token=token,
            owner=owner,
            retry=retry,
            timeout=timeout,
            headers=headers,
            verify=verify,
            decimals=decimals,
            transport=transport,
            clock=clock,
        )

    def lock(
        self,
        name: Names,
        *,
        ttl: float = 30.0,
        wait: float | None = 0.0,
        claim: Claims = False,
        owner: str | None = None,
        tokens: int = FIRST_TOKENS,
        margin: float | None = None,
        source: str | None = None,
        writes: Writes = (),
    ) -> SyncLock:
        """Give a lock, or several that are taken together, for a `with`. Times in seconds; ValueError if
        they make no sense.

        ttl: how long the lease outlives us; it is renewed at a third of it.
        wait: how long to queue for it before LockHeld; None: for ever.
        claim: True claims what the locks are named after, together with the grant: older holders are fenced off before
            we have written (R7). Or the names of other resources.
        tokens: how many to draw with the grant; more are minted when they are used up.
        margin: stop trusting the lease so long before it expires; default 5 % of ttl, at least 20 ms.
        source: the lock service to take it from, by the name that the gateway has for it; default its own, builtin.
        writes: what the tokens may be used for where the gateway seals them, beside what the locks are named after and
            what is claimed: resources, or `orders/*`.
        """
        return SyncLock(
            self._client.lock(
                name,
                ttl=ttl,
                wait=wait,
                claim=claim,
                owner=owner,
                tokens=tokens,
                margin=margin,
                source=source,
                writes=writes,
            ),
            self._loop,
        )

    def locks(self, name: str | None = None, *, source: str | None = None) -> list[LockState]:
        """Return the locks of a source that are held or waited for, by name; or the one of this name, if it is."""
        return self._loop.run(lambda: self._client.locks(name, source=source))

    @property
    def submit(self) -> SyncSubmit:
        """Writes that are queued instead of done at once: `client.submit.patch("orders", "order-1", {…})`."""
        return SyncSubmit(self._client.submit, self._loop)

    def batch_atomic(self, lines: Iterable[Line]) -> list[Verdict]:
        """Send writes and claims that land all, or none, in one transaction: their verdicts, in order.

        The first line that is refused is raised as what a call of it would have raised; its number is
        `error.problem.members["line"]`. Lines are as in `batch`, at most as many as FENCEPOST_MAX_ROWS of the gateway.
        """
        return self._loop.run(lambda: self._client.batch_atomic(lines))

    def claim(
        self,
        resource: str,
        *,
        lease: SyncLease | None = None,
        token: int | None = None,
        idempotency_key: str | None = None,
    ) -> Claimed:
        """Raise the resource's mark without writing, and return the row: no older holder can write from now on (R7)."""
        return self._loop.run(
            lambda: self._client.claim(
                resource,
                lease=None if lease is None else lease.asynchronous,
                token=token,
                idempotency_key=idempotency_key,
            )
        )

    def fence(self, resource: str) -> FenceState:
        """Return what is known of a resource: mark, rule, source, story."""
        return self._loop.run(lambda: self._client.fence(resource))

    def elect(
        self,
        name: str,
        *,
        ttl: float = 30.0,
        wait: float | None = None,
        claim: Claims = False,
        also: Names = (),
        owner: str | None = None,
        margin: float | None = None,
        source: str | None = None,
        writes: Writes = (),
    ) -> SyncCampaign:
        """Give a candidacy for a `with`, whose body runs while we lead. Arguments as for `lock`; seconds.

        ttl: how long after its last renewal a leader that is gone is still taken for one.
        wait: how long to wait to be elected before LockHeld; default: for ever.
        claim: True claims what has the election's name, and those of `also`, together with the grant: older leaders are
            fenced off (R7). Or the names of other resources.
        also: further locks that the leader holds, and is elected with or not at all; with the built-in source.
        writes: what the leader may write where the gateway seals tokens: resources, or `orders/*`.
        """
        return SyncCampaign(
            self._client.elect(
                name,
                ttl=ttl,
                wait=wait,
                claim=claim,
                also=also,
                owner=owner,
                margin=margin,
                source=source,
                writes=writes,
            ),
            self._loop,
        )

    def leader(self, name: str, *, source: str | None = None) -> Leader | None:
        """Return who leads, as of a moment ago; None: there is no leader."""
        return self._loop.run(lambda: self._client.leader(name, source=source))


class SyncRowCalls:
    """Those of a SyncClient that are about rows."""

    _client: Client
    _loop: Loop

    def get(self, table: str, key: Key, *, select: str | None = None) -> Row:
        """Return one row; RowNotFound if there is none."""
        return self._loop.run(lambda: self._client.get(table, key, select=select))

    def select(
        self,
        table: str,
        filters: Filters = (),
        *,
        select: str | None = None,
        order: str | None = None,
        limit: int | None = None,
        offset: int | None = None,
    ) -> list[Row]:
        """Return the rows that match all filters: `select("orders", {"status": "eq.new"}, order="amount.desc")`."""
        return self._loop.run(
            lambda: self._client.select(table, filters, select=select, order=order, limit=limit, offset=offset)
        )

    @overload
    def post(
        self,
        table: str,
        rows: Mapping[str, Any],
        *,
        lease: SyncLease | None = None,
        token: int | None = None,
        idempotency_key: str | None = None,
    ) -> Row: ...

    @overload
    def post(
        self,
        table: str,
        rows: Sequence[Mapping[str, Any]],
        *,
        lease: SyncLease | None = None,
        token: int | None = None,
        idempotency_key: str | None = None,
    ) -> list[Row]: ...

    @overload
    def post(
        self,
        table: str,
        rows: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        lease: SyncLease | None = None,
        token: int | None = None,
        idempotency_key: str | None = None,
    ) -> Row | list[Row]: ...

    def post(
        self,
        table: str,
        rows: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        lease: SyncLease | None = None,
        token: int | None = None,
        idempotency_key: str | None = None,
    ) -> Row | list[Row]:
        """Insert a row, or several in one transaction; returns what was stored."""
        return self._loop.run(
            lambda: self._client.post(
                table,
                rows,
                lease=None if lease is None else lease.asynchronous,
                token=token,
                idempotency_key=idempotency_key,
            )
        )

    def patch(
        self,
        table: str,
        key: Key,
        changes: Mapping[str, Any],
        *,
        lease: SyncLease | None = None,
        token: int | None = None,
        idempotency_key: str | None = None,
    ) -> Row:
        """Change columns of one row; returns the row. RowNotFound if there is none."""
        return self._loop.run(
            lambda: self._client.patch(
                table,
                key,
                changes,
                lease=None if lease is None else lease.asynchronous,
                token=token,
                idempotency_key=idempotency_key,
            )
        )

    def put(
        self,
        table: str,
        key: Key,
        row: Mapping[str, Any],
        *,
        lease: SyncLease | None = None,
        token: int | None = None,
        idempotency_key: str | None = None,
    ) -> Row:
        """Create or replace one row; columns that are left out get their defaults. Returns the row."""
        return self._loop.run(
            lambda: self._client.put(
                table,
                key,
                row,
                lease=None if lease is None else lease.asynchronous,
                token=token,
                idempotency_key=idempotency_key,
            )
        )

    def delete(
        self,
        table: str,
        key: Key,
        *,
        lease: SyncLease | None = None,
        token: int | None = None,
        idempotency_key: str | None = None,
    ) -> None:
        """Delete one row; its mark stays. RowNotFound if there is none."""
        self._loop.run(
            lambda: self._client.delete(
                table,
                key,
                lease=None if lease is None else lease.asynchronous,
                token=token,
                idempotency_key=idempotency_key,
            )
        )

    def patch_where(
        self,
        table: str,
        filters: Filters,
        changes: Mapping[str, Any],
        *,
        lease: SyncLease | None = None,
        token: int | None = None,
        idempotency_key: str | None = None,
    ) -> list[Row]:
        """Change columns of every row that matches, or of none (R10); returns the rows. ValueError without a filter."""
        return self._loop.run(
            lambda: self._client.patch_where(
                table,
                filters,
                changes,
                lease=None if lease is None else lease.asynchronous,
                token=token,
                idempotency_key=idempotency_key,
            )
        )

    def patch_rows(
        self,
        table: str,
        rows: Sequence[Mapping[str, Any]],
        *,
        lease: SyncLease | None = None,
        token: int | None = None,
        idempotency_key: str | None = None,
    ) -> list[Row]:
        """Change many rows, each by its own mapping, or none (R10); returns them in this order. A mapping has the
        columns of the key and those to change, all have the same. RowNotFound if a row is not there.
        """
        return self._loop.run(
            lambda: self._client.patch_rows(
                table,
                rows,
                lease=None if lease is None else lease.asynchronous,
                token=token,
                idempotency_key=idempotency_key,
            )
        )

    def delete_where(
        self,
        table: str,
        filters: Filters,
        *,
        lease: SyncLease | None = None,
        token: int | None = None,
        idempotency_key: str | None = None,
    ) -> list[Row]:
        """Delete every row that matches, or none (R10); returns the rows. ValueError without a filter."""
        return self._loop.run(
            lambda: self._client.delete_where(
                table,
                filters,
                lease=None if lease is None else lease.asynchronous,
                token=token,
                idempotency_key=idempotency_key,
            )
        )


# The client for code that is not asynchronous: the same one, on an event loop in a thread of its own.
#
# So a lease is renewed while its holder computes. All methods may be called from any thread.


class SyncClient(SyncClientCalls, SyncRowCalls):
    """A client of the gateway at `url`: `with SyncClient(url) as c:`. Arguments and methods are those of `Client`.

    A lock's body cannot be cancelled from outside here: ask `lease.trusted` in long computations.
    """

    def __enter__(self) -> Self:
        self._loop.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Wait for releases that are still under way (seconds), close all connections, and end the thread."""
        try:
            if not self._loop.is_of_another_process:  # which closes its connections itself
                self._loop.run(self._client.aclose)
        finally:
            self._loop.close()

    def batch(self, lines: Iterable[Line]) -> Generator[Verdict, None, None]:
        """Send many writes and claims: `for verdict in client.batch(lines)`; see `Client.batch`. Lines are taken in the
        caller's thread, so many at a time as a request has, or as there are when one has kept it waiting.
        """
        exchange = self._client._exchange  # noqa: SLF001 - the two are one client
        for first, chunk in _requests(lines):
            verdicts, failed = self._loop.run(partial(decide, exchange, chunk, first))
            yield from verdicts
            if failed is not None:
                raise failed

    def leaders(self, name: str, *, source: str | None = None) -> Generator[Leader | None, None, None]:
        """Observe an election: `for leader in client.leaders("scheduler")`; see `Client.leaders`."""
        observed = self._client.leaders(name, source=source)

        async def following() -> Leader | None:
            return await anext(observed)

        async def close() -> None:
            await observed.aclose()

        try:
            while True:
                yield self._loop.run(following)
        finally:
            with contextlib.suppress(RuntimeError):  # the client is closed already, and the stream with it
                self._loop.run(close)


def _requests(lines: Iterable[Line]) -> Iterator[tuple[int, list[Ready]]]:
    """Gather the lines of a request, for as long as they come quickly; with the number of its first one."""
    clock, chunk, size, number = SystemClock(), list[Ready](), 0, 0
    due = clock.now() + SECONDS
    for number, line in enumerate(lines, 1):
        ready = as_sent(number, line)
        full = size + len(ready.text) > MOST_BYTES
        if chunk and (full or len(chunk) == MOST_LINES):
            yield number - len(chunk), chunk
            chunk, size, due = [], 0, clock.now() + SECONDS
        chunk.append(ready)
        size += len(ready.text)
        if clock.now() >= due:
            yield number - len(chunk) + 1, chunk
            chunk, size, due = [], 0, clock.now() + SECONDS
    if chunk:
        yield number - len(chunk) + 1, chunk
