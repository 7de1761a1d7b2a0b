"""How long the parts of a gateway wait, in seconds: one value, which serve.py hands down.

What an operator chooses is in settings.py, and not here. A test hands in times of its own, or a
clock that it moves by hand.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

# The clock that they wait by.


class Timer(Protocol):
    """A call that is due later."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Seconds from any origin; it never goes back. What waits by it is woken by it."""

    def monotonic(self) -> float: ...

    async def sleep(self, seconds: float) -> None:
        """Return after so long."""
        ...

    def call_later(self, seconds: float, call: Callable[[], object]) -> Timer:
        """Call this after so long, in the running event loop."""
        ...


class SystemClock:
    """The machine's, by the timers of the running event loop."""

    monotonic = staticmethod(time.monotonic)

    async def sleep(self, seconds: float) -> None:
        """Wait by the event loop's timers."""
        await asyncio.sleep(seconds)

    def call_later(self, seconds: float, call: Callable[[], object]) -> Timer:
        """Have the event loop call it."""
        return asyncio.get_running_loop().call_later(seconds, call)


SYSTEM_CLOCK: Final = SystemClock()


async def wait_until_set(event: asyncio.Event, seconds: float, clock: Clock) -> bool:
    """Wait for an event for so long at most; whether it is set."""
    timer = clock.call_later(seconds, (late := asyncio.Event()).set)
    waits = [asyncio.ensure_future(each.wait()) for each in (event, late)]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        timer.cancel()
        for each in waits:
            each.cancel()
    return event.is_set()


