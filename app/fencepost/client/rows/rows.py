"""The methods of a client that read and write rows."""

from collections.abc import Mapping, Sequence
from typing import Any, overload

from fencepost.client.answers import Row
from fencepost.client.http.exchange import Exchange
from fencepost.client.keys import Key, resource_of
from fencepost.client.leases.lease import Lease
from fencepost.client.rows import calls
from fencepost.client.rows.calls import Filters, SelectQuery
from fencepost.client.rows.writer import Writer


class Rows:
    """The methods of `Client` that are about rows."""

    _exchange: Exchange
    _writer: Writer

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
