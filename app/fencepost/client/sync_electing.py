"""Leader election for code that is not asynchronous."""

import contextlib
from collections.abc import Generator

from fencepost.client.client import Client
from fencepost.client.electing import Campaign, Term
from fencepost.client.lease import Lease
from fencepost.client.observing import Leader
from fencepost.client.sync_lease import Loop, SyncLease, SyncLock


class SyncTerm(SyncLease):
    """A leader's lease, as `Term` is."""

    def __init__(self, term: Term, loop: Loop) -> None:
        super().__init__(term, loop)
        self._term = term

    @property
    def election(self) -> str:
        """The election's name."""
        return self._term.election

    @property
    def term(self) -> int:
        """The lease's first token: a later leader's is larger."""
        return self._term.term


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


class SyncElections:
    """The methods of `SyncClient` that are about elections."""

    _loop: Loop
    _client: Client

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
        """Give a candidacy for a `with`, whose body runs while we lead; see `Client.elect`."""
        campaign = self._client.elect(name, ttl=ttl, wait=wait, owner=owner, margin=margin, source=source)
        return SyncCampaign(campaign, self._loop)

    def leader(self, name: str, *, source: str | None = None) -> Leader | None:
        """Return who leads, as of a moment ago; None: nobody does."""
        return self._loop.run(lambda: self._client.leader(name, source=source))

    def leaders(self, name: str, *, source: str | None = None) -> Generator[Leader | None, None, None]:
        """Observe an election: `for leader in client.leaders("scheduler")`; see `Client.leaders`."""
        observed = self._client.leaders(name, source=source)

        async def following() -> Leader | None:
            return await anext(observed)

        async def close() -> None:
            await observed.aclose()

        try:
            while True:
                yield self._loop.run(following)
        finally:
            with contextlib.suppress(RuntimeError):  # the client is closed already, and the stream with it
                self._loop.run(close)
