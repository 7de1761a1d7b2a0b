"""The asynchronous client of one gateway. Works on asyncio."""

import ssl
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self, overload

import httpx

from fencepost import __version__
from fencepost.client import calls
from fencepost.client.acquire_request import FIRST_TOKENS, Claims, Names, default_owner, make_acquire_request
from fencepost.client.answers import Claimed, FenceState, LockState, Row
from fencepost.client.calls import Filters, SelectQuery
from fencepost.client.clock import Clock, SystemClock
from fencepost.client.electing import Elections
from fencepost.client.exchange import Exchange
from fencepost.client.keys import Key, resource_of
from fencepost.client.lease import Lease, claim_call
from fencepost.client.lock import Background, Lock
from fencepost.client.retry import DEFAULT_RETRY, Retry
from fencepost.client.writing import Writer


class Client(Elections):
    """A client of the gateway at `url`, for one event loop. Close it: `async with Client(url) as c:` does.

    owner: the holder's name, as others see it; default `user@host:pid`.
    retry: how often a request is tried again, where that is safe.
    timeout: seconds for an answer (5 at most to connect); an acquire's wait comes on top.
    headers: sent with every request. verify: as httpx takes it.
    decimals: read numbers with a fraction as decimal.Decimal instead of float.
    transport, clock: for tests and for unusual networks.

    Every method raises an error of `fencepost.client.errors`; those that write take exactly one of `lease` and
    `token` (a token of a lock service of your own). Each write is sent under an Idempotency-Key, and again under the
    same one when its answer gets lost: it is done once. `idempotency_key` is for keys that outlive the process, so that
    a successor may repeat the write.
    """

    def __init__(  # noqa: PLR0913 - all but the URL have a default
        self,
        url: str,
        *,
        owner: str | None = None,
        retry: Retry = DEFAULT_RETRY,
        timeout: float = 30.0,
        headers: Mapping[str, str] | None = None,
        verify: ssl.SSLContext | bool = True,
        decimals: bool = False,
        transport: httpx.AsyncBaseTransport | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._owner = owner or default_owner()
        self._background = Background()
        self._exchange = Exchange(
            url,
            retry=retry,
            clock=clock or SystemClock(),
            timeout=timeout,
            headers={"User-Agent": f"fencepost-python/{__version__}", **(headers or {})},
            verify=verify,
            transport=transport,
            decimals=decimals,
        )
        self._writer = Writer(self._exchange)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Wait for releases that are still under way (seconds), and close all connections."""
        await self._background.drain()
        await self._exchange.aclose()

    # Locks

    def lock(  # noqa: PLR0913 - all but the name have a default
        self,
        name: Names,
        *,
        ttl: float = 30.0,
        wait: float | None = 0.0,
        claim: Claims = False,
        owner: str | None = None,
        tokens: int = FIRST_TOKENS,
        margin: float | None = None,
        cancel_on_loss: bool = False,
        source: str | None = None,
    ) -> Lock:
        """Give a lock, or several that are taken together, for an `async with`. Times in seconds.

        ttl: how long the lease outlives us; it is renewed at a third of it.
        wait: how long to queue for it before LockHeld; None: for ever.
        claim: True claims what the locks are named after, together with the grant: older holders are fenced off before
            we have written (R7). Or the names of other resources.
        tokens: how many to draw with the grant; more are minted when they are used up.
        margin: stop trusting the lease so long before it expires; default 5 % of ttl, at least 20 ms.
        cancel_on_loss: when the lease is lost, cancel the body; the `async with` raises LeaseLost then.
        source: the lock service to take it from, by the name that the gateway has for it; default its own, builtin.

        ValueError for timings that make no sense.
        """
        owner = owner or self._owner
        request = make_acquire_request(name, ttl=ttl, wait=wait, claim=claim, owner=owner, tokens=tokens, source=source)
        return Lock(self._exchange, self._background, request, margin=margin, cancel_on_loss=cancel_on_loss)

    async def locks(self, name: str | None = None, *, source: str | None = None) -> list[LockState]:
        """Return the locks of a source that are held or waited for, by name; or the one of this name, if it is."""
        found: list[LockState] = []
        while True:
            answer = await self._exchange.repeat(calls.locks(name, found[-1].name if found else None, source))
            page = [LockState.read(state) for state in answer.body]
            found += page
            if len(page) < calls.LOCKS_PER_PAGE:
                return found

    # Fences

    async def claim(
        self, resource: str, *, lease: Lease | None = None, token: int | None = None, idempotency_key: str | None = None
    ) -> Claimed:
        """Raise the resource's mark without writing, and return the row: no older holder can write from now on (R7)."""
        answer = await self._writer.write(
            resource, lease, token, idempotency_key, lambda fresh: claim_call(resource, fresh)
        )
        return Claimed.read(answer.body)

    async def fence(self, resource: str) -> FenceState:
        """Return what is known of a resource: mark, rule, source, story."""
        return FenceState.read((await self._exchange.repeat(calls.fence(resource))).body)

    # Rows

    async def get(self, table: str, key: Key, *, select: str | None = None) -> Row:
        """Return one row; RowNotFound if there is none."""
        row: Row = (await self._exchange.repeat(calls.get(table, key, select))).body
        return row

    async def select(
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
        query = SelectQuery(filters, select, order, limit, offset)
        rows: list[Row] = (await self._exchange.repeat(calls.select(table, query))).body
        return rows

    @overload
    async def post(
        self,
        table: str,
        rows: Mapping[str, Any],
        *,
        lease: Lease | None = None,
        token: int | None = None,
        idempotency_key: str | None = None,
    ) -> Row: ...

    @overload
    async def post(
        self,
        table: str,
        rows: Sequence[Mapping[str, Any]],
        *,
        lease: Lease | None = None,
        token: int | None = None,
        idempotency_key: str | None = None,
    ) -> list[Row]: ...

    @overload
    async def post(
        self,
        table: str,
        rows: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        lease: Lease | None = None,
        token: int | None = None,
        idempotency_key: str | None = None,
    ) -> Row | list[Row]: ...

    async def post(
        self,
        table: str,
        rows: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        lease: Lease | None = None,
        token: int | None = None,
        idempotency_key: str | None = None,
    ) -> Row | list[Row]:
        """Insert a row, or several in one transaction; returns what was stored."""
        answer = await self._writer.write(
            None, lease, token, idempotency_key, lambda fresh: calls.post(table, rows, fresh)
        )
        stored: list[Row] = answer.body
        return stored[0] if isinstance(rows, Mapping) else stored

    async def patch(
        self,
        table: str,
        key: Key,
        changes: Mapping[str, Any],
        *,
        lease: Lease | None = None,
        token: int | None = None,
        idempotency_key: str | None = None,
    ) -> Row:
        """Change columns of one row; returns the row. RowNotFound if there is none."""
        resource = resource_of(table, key)
        answer = await self._writer.write(
            resource, lease, token, idempotency_key, lambda fresh: calls.patch(table, key, changes, fresh)
        )
        row: Row = answer.body
        return row

    async def put(
        self,
        table: str,
        key: Key,
        row: Mapping[str, Any],
        *,
        lease: Lease | None = None,
        token: int | None = None,
        idempotency_key: str | None = None,
    ) -> Row:
        """Create or replace one row; columns that are left out get their defaults. Returns the row."""
        resource = resource_of(table, key)
        answer = await self._writer.write(
            resource, lease, token, idempotency_key, lambda fresh: calls.put(table, key, row, fresh)
        )
        stored: Row = answer.body
        return stored

    async def delete(
        self,
        table: str,
        key: Key,
        *,
        lease: Lease | None = None,
        token: int | None = None,
        idempotency_key: str | None = None,
    ) -> None:
        """Delete one row; its mark stays. RowNotFound if there is none."""
        resource = resource_of(table, key)
        await self._writer.write(resource, lease, token, idempotency_key, lambda fresh: calls.delete(table, key, fresh))

    async def patch_where(
        self,
        table: str,
        filters: Filters,
        changes: Mapping[str, Any],
        *,
        lease: Lease | None = None,
        token: int | None = None,
        idempotency_key: str | None = None,
    ) -> list[Row]:
        """Change columns of every row that matches, or of none (R10); returns the rows. ValueError without a filter."""
        answer = await self._writer.write(
            None, lease, token, idempotency_key, lambda fresh: calls.patch_where(table, filters, changes, fresh)
        )
        rows: list[Row] = answer.body
        return rows

    async def patch_rows(
        self,
        table: str,
        rows: Sequence[Mapping[str, Any]],
        *,
        lease: Lease | None = None,
        token: int | None = None,
        idempotency_key: str | None = None,
    ) -> list[Row]:
        """Change many rows, each by its own mapping, or none (R10); returns them in this order. A mapping has the
        columns of the key and those to change, all have the same. RowNotFound if a row is not there.
        """
        answer = await self._writer.write(
            None, lease, token, idempotency_key, lambda fresh: calls.patch_rows(table, rows, fresh)
        )
        changed: list[Row] = answer.body
        return changed

    async def delete_where(
        self,
        table: str,
        filters: Filters,
        *,
        lease: Lease | None = None,
        token: int | None = None,
        idempotency_key: str | None = None,
    ) -> list[Row]:
        """Delete every row that matches, or none (R10); returns the rows. ValueError without a filter."""
        answer = await self._writer.write(
            None, lease, token, idempotency_key, lambda fresh: calls.delete_where(table, filters, fresh)
        )
        rows: list[Row] = answer.body
        return rows
