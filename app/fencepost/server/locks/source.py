"""The Protocol of a token source: a lock service whose locks Fencepost takes on its clients' behalf (R12).

A source knows locks by name, and nothing of tables, leases or secrets: those are the business of
`locks/source_leases/leases.py`, which keeps each lease in PostgreSQL and asks the source. Any process of the gateway
may be asked to renew, mint or release what another one acquired: all that is needed for it is in the Grant's `handle`,
a text that is stored.

What every source keeps to, and `tests/conformance` checks on its real server:

1. Mutual exclusion as far as the service can give it, and tokens that rise with each grant whatever it cannot.
2. **The first act of an owner is a mint.** Services that queue number a waiter's node before the owner's later mints:
   a token is drawn once the lock is owned, never taken from the moment of queueing.
3. `mint` draws only while the lock is held, decided by the service in one step with the draw. A client that has lost
   the lock gets None, and so does `renew` (False). Neither is an error; that the service cannot be asked is one.
4. `release` ends only the owner's own hold, and may be repeated.
5. A cancelled `acquire` leaves the queue, and gives back what it may have been granted; what it cannot give back
   expires by itself within the TTL.
6. Nothing waits longer for an answer than REQUEST_TIMEOUT: an unreachable service is SourceUnavailableError.
"""

from dataclasses import dataclass
from typing import Final, Literal, Protocol

REQUEST_TIMEOUT: Final = 3.0
"""Seconds that one request to a lock service may take."""
MOST_NATIVE: Final = 2**48 - 1
"""A token is generation * 2^48 + the service's own number (R12)."""


class SourceError(Exception):
    """A source could not do what was asked. The message is one sentence for the caller of the gateway."""


class SourceUnavailableError(SourceError):
    """The service cannot be asked, or its answer got lost. Whatever it may have granted expires by itself."""


class SourceQuarantinedError(SourceError):
    """The source's numbers went backwards, and nothing is taken from it until its generation is raised (R12)."""


class SourceNameError(SourceError):
    """The service cannot have a lock of this name: the caller has to ask for another. The message says which it has."""


class SourceConfigError(SourceError):
    """The source's URL is wrong, or a library is missing. The message names the remedy."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a source promises; the conformance suite skips by these and nothing else.

    order: how far its numbers can be compared. `source`: over all its locks. `lock`: within one lock. `database`: it
        has no number of its own that rises; `locks/source_leases/leases.py` draws tokens in PostgreSQL after the
        grant.
    fair: waiters are served first come, first served.
    verifies: `issued` knows whether a number was handed out.
    least_ttl_ms: the shortest TTL; a shorter one is lengthened to it.
    ttl_from_server: the service itself ends a hold whose TTL has run out. Otherwise the hold lives as long as a session
        of the process that acquired it, and that process ends it when the lease is over.
    """

    order: Literal["source", "lock", "database"]
    fair: bool
    verifies: bool
    least_ttl_ms: int = 1
    ttl_from_server: bool = True


@dataclass(frozen=True, slots=True)
class Grant:
    """A lock that is ours. `tokens` are the service's own numbers, rising, as many as were asked for; none where
    Capabilities.order is `database`.
    """

    handle: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has a lock, as far as the service shows it. `expires_ms`: time that is left, where it is known."""

    owner: str | None = None
    expires_ms: int | None = None


class Source(Protocol):
    """A lock service. One object per process and configured source, for one event loop."""

    @property
    def capabilities(self) -> Capabilities: ...

    async def open(self) -> None:
        """Get ready. Does not need the service to be there: a gateway starts without it."""
        ...

    async def close(self) -> None:
        """Close connections. Holds stay until their TTL ends, or with the session that they live by."""
        ...

    async def acquire(self, lock: str, *, owner: str, ttl_ms: int, tokens: int, wait_s: float) -> Grant | Holder:
        """Take a lock, waiting for it at most `wait_s`; 0 tries once. A Holder in place of a Grant is who has it.

        lock: any text of 1 to 512 bytes without control characters, slashes included. owner: for people who look into
        the service. Raises SourceError; SourceNameError where the service has further rules for names.
        """
        ...

    async def renew(self, lock: str, handle: str, ttl_ms: int) -> bool:
        """Let the hold live for `ttl_ms` from now on. False: it is lost. Raises SourceError."""
        ...

    async def mint(self, lock: str, handle: str, count: int) -> tuple[int, ...] | None:
        """Draw more tokens under a hold, each higher than any before. None: it is lost. Raises SourceError."""
        ...

    async def release(self, lock: str, handle: str) -> None:
        """End the hold, if it is there. Raises SourceError."""
        ...

    async def inspect(self, lock: str) -> Holder | None:
        """Return who has the lock; None: it is free. Raises SourceError."""
        ...

    async def issued(self, number: int) -> bool:
        """Whether the service has handed out this number, or a higher one. Only where `verifies`."""
        ...

    async def advice(self) -> list[str]:
        """List what in the service's settings makes its tokens repeat or its locks unsafe, one sentence each, for
        `fencepost doctor`. Raises SourceError.
        """
        ...
