"""Leader election: `async with client.elect("scheduler") as term:` campaigns, leads while the body runs, and resigns.

To lead is to hold the lock `election/NAME`, so a term is a lease: it is renewed by itself, and trusted no longer than
it certainly lasts. What the leader writes is fenced by its term: `lease=term`.
"""

from collections.abc import AsyncGenerator
from typing import Final

from fencepost.client.answers import GrantAnswer
from fencepost.client.elections.observing import Leader, election_call, leader_in, leaders
from fencepost.client.http.exchange import Exchange
from fencepost.client.leases.acquire_request import (
    FIRST_TOKENS,
    Claims,
    Names,
    Writes,
    make_acquire_request,
    several,
)
from fencepost.client.leases.acquiring import AcquireRequest
from fencepost.client.leases.lease import Lease
from fencepost.client.leases.lock import Lock
from fencepost.client.leases.pending_releases import PendingReleases
from fencepost.client.leases.trust import Timings

PREFIX: Final = "election/"


class Term(Lease):
    """What `async with client.elect(…) as term` gives: the lease of a leader."""

    election: str
    """The election's name."""
    term: int
    """The number of the lease. A later leader's is larger."""

    def __init__(
        self,
        exchange: Exchange,
        request: AcquireRequest,
        granted: GrantAnswer,
        timings: Timings,
        *,
        trusted_from: float,
    ) -> None:
        super().__init__(exchange, request, granted, timings, trusted_from=trusted_from)
        self.election = request.locks[0].removeprefix(PREFIX)
        self.term = int(granted.lease_id.rpartition("-")[2])

    def __repr__(self) -> str:
        return f"<Term {self.term} of {self.election}, {self.remaining:.3f} s of trust left>"


class Campaign(Lock):
    """Used once, with `async with`. Entering returns when we are elected; LockHeld when the wait is over."""

    async def __aenter__(self) -> Term:
        term = await super().__aenter__()
        if not isinstance(term, Term):
            raise TypeError(f"a campaign ended with {term!r}")
        return term

    def _make_lease(self, granted: GrantAnswer, timings: Timings, trusted_from: float) -> Lease:
        return Term(self._exchange, self._request, granted, timings, trusted_from=trusted_from)


class Elections:
    """The methods of `Client` that are about elections."""

    _exchange: Exchange
    _pending: PendingReleases
    _owner: str

    def elect(  # noqa: PLR0913 - all but the name have a default
        self,
        name: str,
        *,
        ttl: float = 30.0,
        wait: float | None = None,
        claim: Claims = False,
        also: Names = (),
        owner: str | None = None,
        margin: float | None = None,
        cancel_on_loss: bool = False,
        source: str | None = None,
        writes: Writes = (),
    ) -> Campaign:
        """Give a candidacy for an `async with`, whose body runs while we lead. Arguments as for `lock`; seconds.

        ttl: how long after its last renewal a leader that is gone is still taken for one.
        wait: how long to wait to be elected before LockHeld; default: for ever.
        claim: True claims what has the election's name, and those of `also`, together with the grant: older leaders are
            fenced off (R7). Or the names of other resources.
        also: further locks that the leader holds, and is elected with or not at all; with the built-in source.
        writes: what the leader may write where the gateway seals tokens: resources, or `orders/*`.
        """
        others = several(also)
        request = make_acquire_request(
            (_lock_of(name), *others),
            ttl=ttl,
            wait=wait,
            claim=(name, *others) if claim is True else claim,
            owner=owner or self._owner,
            tokens=FIRST_TOKENS,
            source=source,
            writes=writes,
        )
        return Campaign(self._exchange, self._pending, request, margin=margin, cancel_on_loss=cancel_on_loss)

    async def leader(self, name: str, *, source: str | None = None) -> Leader | None:
        """Return who leads, as of a moment ago; None: there is no leader."""
        return leader_in((await self._exchange.repeat(election_call(name, source))).body)

    def leaders(self, name: str, *, source: str | None = None) -> AsyncGenerator[Leader | None, None]:
        """Observe an election: `async for leader in client.leaders("scheduler")` gives the leader (None: no leader),
        and the next one whenever that changes. It never ends by itself.

        It connects again by itself, and leaves out terms that began and ended meanwhile. Unavailable when the gateway
        cannot be asked for as long as `retry` says: who leads is not known then.
        """
        return leaders(self._exchange, name, source)


def _lock_of(name: str) -> str:
    if not name:
        raise ValueError("elect: an election has a name")
    return PREFIX + name
