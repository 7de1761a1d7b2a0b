"""Calls that are passed on to the asynchronous client, on the event loop of the synchronous one."""

import ssl
from collections.abc import Iterable, Mapping

import httpx

from fencepost.client.answers import Claimed, FenceState, LockState
from fencepost.client.client import Client
from fencepost.client.clock import Clock
from fencepost.client.elections.observing import Leader
from fencepost.client.http.credentials import Token
from fencepost.client.http.retry import DEFAULT_RETRY, Retry
from fencepost.client.leases.acquire_request import FIRST_TOKENS, Claims, Names, Writes
from fencepost.client.rows.batches import Verdict
from fencepost.client.rows.lines import Line
from fencepost.client.sync.elections import SyncCampaign
from fencepost.client.sync.leases import SyncLease, SyncLock
from fencepost.client.sync.loop import Loop
from fencepost.client.sync.submit import SyncSubmit


class SyncClientCalls:
    """The calls of a SyncClient."""

    _client: Client
    _loop: Loop

    def __init__(
        self,
        url: str,
        *,
        token: Token | None = None,
        owner: str | None = None,
        retry: Retry = DEFAULT_RETRY,
        timeout: float = 30.0,
        headers: Mapping[str, str] | None = None,
        verify: ssl.SSLContext | bool = True,
        decimals: bool = False,
        transport: httpx.AsyncBaseTransport | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._loop = Loop()
        self._client = Client(
            url,
            token=token,
            owner=owner,
            retry=retry,
            timeout=timeout,
            headers=headers,
            verify=verify,
            decimals=decimals,
            transport=transport,
            clock=clock,
        )

    def lock(
        self,
        name: Names,
        *,
        ttl: float = 30.0,
        wait: float | None = 0.0,
        claim: Claims = False,
        owner: str | None = None,
        tokens: int = FIRST_TOKENS,
        margin: float | None = None,
        source: str | None = None,
        writes: Writes = (),
    ) -> SyncLock:
        """Give a lock, or several that are taken together, for a `with`. Times in seconds; ValueError if
        they make no sense.

        ttl: how long the lease outlives us; it is renewed at a third of it.
        wait: how long to queue for it before LockHeld; None: for ever.
        claim: True claims what the locks are named after, together with the grant: older holders are fenced off before
            we have written (R7). Or the names of other resources.
        tokens: how many to draw with the grant; more are minted when they are used up.
        margin: stop trusting the lease so long before it expires; default 5 % of ttl, at least 20 ms.
        source: the lock service to take it from, by the name that the gateway has for it; default its own, builtin.
        writes: what the tokens may be used for where the gateway seals them, beside what the locks are named after and
            what is claimed: resources, or `orders/*`.
        """
        return SyncLock(
            self._client.lock(
                name,
                ttl=ttl,
                wait=wait,
                claim=claim,
                owner=owner,
                tokens=tokens,
                margin=margin,
                source=source,
                writes=writes,
            ),
            self._loop,
        )

    def locks(self, name: str | None = None, *, source: str | None = None) -> list[LockState]:
        """Return the locks of a source that are held or waited for, by name; or the one of this name, if it is."""
        return self._loop.run(lambda: self._client.locks(name, source=source))

    @property
    def submit(self) -> SyncSubmit:
        """Writes that are queued instead of done at once: `client.submit.patch("orders", "order-1", {…})`."""
        return SyncSubmit(self._client.submit, self._loop)

    def batch_atomic(self, lines: Iterable[Line]) -> list[Verdict]:
        """Send writes and claims that land all, or none, in one transaction: their verdicts, in order.

        The first line that is refused is raised as what a call of it would have raised; its number is
        `error.problem.members["line"]`. Lines are as in `batch`, at most as many as FENCEPOST_MAX_ROWS of the gateway.
        """
        return self._loop.run(lambda: self._client.batch_atomic(lines))

    def claim(
        self,
        resource: str,
        *,
        lease: SyncLease | None = None,
        token: int | None = None,
        idempotency_key: str | None = None,
    ) -> Claimed:
        """Raise the resource's mark without writing, and return the row: no older holder can write from now on (R7)."""
        return self._loop.run(
            lambda: self._client.claim(
                resource,
                lease=None if lease is None else lease.asynchronous,
                token=token,
                idempotency_key=idempotency_key,
            )
        )

    def fence(self, resource: str) -> FenceState:
        """Return what is known of a resource: mark, rule, source, story."""
        return self._loop.run(lambda: self._client.fence(resource))

    def elect(
        self,
        name: str,
        *,
        ttl: float = 30.0,
        wait: float | None = None,
        claim: Claims = False,
        also: Names = (),
        owner: str | None = None,
        margin: float | None = None,
        source: str | None = None,
        writes: Writes = (),
    ) -> SyncCampaign:
        """Give a candidacy for a `with`, whose body runs while we lead. Arguments as for `lock`; seconds.

        ttl: how long after its last renewal a leader that is gone is still taken for one.
        wait: how long to wait to be elected before LockHeld; default: for ever.
        claim: True claims what has the election's name, and those of `also`, together with the grant: older leaders are
            fenced off (R7). Or the names of other resources.
        also: further locks that the leader holds, and is elected with or not at all; with the built-in source.
        writes: what the leader may write where the gateway seals tokens: resources, or `orders/*`.
        """
        return SyncCampaign(
            self._client.elect(
                name,
                ttl=ttl,
                wait=wait,
                claim=claim,
                also=also,
                owner=owner,
                margin=margin,
                source=source,
                writes=writes,
            ),
            self._loop,
        )

    def leader(self, name: str, *, source: str | None = None) -> Leader | None:
        """Return who leads, as of a moment ago; None: there is no leader."""
        return self._loop.run(lambda: self._client.leader(name, source=source))
