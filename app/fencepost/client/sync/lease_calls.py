"""Calls that are passed on to the asynchronous client, on the event loop of the synchronous one."""

from datetime import datetime

from fencepost.client.answers import Claimed, Row
from fencepost.client.elections.campaign import Term
from fencepost.client.fence_token import FenceToken
from fencepost.client.leases.lease import Lease
from fencepost.client.sync.loop import Loop


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