# The times, by the part that waits.


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTimes:
    """Group commit (gateway/group_commit.py)."""

    sweep_every: float = 0.25
    """Between two looks for writes that have waited too long."""
    slow: float = 0.05
    """After so long a batch in flight no longer keeps the next one of its queue waiting."""
    linger: float = 0.005
    """For so long a queue with a role keeps its connection for the next write."""
    report_every: float = 60.0
    """Between two reports of batches that cannot work."""
    lock_wait: float = 0.01
    """A statement of a batch waits for so long for anything that another transaction has locked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionTimes:
    """Connections to PostgreSQL, and what is known of it (postgres/pool.py)."""

    open_within: float = 10.0
    """A connection may take so long to open."""
    start_pause: float = 0.5
    """Between two tries to reach PostgreSQL while the gateway starts."""
    give_back_within: float = 5.0
    """A connection may take so long to give a caller's role back."""
    full_for: float = 5.0
    """Before PostgreSQL is asked for one more connection than it had."""
    idle_for: float = 300.0
    """After so long a connection that was not used is closed, but for the last one."""
    trim_every: float = 60.0
    """Between two looks for those."""
    close_within: float = 5.0
    """Closing a connection may take so long before its socket is closed without a word."""
    read_only_for: float = 1.0
    """For so long writes are refused without asking again, once PostgreSQL has refused one as read-only."""
    read_only_reported_after: float = 30.0
    """After so long without it, it is reported anew."""
    roles_known_for: float = 10.0
    """For so long an answer counts that says whether the gateway may act as a role, and what the role may do."""
    end_backend_within: float = 5.0
    """For so long the end of a backend is waited for. It ends at its next interrupt, after its last commit."""
    listen_pause: float = 0.1
    """Before the first new try to LISTEN; twice as long before each further one, up to ..."""
    longest_listen_pause: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTimes:
    """What a request waits for beside its own statements (gateway)."""

    resolve_within: float = 10.0
    """An unknown outcome is looked into for so long before the answer is that it is unknown."""
    resolve_pause: float = 0.1
    """Before the database is asked again when it could not be reached, or ended the connection again."""
    submit_within: float = 1.0
    """Before a write is queued PostgreSQL, which may be away, is asked what only it knows, for so long each time."""
    letters_known_for: float = 1.0
    """For so long an answer counts that says how many dead letters there are."""
    explain_within: float = 1.0
    """A refusal is held back for so long, at most, until it is known who superseded the caller, or who blocks it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTimes:
    """The queue of the built-in locks (locks/builtin.py)."""

    beat_every: float = 1.0
    """Between two heartbeats of a gateway that has waiters; the database passes it over after three seconds."""
    beats_on_for: float = 30.0
    """For so long a gateway without waiters goes on beating: its next one needs no word ahead."""
    keep_place: float = 3.0
    """For so long the place of a waiter is kept whose connection broke: it asks again with the same secret."""
    pause: float = 0.5
    """Before a waiter tries again when the database cannot be asked."""
    slot_within: float = 5.0
    """For so long an acquire waits for others at this gateway to be through with PostgreSQL."""
    late_share: float = 0.1
    """Claims may take this share of the TTL before the lease is made to begin after them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTimes:
    """Leases of lock services (locks/source_leases.py)."""

    fresh: float = 1.0
    """After so long a grant is too old to be judged by what was known when it was asked for."""
    look_again: float = 1.0
    """Until it is tried again to end a hold when PostgreSQL or the service could not be asked."""
    look_at_least_every: float = 5.0
    """Between two looks which holds are over: another gateway may have shortened a lease, or an operator ended all."""
    sweep_about_every: float = 60.0
    """Between two removals of what ended leases left."""
    late_share: float = 0.1
    """Claims may take this share of the TTL before the lease is renewed after them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepTimes:
    """What is done now and then (serve.py). Where it says `about`, more or less, so that gateways take turns."""

    reload_every: float = 30.0
    """What was not announced and no request stumbles over, for example a new column, is seen after so long at most."""
    look_every: float = 1.0
    """Between two looks at which database this is: for a restore under open connections, and so that the position of
    the WAL that the gateway remembers is no older (postgres/database_identity.py).
    """
    sweep_about_every: float = 60.0
    """Between two removals of what ended leases left."""
    prune_about_every: float = 60.0
    """Between two passes over marks and idempotency records."""
    record_every: float = 5.0
    """Between two times that refusals of callers are written down."""
    note_keys_about_every: float = 60.0
    """Between two times that the use of API keys is written down."""
    publish_every: float = 1.0
    """Between two looks at what each worker has in use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthTimes:
    """/readyz and /metrics (health.py)."""

    answer_within: float = 1.5
    """An answer waits for PostgreSQL's for so long."""
    log_within: float = 0.75
    """A queue's log is waited for so long; after that what was recorded has to do (queues/registry.py)."""
    ask_for: float = 10.0
    """After so long a question is given up, and the next caller asks anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchTimes:
    """Who watches elections (gateway/election.py), and who waits for queued writes (gateway/results.py)."""

    elections_every: float = 0.5
    """Between two looks at who leads."""
    results_every: float = 0.2
    """Between two looks at what became of queued writes ..."""
    results_soon: float = 0.02
    """... but this while a request began to wait in the last ..."""
    results_new_for: float = 0.2
    """... so many seconds."""
    look_within: float = 5.0
    """A look may take so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeTimes:
    """How requests arrive, and streams of answers leave (http)."""

    look_every: float = 1.0
    """Between two looks for connections whose requests take too long; and, while a batch waits for a rate limit, at
    whether it may go on."""
    heartbeat: float = 10.0
    """A stream of events that has none sends a comment after so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityTimes:
    """What is known of credentials (identity)."""

    kept_for: float = 60.0
    """After so long a credential is verified again: a key that was taken out of a JWKS ends within that time."""
    streams_end_after: float = 300.0
    """A stream of a caller with an API key ends after so long; clients open it anew."""
    unheard_for: float = 2.0
    """For so long a verified API key is kept while announcements of changes are not heard."""
    jwks_every: float = 300.0
    """Between two fetches of a JWKS."""
    jwks_again: float = 10.0
    """The same, after one that failed."""
    jwks_asked_every: float = 30.0
    """Between two fetches for JWTs of keys that are not in the set, at least."""
    jwks_kept_for: float = 3600.0
    """For so long a set is used when no newer one can be had."""
    jwks_within: float = 5.0
    """A fetch may take so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumingTimes:
    """Consumers of queues (consuming, parts.py). They wait by the event loop's clock."""

    take_for: float = 0.5
    """The log is waited for so long when it has no messages."""
    alive_every: float = 1.0
    """After so long a member calls the log again, whatever it waits for, so that the log keeps it as a member."""
    blocked_after: float = 5.0
    """After so long a message that cannot be decided is reported."""
    pause: float = 0.05
    """Before what failed is tried again; twice as long before each further try, up to ..."""
    longest_pause: float = 5.0
    note_every: float = 1.0
    """Between two notes of what was done."""
    committed_every: float = 10.0
    """Between two questions to the log about what is committed."""
    end_within: float = 2.0
    """The last note may take so long."""
    start_again_after: float = 5.0
    """A consumer that ended by a fault is started again after so long."""
    give_up_within: float = 1.0
    """A step of a consumer's end may take so long after the time for it is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """All of them, and the clock that they are measured by."""

    clock: Clock = SYSTEM_CLOCK
    batches: BatchTimes = field(default_factory=BatchTimes)
    connections: ConnectionTimes = field(default_factory=ConnectionTimes)
    requests: RequestTimes = field(default_factory=RequestTimes)
    queue: QueueTimes = field(default_factory=QueueTimes)
    sources: SourceTimes = field(default_factory=SourceTimes)
    upkeep: UpkeepTimes = field(default_factory=UpkeepTimes)
    health: HealthTimes = field(default_factory=HealthTimes)
    watches: WatchTimes = field(default_factory=WatchTimes)
    edge: EdgeTimes = field(default_factory=EdgeTimes)
    identity: IdentityTimes = field(default_factory=IdentityTimes)
    consuming: ConsumingTimes = field(default_factory=ConsumingTimes)


TIMES: Final = Times()
"""The gateway's own."""
