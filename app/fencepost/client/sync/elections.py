"""Leader election for code that is not asynchronous."""

from fencepost.client.elections.campaign import Campaign, Term
from fencepost.client.leases.lease import Lease
from fencepost.client.sync.lease_calls import SyncTermCalls
from fencepost.client.sync.leases import SyncLease, SyncLock
from fencepost.client.sync.loop import Loop


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
