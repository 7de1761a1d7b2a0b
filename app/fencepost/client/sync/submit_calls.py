"""Calls that are passed on to the asynchronous client, on the event loop of the synchronous one."""

from collections.abc import Mapping
from typing import Any

from fencepost.client.answers import Row
from fencepost.client.keys import Key
from fencepost.client.queued.submit import Submit
from fencepost.client.sync.leases import SyncLease
from fencepost.client.sync.loop import Loop
from fencepost.client.sync.queued_write import SyncQueuedWrite


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
