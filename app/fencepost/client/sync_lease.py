"""The loop in a thread on which `SyncClient` runs, and leases and terms for programs without asyncio."""

import asyncio
import contextlib
import functools
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from datetime import datetime
from types import TracebackType
from typing import Any, TypeVar

from fencepost.client.answers import Claimed, FenceToken, Row
from fencepost.client.elections import Campaign, Term
from fencepost.client.errors import LeaseLost
from fencepost.client.lease import Lease
from fencepost.client.lock import Lock

T = TypeVar("T")


class Loop:
    """An event loop in a thread of its own, from `open` to `close`.

    A daemon thread: a program that forgets to close its client ends all the same, and its leases with it. A process
    that is forked has no such thread: there nothing can be run.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closing = asyncio.Event()
        self._process = 0
        """The process that has the thread."""

    def open(self) -> None:
        """Start the thread."""
        if self._loop is not None:
            raise RuntimeError("this SyncClient is already open")
        ready: Future[asyncio.AbstractEventLoop] = Future()
        self._closing = asyncio.Event()
        serve = functools.partial(self._serve, ready, self._closing)
        self._thread = threading.Thread(target=lambda: asyncio.run(serve()), name="fencepost client", daemon=True)
        self._thread.start()
        self._loop, self._process = ready.result(), os.getpid()

    def close(self) -> None:
        """End the thread, and what still runs in it."""
        loop, self._loop = self._loop, None
        if loop is not None and self._thread is not None and self._process == os.getpid():
            loop.call_soon_threadsafe(self._closing.set)
            self._thread.join()

    @property
    def is_of_another_process(self) -> bool:
        """Whether this process was forked from the one that has the thread."""
        return self._loop is not None and self._process != os.getpid()

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do the work in the loop, and wait for it. An interrupt (Ctrl-C) of the waiting thread cancels the work."""
        if self._loop is None:
            raise RuntimeError("this SyncClient is not open: `with SyncClient(url) as c:`")
        if self.is_of_another_process:
            raise RuntimeError(
                f"this SyncClient was opened by the process {self._process}, from which this one was forked: its thread"
                " and its connections are there. Open a SyncClient in each process, after the fork"
            )
        future = asyncio.run_coroutine_threadsafe(work(), self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    @staticmethod
    async def _serve(ready: "Future[asyncio.AbstractEventLoop]", closing: asyncio.Event) -> None:
        ready.set_result(asyncio.get_running_loop())
        await closing.wait()


class SyncLeaseCalls:
    """The calls of a SyncLease."""

    asynchronous: Lease
    _loop: Loop

    @property
    def id(self) -> str:
        """The lease's public id."""
        return self.asynchronous.id

    @property
    def secret(self) -> str:
        """What renews, mints and releases; keep it."""
        return self.asynchronous.secret

    @property
    def locks(self) -> tuple[str, ...]:
        """The names of all its locks."""
        return self.asynchronous.locks

    @property
    def owner(self) -> str:
        """The holder's name, as others see it."""
        return self.asynchronous.owner

    @property
    def ttl(self) -> float:
        """Seconds."""
        return self.asynchronous.ttl

    @property
    def granted_at(self) -> datetime | None:
        """When it was granted, by the database's clock."""
        return self.asynchronous.granted_at

    @property
    def expires_at(self) -> datetime | None:
        """When it would have expired, as of the grant, by the database's clock."""
        return self.asynchronous.expires_at

    @property
    def claims(self) -> tuple[Claimed, ...]:
        """What was claimed with the grant, in the order of the claims asked for."""
        return self.asynchronous.claims

    @property
    def lock(self) -> str | None:
        """The lock's name; None if the lease has several."""
        return self.asynchronous.lock

    @property
    def row(self) -> Row | None:
        """The row that the claim returned, as it is behind the fence; None where the key has no row.

        LookupError if the lock was not acquired with exactly one claim: `claims` has them all.
        """
        return self.asynchronous.row

    @property
    def trusted(self) -> bool:
        """Whether the lease can be trusted at this moment, by the clock. Once it was False it stays False."""
        return self.asynchronous.trusted

    @property
    def remaining(self) -> float:
        """Seconds of trust that are left unless a renewal comes; 0 once it has ended."""
        return self.asynchronous.remaining

    def check(self) -> None:
        """Raise LeaseLost unless the lease can be trusted at this moment."""
        self.asynchronous.check()

    def next_token(self) -> FenceToken:
        """Return a fresh token, larger than all before it: for one operation on each resource, and never used twice.

        Mints a block when there is none left. LeaseLost if the lease is not trusted.
        """
        return self._loop.run(self.asynchronous.next_token)

    def claim(self, resource: str) -> Row | None:
        """Claim with a fresh token: no older holder can write from now on. Returns the row behind the fence (R7)."""
        return self._loop.run(lambda: self.asynchronous.claim(resource))

    def release(self) -> None:
        """Give the lock back. Errors are logged, not raised: a release that is not delivered is left to the TTL.

        Leaving the `with` does it. Repeating it, or releasing what is lost, is harmless.
        """
        self._loop.run(self.asynchronous.release)


class SyncTermCalls:
    """Those that a SyncTerm has besides."""

    asynchronous: Term
    _loop: Loop

    @property
    def election(self) -> str:
        """The election's name."""
        return self.asynchronous.election

    @property
    def term(self) -> int:
        """The number of the lease. A later leader's is larger."""
        return self.asynchronous.term


# Leases and locks for code that is not asynchronous: each call runs in the client's own loop.


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


# Leader election for code that is not asynchronous.


class SyncTerm(SyncTermCalls, SyncLease):
    """A leader's lease, as `Term` is."""

    def __init__(self, term: Term, loop: Loop) -> None:
        super().__init__(term, loop)
        self.asynchronous: Term = term


class SyncCampaign(SyncLock):
    """Used once, with `with`. Entering returns when we are elected; LockHeld when the wait is over."""

    def __init__(self, campaign: Campaign, loop: Loop) -> None:
        super().__init__(campaign, loop)

    def __enter__(self) -> SyncTerm:
        term = super().__enter__()
        if not isinstance(term, SyncTerm):
            raise TypeError(f"a campaign ended with {term!r}")
        return term

    def _make_lease(self, lease: Lease) -> SyncLease:
        return SyncTerm(lease, self._loop) if isinstance(lease, Term) else super()._make_lease(lease)
