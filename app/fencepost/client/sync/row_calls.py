"""Calls that are passed on to the asynchronous client, on the event loop of the synchronous one."""

from collections.abc import Mapping, Sequence
from typing import Any, overload

from fencepost.client.answers import Row
from fencepost.client.client import Client
from fencepost.client.keys import Key
from fencepost.client.rows.calls import Filters
from fencepost.client.sync.leases import SyncLease
from fencepost.client.sync.loop import Loop


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
