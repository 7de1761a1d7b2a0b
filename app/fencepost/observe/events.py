"""What happens in the gateway, as typed events. Logs and metrics subscribe; the gateway knows neither."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Verb = Literal["patch", "put", "post", "delete", "claim", "read"]


@dataclass(slots=True)
class Accepted:
    """A write or claim was committed. `rows` were written."""

    table: str
    verb: Verb
    rows: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A write, claim or read was refused. `code` is FPnnn or an SQLSTATE."""

    table: str
    verb: Verb
    code: str
    detail: str
    resource: str | None
    presented: int | None
    current: int | None


LeaseVerb = Literal["acquire", "renew", "mint", "release"]


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
    """A new picture of the database is in use."""

    version: int
    tables: int
    protected: int


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
class SourceFroze:
    """A source's numbers went backwards: nothing is taken from it until an operator raises its generation (R12)."""

    source: str
    reason: str


@dataclass(frozen=True, slots=True)
class SourceTrouble:
    """A lock service did not do what was to be done beside a request; the lock in question expires."""

    source: str
    reason: str


Upkeep = (
    OriginJudged
    | SourceFroze
    | SourceTrouble
    | Pruned
    | PruningFailed
    | BatchesFail
    | QueueFailed
    | HolderUnknown
    | CatalogLoaded
    | ListenerLost
    | ConnectionTrouble
)
"""What happens beside the requests."""
Event = Accepted | Refused | LeaseAsked | Upkeep
Emit = Callable[[Event], None]
