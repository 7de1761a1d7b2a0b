"""Leader election: running for it, and watching who leads."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from fencepost.client.answers import GrantAnswer
from fencepost.client.errors import Unavailable, as_time
from fencepost.client.http import Call, Exchange, Failures, loads
from fencepost.client.lease import (
    FIRST_TOKENS,
    AcquireRequest,
    Claims,
    Lease,
    Names,
    PendingReleases,
    Timings,
    Writes,
    make_acquire_request,
    several,
)
from fencepost.client.lock import Lock

# Observing an election: server-sent events, read for as long as the caller iterates.
#
# A stream begins with the present leader, so a new connection needs to know nothing of the old one. The gateway sends
# a heartbeat every ten seconds; a stream that is silent for longer than SILENCE is closed, and opened again.

SILENCE: Final = 25.0
"""Seconds without a heartbeat after which a stream is taken for dead."""
_NO_EVENT: Final = ""


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads. `term` is the number of its lease. Times are the database's; `remaining` is seconds."""

    term: int
    owner: str
    lease_id: str
    since: datetime | None
    expires_at: datetime | None
    remaining: float


def leader_in(election: Mapping[str, Any]) -> Leader | None:
    """Read the leader in an ElectionAnswer."""
    body = election["leader"]
    if body is None:
        return None
    return Leader(
        term=int(body["term"]),
        owner=body["owner"],
        lease_id=body["lease_id"],
        since=as_time(body["since"]),
        expires_at=as_time(body["expires_at"]),
        remaining=body["remaining_ms"] / 1000,
    )


def election_call(name: str, source: str | None, *, silence: float | None = None) -> Call:
    """Give the request that asks who leads: once, or as a stream that may be silent for so long."""
    params = [("name", name), *([] if source is None else [("source", source)])]
    if silence is None:
        return Call(method="GET", path="/v1/elections", params=params)
    # Streams are no data: a hundred of them would leave no connection for writes.
    return Call(method="GET", path="/v1/elections/events", params=params, upkeep=True, read_seconds=silence)


async def leaders(
    exchange: Exchange, name: str, source: str | None, silence: float = SILENCE
) -> AsyncGenerator[Leader | None, None]:
    """Give the leader, and each other one after it. See `Client.leaders`."""
    call = election_call(name, source, silence=silence)
    last_seen: str | None = _NO_EVENT
    failures = Failures(exchange.retry, exchange.clock, silence)
    while True:
        failed: Unavailable | None = None
        try:
            async with exchange.stream(call) as lines:
                async for data in _events(lines):
                    failures = Failures(exchange.retry, exchange.clock, silence)
                    leader = _read(data)
                    lease_id = None if leader is None else leader.lease_id
                    if lease_id != last_seen:
                        last_seen = lease_id
                        yield leader
        except Unavailable as error:
            if not error.may_repeat:
                raise
            failed = error
        pause = failures.pause(failed.retry_after if failed else None)
        if pause is None and failed is not None:
            raise failed
        # A stream that ended was answered: a gateway that stops ends it so.
        await exchange.clock.sleep(exchange.retry.longest if pause is None else pause)


def _read(data: str) -> Leader | None:
    try:
        event = loads(data.encode())
    except ValueError as error:
        raise Unavailable(f"an event of an election is not JSON: {data:.60}") from error
    if not isinstance(event, dict):
        raise Unavailable(f"an event of an election is not an object: {data:.60}")
    return leader_in(event)


async def _events(lines: AsyncIterator[str]) -> AsyncIterator[str]:
    """Give the data of each event. Comments and other fields are left out."""
    data: list[str] = []
    async for line in lines:
        if line.startswith("data:"):
            data.append(line.removeprefix("data:").removeprefix(" "))
        elif not line and data:
            yield "\n".join(data)
            data = []


# Leader election: `async with client.elect("scheduler") as term:` campaigns, leads while the body runs, and resigns.
#
# To lead is to hold the lock `election/NAME`, so a term is a lease: it is renewed by itself, and trusted no longer
# than it certainly lasts. What the leader writes is fenced by its term: `lease=term`.

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
