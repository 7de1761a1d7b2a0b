"""Calls that are passed on to the asynchronous client, on the event loop of the synchronous one.

Written by tools/sync_client.py, from client.py and electing.py. Do not edit: change these, and run `make format`.
"""

import ssl
from collections.abc import Mapping, Sequence
from typing import Any, overload

import httpx

from fencepost.client.acquire_request import FIRST_TOKENS, Claims, Names
from fencepost.client.answers import Claimed, FenceState, LockState, Row
from fencepost.client.calls import Filters
from fencepost.client.client import Client
from fencepost.client.clock import Clock
from fencepost.client.keys import Key
from fencepost.client.loop import Loop
from fencepost.client.observing import Leader
from fencepost.client.retry import DEFAULT_RETRY, Retry
from fencepost.client.sync_electing import SyncCampaign
from fencepost.client.sync_lease import SyncLease, SyncLock


class SyncClientCalls:
    """The calls of a SyncClient."""

    _client: Client
    _loop: Loop

    def __init__(
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
        """Give a lock, or several that are taken together, for a `with`. Times in seconds.

        ttl: how long the lease outlives us; it is renewed at a third of it.
        wait: how long to queue for it before LockHeld; None: for ever.
        claim: True claims what the locks are named after, together with the grant: older holders are fenced off before
            we have written (R7). Or the names of other resources.
        tokens: how many to draw with the grant; more are minted when they are used up.
        margin: stop trusting the lease so long before it expires; default 5 % of ttl, at least 20 ms.
        source: the lock service to take it from, by the name that the gateway has for it; default its own, builtin.

        ValueError for timings that make no sense.
        """
        return SyncLock(
            self._client.lock(
                name, ttl=ttl, wait=wait, claim=claim, owner=owner, tokens=tokens, margin=margin, source=source
            ),
            self._loop,
        )

    def locks(self, name: str | None = None, *, source: str | None = None) -> list[LockState]:
        """Return the locks of a source that are held or waited for, by name; or the one of this name, if it is."""
        return self._loop.run(lambda: self._client.locks(name, source=source))

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

    def elect(
        self,
        name: str,
        *,
        ttl: float = 30.0,
        wait: float | None = None,
        owner: str | None = None,
        margin: float | None = None,
        source: str | None = None,
    ) -> SyncCampaign:
        """Give a candidacy for a `with`, whose body runs while we lead. Arguments as for `lock`; seconds.

        ttl: how long after its last renewal a leader that is gone is still taken for one.
        wait: how long to wait to be elected before LockHeld; default: for ever.
        """
        return SyncCampaign(
            self._client.elect(name, ttl=ttl, wait=wait, owner=owner, margin=margin, source=source), self._loop
        )

    def leader(self, name: str, *, source: str | None = None) -> Leader | None:
        """Return who leads, as of a moment ago; None: there is no leader."""
        return self._loop.run(lambda: self._client.leader(name, source=source))
