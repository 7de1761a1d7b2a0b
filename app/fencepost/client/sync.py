"""The client for code that is not asynchronous: the same one, on an event loop in a thread of its own.

So a lease is renewed while its holder computes. All methods may be called from any thread.
"""

import ssl
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self, overload

import httpx

from fencepost.client.answers import Claimed, FenceState, LockState, Row
from fencepost.client.calls import Filters
from fencepost.client.client import Client
from fencepost.client.clock import Clock
from fencepost.client.keys import Key
from fencepost.client.lease import Lease
from fencepost.client.retry import DEFAULT_RETRY, Retry
from fencepost.client.sync_electing import SyncElections
from fencepost.client.sync_lease import Loop, SyncLease, SyncLock
from fencepost.client.wishes import FIRST_TOKENS, Claims, Names


class SyncClient(SyncElections):
    """A client of the gateway at `url`: `with SyncClient(url) as c:`. Arguments and methods are those of `Client`.

    A lock's body cannot be cancelled from outside here: ask `lease.trusted` in long computations.
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
        self._loop = Loop()
        self._client = Client(
            url,
            owner=owner,
            retry=retry,
            timeout=timeout,
            headers=headers,
            verify=verify,
            decimals=decimals,
            transport=transport,
            clock=clock,
        )

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
            self._loop.run(self._client.aclose)
        finally:
            self._loop.close()

    # Locks

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
    ) -> SyncLock:
        """Give a lock, or several that are taken together, for a `with`; see `Client.lock`."""
        lock = self._client.lock(
            name, ttl=ttl, wait=wait, claim=claim, owner=owner, tokens=tokens, margin=margin, source=source
        )
        return SyncLock(lock, self._loop)

    def locks(self, name: str | None = None, *, source: str | None = None) -> list[LockState]:
        """Return the locks of a source that are held or waited for, by name; or the one of this name, if it is."""
        return self._loop.run(lambda: self._client.locks(name, source=source))

    # Fences

    def claim(
        self,
        resource: str,
        *,
        lease: SyncLease | None = None,
        token: int | None = None,
        idempotency_key: str | None = None,
    ) -> Claimed:
        """Raise the resource's mark without writing, and return the row (R7)."""
        return self._loop.run(
            lambda: self._client.claim(resource, lease=_inner(lease), token=token, idempotency_key=idempotency_key)
        )

    def fence(self, resource: str) -> FenceState:
        """Return what is known of a resource: mark, rule, source, story."""
        return self._loop.run(lambda: self._client.fence(resource))

    # Rows

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
        """Return the rows that match all filters."""
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

        async def post() -> Row | list[Row]:
            if isinstance(rows, Mapping):
                return await self._client.post(
                    table, rows, lease=_inner(lease), token=token, idempotency_key=idempotency_key
                )
            return await self._client.post(
                table, rows, lease=_inner(lease), token=token, idempotency_key=idempotency_key
            )

        return self._loop.run(post)

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
                table, key, changes, lease=_inner(lease), token=token, idempotency_key=idempotency_key
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
            lambda: self._client.put(table, key, row, lease=_inner(lease), token=token, idempotency_key=idempotency_key)
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
            lambda: self._client.delete(table, key, lease=_inner(lease), token=token, idempotency_key=idempotency_key)
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
        """Change columns of every row that matches, or of none (R10); returns the rows."""
        return self._loop.run(
            lambda: self._client.patch_where(
                table, filters, changes, lease=_inner(lease), token=token, idempotency_key=idempotency_key
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
        """Change many rows, each as its mapping says, or none (R10); returns them in this order."""
        return self._loop.run(
            lambda: self._client.patch_rows(
                table, rows, lease=_inner(lease), token=token, idempotency_key=idempotency_key
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
        """Delete every row that matches, or none (R10); returns the rows."""
        return self._loop.run(
            lambda: self._client.delete_where(
                table, filters, lease=_inner(lease), token=token, idempotency_key=idempotency_key
            )
        )


def _inner(lease: SyncLease | None) -> Lease | None:
    return None if lease is None else lease.asynchronous
