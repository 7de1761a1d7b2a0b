"""What happens in the gateway, as typed events. Logs and metrics subscribe; the gateway knows neither."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Verb = Literal["patch", "put", "post", "delete", "claim", "read", "submit", "batch"]
"""`submit`: a write that is put into a queue. An event with its own verb follows when it is applied. `batch`: one that
was to land as a whole, and none of whose lines was refused by itself.
"""


@dataclass(slots=True)
class Accepted:
    """A write or claim was committed, or a write is in its queue. `rows` were written."""

    table: str
    verb: Verb
    rows: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A write, claim or read was refused. `code` is FPnnn or an SQLSTATE. `caller`: the name of who asked, `peer`: the
    address of the connection, as far as there are any.
    """

    table: str
    verb: Verb
    code: str
    detail: str
    resource: str | None
    presented: int | None
    current: int | None
    caller: str | None = None
    peer: str | None = None


LeaseVerb = Literal["acquire", "withdraw", "renew", "mint", "release"]


@dataclass(frozen=True, slots=True)
class LeaseAsked:
    """A lease was asked for or asked of. `verdict`: granted, repeated, done, or the code of the refusal.

    `waited` seconds in the queue; `tokens` were drawn.
    """

    verb: LeaseVerb
    verdict: str
    locks: tuple[str, ...] = ()
    lease_id: str | None = None
    owner: str | None = None
    waited: float = 0.0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class QueueFailed:
    """Waiters could not be kept in their queues, or taken out, or nothing be swept; it is tried again."""

    reason: str


@dataclass(frozen=True, slots=True)
class HolderUnknown:
    """A refusal was answered without the holder of the mark's token: it could not be looked up."""

    table: str
    reason: str


@dataclass(frozen=True, slots=True)
class CatalogLoaded:
    """The database was looked at; `changed`: another picture of it is in use."""

    version: int
    tables: int
    protected: int
    changed: bool = True


@dataclass(frozen=True, slots=True)
class ListenerLost:
    """The connection that listens for DDL changes broke; it is made anew."""

    reason: str


@dataclass(frozen=True, slots=True)
class OriginJudged:
    """Writes begin or cease to be let through to the database behind the connections (R19). `reason`: why not."""

    accepted: bool
    generation: int | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class ConnectionTrouble:
    """A connection to PostgreSQL could not be had or closed as it was wanted; no request is answered otherwise."""

    reason: str


@dataclass(frozen=True, slots=True)
class Pruned:
    """Marks (or idempotency records) that no request can need any more were deleted."""

    what: str
    records: int


@dataclass(frozen=True, slots=True)
class PruningFailed:
    """Nothing could be pruned; it is tried again."""

    reason: str


@dataclass(frozen=True, slots=True)
class BatchesFail:
    """A batch of writes may not do what it does, or finds no function of ours: its writes are decided one by one."""

    reason: str


@dataclass(frozen=True, slots=True)
class SourceQuarantined:
    """A source's numbers went backwards: nothing is taken from it until an operator raises its generation (R12)."""

    source: str
    reason: str


@dataclass(frozen=True, slots=True)
class SourceTrouble:
    """A lock service did not do what was to be done beside a request; the lock in question expires. Or the log of a
    queue did not.
    """

    source: str
    reason: str


@dataclass(frozen=True, slots=True)
class SealKeysRead:
    """The keys that seal tokens are these from now on, by their ids. The first one seals."""

    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SealKeysUnreadable:
    """The file with the keys that seal tokens cannot be read; the last good ones stay. Reported once."""

    reason: str


@dataclass(frozen=True, slots=True)
class ConsumerPaused:
    """A consumer decides or takes nothing for now: the database or the log is away, or the queue is quarantined."""

    queue: str
    reason: str


@dataclass(frozen=True, slots=True)
class ConsumerResumed:
    """It goes on."""

    queue: str


@dataclass(frozen=True, slots=True)
class ConsumerFailed:
    """A consumer has met a fault of the gateway's own; it tries again."""

    queue: str
    reason: str


@dataclass(frozen=True, slots=True)
class DeadLettered:
    """A queued write could not be applied, and is a dead letter."""

    queue: str
    resource: str
    partition: int
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class QueueBlocked:
    """A queued write is tried in vain for long, and those of its resource wait behind it: another transaction has its
    row, for example. Emitted once for a message.
    """

    queue: str
    resource: str
    partition: int
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class RequestTurnedAway:
    """A request was refused before anything looked at what it asks for. `code` is FPnnn, `peer` the address that sent
    it.
    """

    code: str
    detail: str
    peer: str


@dataclass(frozen=True, slots=True)
class CallerRefused:
    """A request was refused for who its caller is. `caller`: its name, or `address` and the address of one that is not
    known. Another event has the refusal itself.
    """

    caller: str
    code: str
    detail: str


@dataclass(frozen=True, slots=True)
class KeysFetched:
    """Other keys verify tokens from now on. `skipped`: which members of the JWKS do not, and why."""

    keys: int
    skipped: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KeysNotFetched:
    """The JWKS could not be had or read; it is tried again, and the last one is in use meanwhile."""

    reason: str


Event = (
    Accepted
    | Refused
    | RequestTurnedAway
    | CallerRefused
    | LeaseAsked
    | ConsumerPaused
    | ConsumerResumed
    | ConsumerFailed
    | DeadLettered
    | QueueBlocked
    | OriginJudged
    | SourceQuarantined
    | SourceTrouble
    | Pruned
    | PruningFailed
    | BatchesFail
    | QueueFailed
    | HolderUnknown
    | CatalogLoaded
    | ListenerLost
    | ConnectionTrouble
    | SealKeysRead
    | SealKeysUnreadable
    | KeysFetched
    | KeysNotFetched
)
Emit = Callable[[Event], None]
