"""Leases and locks for code that is not asynchronous: each call runs in the client's own loop."""

import asyncio
import contextlib
from collections.abc import Iterator
from types import TracebackType

from fencepost.client.errors import LeaseLost
from fencepost.client.fence_token import FenceToken
from fencepost.client.leases.lease import Lease
from fencepost.client.leases.lock import Lock
from fencepost.client.sync.lease_calls import SyncLeaseCalls
from fencepost.client.sync.loop import Loop


class SyncLease(SyncLeaseCalls):
    """A lease, as `Lease` is, for code that is not asynchronous."""

    def __init__(self, lease: Lease, loop: Loop) -> None:
        self.asynchronous = lease
        self._loop = loop

    def __repr__(self) -> str:
        return repr(self.asynchronous).replace("<Lease", "<SyncLease", 1)

    def wait_lost(self, timeout: float | None = None) -> LeaseLost | None:
        """Wait until the lease is lost, and return why; None after `timeout` seconds."""

        async def wait() -> LeaseLost | None:
            try:
                return await asyncio.wait_for(self.asynchronous.lost, timeout)
            except TimeoutError:
                return None

        return self._loop.run(wait)

    @contextlib.contextmanager
    def operation(self, resource: str | None = None) -> Iterator[FenceToken]:
        """Give a fresh token when no other write of this lease is under way on the resource (None: on any)."""
        operation = self.asynchronous.operation(resource)
        token = self._loop.run(operation.__aenter__)
        try:
            yield token
        finally:
            self._loop.run(lambda: operation.__aexit__(None, None, None))


class SyncLock:
    """Used once, with `with`. Entering raises LockHeld when the wait is over, or why it could not be asked."""

    def __init__(self, lock: Lock, loop: Loop) -> None:
        self._lock = lock
        self._loop = loop

    def __enter__(self) -> SyncLease:
        settled = asyncio.Event()
        settled.set()  # until it begins

        async def enter() -> Lease:
            settled.clear()
            try:
                return await self._lock.__aenter__()
            finally:
                settled.set()

        async def leave_if_entered() -> None:
            await settled.wait()
            if self._lock.entered:
                await self._lock.__aexit__(None, None, None)

        try:
            return self._make_lease(self._loop.run(enter))
        except BaseException:
            # Ctrl-C may come when the lock is ours already: then it would never be left.
            self._loop.run(leave_if_entered)
            raise

    def _make_lease(self, lease: Lease) -> SyncLease:
        return SyncLease(lease, self._loop)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and self._loop.is_of_another_process:
            return  # which has the lease; what ends this one goes on
        self._loop.run(lambda: self._lock.__aexit__(kind, error, traceback))
