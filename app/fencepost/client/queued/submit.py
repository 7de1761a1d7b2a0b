"""`client.submit`: the writes of single rows, to be queued."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from fencepost.client.answers import Row
from fencepost.client.errors import RowsNotKept
from fencepost.client.http.exchange import Exchange
from fencepost.client.keys import Key, resource_of
from fencepost.client.leases.lease import Lease
from fencepost.client.queued.write import QueuedWrite, read_submission
from fencepost.client.rows import calls
from fencepost.client.rows.writer import Writer

T = TypeVar("T")


class Submit:
    """Writes that are queued instead of done at once, with the arguments of the client's methods of the same names.

    Each returns when the write is kept: on disk, and on all replicas that the queue's settings ask for. Writes of one
    row are applied in the order in which they were kept. A table that was protected with `--queue` takes neither
    `lease` nor `token`: the place in the queue is the token. Any other takes one of them, and the fence judges the
    token when the write is applied, not before.

    Each submission is sent under an Idempotency-Key, and again under the same one when its answer gets lost.
    """

    def __init__(self, exchange: Exchange, writer: Writer) -> None:
        self._exchange = exchange
        self._writer = writer

    async def post(
        self,
        table: str,
        row: Mapping[str, Any],
        *,
        lease: Lease | None = None,
        token: int | None = None,
        idempotency_key: str | None = None,
    ) -> QueuedWrite[Row]:
        """Queue the insert of one row, which names its key; its result is the row."""
        return await self._submit(
            None, lease, token, idempotency_key, lambda fresh: calls.post(table, row, fresh), _first
        )

    async def patch(
        self,
        table: str,
        key: Key,
        changes: Mapping[str, Any],
        *,
        lease: Lease | None = None,
        token: int | None = None,
        idempotency_key: str | None = None,
    ) -> QueuedWrite[Row]:
        """Queue a change of columns of one row; its result is the row."""
        resource = resource_of(table, key)
        return await self._submit(
            resource, lease, token, idempotency_key, lambda fresh: calls.patch(table, key, changes, fresh), _row
        )

    async def put(
        self,
        table: str,
        key: Key,
        row: Mapping[str, Any],
        *,
        lease: Lease | None = None,
        token: int | None = None,
        idempotency_key: str | None = None,
    ) -> QueuedWrite[Row]:
        """Queue that one row is created or replaced; its result is the row."""
        resource = resource_of(table, key)
        return await self._submit(
            resource, lease, token, idempotency_key, lambda fresh: calls.put(table, key, row, fresh), _row
        )

    async def delete(
        self,
        table: str,
        key: Key,
        *,
        lease: Lease | None = None,
        token: int | None = None,
        idempotency_key: str | None = None,
    ) -> QueuedWrite[None]:
        """Queue the deletion of one row; its result is None."""
        resource = resource_of(table, key)
        return await self._submit(
            resource, lease, token, idempotency_key, lambda fresh: calls.delete(table, key, fresh), _nothing
        )

    def queued(self, write_id: str) -> QueuedWrite[Any]:
        """Give a write that was queued before, maybe by another process; its result is the JSON of its answer."""
        return QueuedWrite(self._exchange, write_id, _any)

    async def _submit(
        self,
        resource: str | None,
        lease: Lease | None,
        token: int | None,
        key: str | None,
        call: calls.WithToken,
        read: Callable[[Any], T],
    ) -> QueuedWrite[T]:
        answer = await self._writer.submit(resource, lease, token, key, call)
        return read_submission(self._exchange, answer, read)


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
