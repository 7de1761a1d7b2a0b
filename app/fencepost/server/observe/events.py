"""What happens in the gateway, as typed events. A class of events says at which level and in which words the log tells
of it, and which metrics it moves: logs and metrics subscribe, and the gateway knows neither.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Literal, dataclass_transform

Verb = Literal["patch", "put", "post", "delete", "claim", "read", "submit", "batch"]
"""`submit`: a write that is put into a queue. An event with its own verb follows when it is applied. `batch`: one that
was to land as a whole, and none of whose lines was refused by itself.
"""
LeaseVerb = Literal["acquire", "withdraw", "renew", "mint", "release"]


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of Prometheus, and how an event moves it: a counter is raised by a value, a gauge set to it, a histogram
    counts it. Metrics of one name are one.
    """

    kind: Literal["counter", "gauge", "histogram"]
    name: str
    text: str
    labels: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    value: float | str = 1
    """A number, or the attribute of the event that has it."""
    by: tuple[str, ...] = ()
    """The attributes with the values of the labels; none: those of the labels' names."""
    where: tuple[str, object] | None = None
    """The attribute, and its value, of events that move it; None: all do."""


def counter(name: str, text: str, *labels: str, value: float | str = 1) -> Metric:
    """Declare a counter. Prometheus shows it with `_total` behind its name."""
    return Metric("counter", name, text, labels, value=value)


def gauge(over_workers: str, name: str, text: str, *labels: str, value: float | str = 1) -> Metric:
    """Declare a gauge. `over_workers`: prometheus_client's `multiprocess_mode`."""
    return Metric("gauge", name, text, labels, {"multiprocess_mode": over_workers}, value)


EVENTS: Final[list[type["Event"]]] = []
"""All classes of events."""


@dataclass_transform(frozen_default=True)
class Event:
    """Something that happened. What logs and metrics read of its class is data: most events are read to be dropped."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    level: ClassVar[int] = logging.WARNING
    words: ClassVar[str]
    """With which the event's line in the log begins."""
    but_where: ClassVar[tuple[str, Mapping[object, tuple[int, str]]]] = ("", {})
    """An attribute, and for some of its values another level and other words."""
    metrics: ClassVar[tuple[Metric, ...]]

    def __init_subclass__(cls, *, frozen: bool = True) -> None:
        cls.metrics = tuple(each for each in vars(cls).values() if isinstance(each, Metric))
        EVENTS.append(dataclass(frozen=frozen)(cls))

    def shown(self) -> Mapping[str, object]:
        """Give what the line has beside the words."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


# Of writes, and of requests that get no further.


class Accepted(Event, frozen=False):
    """A write or claim was committed, or a write is in its queue. `rows` were written. Metrics add the events up."""

    level, words = logging.DEBUG, "accepted"
    verdict = "accepted"
    metric = counter(
        "fencepost_operations",
        "Writes, claims and refused reads by verdict: accepted, or the code of the refusal.",
        *("table", "verb", "verdict"),
    )
    written = counter("fencepost_rows_written", "Rows in accepted writes.", "table", "verb", value="rows")
    table: str
    verb: Verb
    rows: int


class Refused(Event):
    """A write, claim or read was refused. `code` is FPnnn or an SQLSTATE. `caller`: the name of who asked, `peer`: the
    address of the connection, as far as there are any.
    """

    level, words = logging.INFO, "refused"
    but_where = ("verb", {"read": (logging.DEBUG, words)})  # a read of a row that is not there is no news
    metric = replace(Accepted.metric, by=("table", "verb", "code"))
    table: str
    verb: Verb
    code: str
    detail: str
    resource: str | None
    presented: int | None
    current: int | None
    caller: str | None = None
    peer: str | None = None


class HolderUnknown(Event):
    """A refusal was answered without the holder of the mark's token: it could not be looked up."""

    words = "who superseded a refused holder could not be found out"
    metric = counter(
        "fencepost_holders_unknown",
        "Refusals that were answered without naming the newer holder, because it could not be looked up.",
        "table",
    )
    table: str
    reason: str


class BatchesFail(Event):
    """A batch of writes may not do what it does, or finds no function of ours: its writes are decided one by one."""

    words = "writes do not go together in batches, which is slow; `fencepost doctor` may show why"
    metric = counter(
        "fencepost_batch_failures",
        "How often (once a minute at most) batches of writes lacked a privilege or a function.",
    )
    reason: str


class RequestTurnedAway(Event):
    """A request was refused before anything looked at what it asks for. `peer`: the address that sent it."""

    words = "a request was turned away"
    metric = counter(
        "fencepost_requests_turned_away",
        "Requests and connections that were refused before anything looked at what they ask for, by code.",
        "code",
    )
    peer: str
    code: str
    detail: str


class CallerRefused(Event):
    """A request was refused for who its caller is. `caller`: its name, or `address` and the address of one that is not
    known. Another event has the refusal itself.
    """

    level, words = logging.DEBUG, "refused for who the caller is"
    metric = counter(
        "fencepost_callers_refused", "Requests that were refused for who their caller is, by code.", "code"
    )
    caller: str
    code: str
    detail: str


class KeysFetched(Event):
    """Other keys verify tokens from now on. `skipped`: which members of the JWKS do not, and why."""

    level, words = logging.INFO, "keys that verify JWTs"
    metric = counter("fencepost_jwks_changes", "How often the keys that verify JWTs became others.")
    keys: int
    skipped: tuple[str, ...]


class KeysNotFetched(Event):
    """The JWKS could not be had or read; it is tried again, and the last one is in use meanwhile."""

    words = "keys that verify JWTs were not fetched; the last ones are in use"
    metric = counter("fencepost_jwks_failures", "How often the keys that verify JWTs could not be fetched.")
    reason: str


# Of leases, lock services, and the keys that seal tokens.


class LeaseAsked(Event):
    """A lease was asked for or asked of. `verdict`: granted, repeated, done, or the code of the refusal. `waited`: how
    many seconds, in the queue; `tokens` were drawn.
    """

    level, words = logging.DEBUG, "lease"
    but_where = (
        "verdict",
        {"FP012": (logging.INFO, words)},
    )  # a lock that is held is no news; a lease that was lost is
    metric = counter(
        "fencepost_lease_operations",
        "Leases asked for, renewed, minted from, released: granted, repeated, done, or the code of the refusal.",
        *("verb", "verdict"),
    )
    issued = counter("fencepost_tokens_issued", "Tokens drawn, of grants and mints.", value="tokens")
    wait = Metric(
        "histogram",
        "fencepost_lock_wait_seconds",
        "Time from a request for a lock to its grant.",
        options={"buckets": (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300)},
        value="waited",
        where=("verdict", "granted"),
    )
    verb: LeaseVerb
    verdict: str
    locks: tuple[str, ...] = ()
    lease_id: str | None = None
    owner: str | None = None
    waited: float = 0.0
    tokens: int = 0

    def shown(self) -> Mapping[str, object]:
        shown = {"verb": self.verb, "verdict": self.verdict, "locks": self.locks, "lease": self.lease_id}
        return {**shown, "owner": self.owner, "waited": round(self.waited, 3), "tokens": self.tokens}


class RowPutAside(Event):
    """A row was taken too often by workers, and put aside (`protect --max-attempts`). `attempts`: how often."""

    words = "a row was put aside: it was taken too often"
    metric = counter("fencepost_rows_put_aside", "Rows that were put aside because they were taken too often.", "table")
    table: str
    resource: str
    attempts: int


class QueueFailed(Event):
    """Waiters could not be kept in their queues, or taken out, or nothing be swept; it is tried again."""

    words = "queues of locks"
    metric = counter("fencepost_lock_queue_failures", "How often the queues could not be kept up.")
    reason: str


class SourceQuarantined(Event):
    """A source's numbers went backwards: nothing is taken from it until an operator raises its generation (R12)."""

    level, words = logging.ERROR, "a token source is quarantined: its numbers went backwards"
    metric = gauge(
        "mostrecent",
        "fencepost_source_quarantined",
        "1 when the numbers of a token source went backwards and nothing is taken from it.",
        "source",
    )
    source: str
    reason: str


class SourceTrouble(Event):
    """A lock service did not do what was to be done beside a request; the lock in question expires. Or the log of a
    queue did not.
    """

    words = "token source"
    metric = counter(
        "fencepost_source_troubles", "How often work for a lock service that no request waits for failed.", "source"
    )
    source: str
    reason: str


class SealKeysRead(Event):
    """The keys that seal tokens are these from now on, by their ids. The first one seals."""

    level, words = logging.INFO, "the keys that seal tokens were read"
    metric = counter("fencepost_seal_keys_read", "How often other keys for seals were read than before.")
    ids: tuple[str, ...]

    def shown(self) -> Mapping[str, object]:
        return {"seals": self.ids[0], "verify": self.ids}


class SealKeysUnreadable(Event):
    """The file with the keys that seal tokens cannot be read; the last good ones stay. Reported once."""

    words = "the keys that seal tokens cannot be read, and stay as they were"
    metric = counter("fencepost_seal_key_failures", "How often the file with the keys for seals became unreadable.")
    reason: str


# Of PostgreSQL, the connections to it, the picture of its tables, and what is deleted there.


class OriginJudged(Event):
    """Writes begin or cease to be let through to the database behind the connections (R19). `reason`: why not."""

    level, words = logging.ERROR, "writes are refused: not the database that tokens were issued on"
    but_where = ("accepted", {True: (logging.INFO, "writes are let through to this database")})
    metric = gauge(
        "livemin",
        "fencepost_origin_accepted",
        "1 when writes are let through to the database behind the gateway, 0 when it is a standby or quarantined.",
        value="accepted",
    )
    accepted: bool
    generation: int | None
    reason: str | None

    def shown(self) -> Mapping[str, object]:
        return {"generation": self.generation} if self.accepted else {"reason": self.reason}


class ConnectionTrouble(Event):
    """A connection to PostgreSQL could not be had or closed as it was wanted; no request is answered otherwise."""

    words = "connections to PostgreSQL"
    metric = counter(
        "fencepost_connection_troubles",
        "How often PostgreSQL had no connection left, became read-only, or a connection could not be closed.",
    )
    reason: str


class ListenerLost(Event):
    """The connection that listens for DDL changes broke; it is made anew."""

    words = "lost the connection that listens for changed tables; making it anew"
    metric = counter("fencepost_listener_losses", "How often the LISTEN connection broke.")
    reason: str


class CatalogLoaded(Event):
    """The database was looked at; `changed`: another picture of it is in use."""

    level, words = logging.INFO, "catalog loaded"
    but_where = ("changed", {False: (logging.DEBUG, words)})
    metric = counter("fencepost_catalog_loads", "Catalog loads.")
    known = replace(
        gauge("livemax", "fencepost_tables", "Tables in the catalog.", "protected"), value="protected", by=("yes",)
    )
    others = replace(known, value="unprotected", by=("no",))
    yes, no = "yes", "no"
    version: int
    tables: int
    protected: int
    changed: bool = True

    @property
    def unprotected(self) -> int:
        return self.tables - self.protected

    def shown(self) -> Mapping[str, object]:
        return {"version": self.version, "tables": self.tables, "protected": self.protected}


class Pruned(Event):
    """Marks (or idempotency records) that no request can need any more were deleted."""

    level, words = logging.INFO, "pruned"
    metric = counter(
        "fencepost_records_pruned", "Marks and idempotency records that this gateway forgot.", "what", value="records"
    )
    what: str
    records: int


class PruningFailed(Event):
    """Nothing could be pruned; it is tried again."""

    words = "pruning"
    metric = counter("fencepost_pruning_failures", "How often nothing could be pruned.")
    reason: str


# Of queues, as their consumers meet them.


class ConsumerPaused(Event):
    """A consumer decides or takes nothing for now: the database or the log is away, or the queue is quarantined."""

    words = "queued writes are not applied for now"
    metric = gauge(
        "livemostrecent",
        "fencepost_queue_paused",
        "1 while a consumer decides or takes nothing, wherever it runs.",
        "queue",
    )
    queue: str
    reason: str


class ConsumerResumed(Event):
    """It goes on."""

    level, words = logging.INFO, "queued writes are applied again"
    metric = replace(ConsumerPaused.metric, value=0)
    queue: str


class ConsumerFailed(Event):
    """A consumer has met a fault of the gateway's own; it tries again."""

    words = "a queued write could not be applied, by a fault of the gateway"
    metric = counter("fencepost_queue_faults", "Faults of the gateway that consumers have met.", "queue")
    queue: str
    reason: str


class DeadLettered(Event):
    """A queued write could not be applied, and is a dead letter."""

    words = "a queued write is a dead letter; `fencepost dead` lists them"
    metric = counter("fencepost_queue_dead_lettered", "Dead letters that this process has put.", "queue")
    queue: str
    resource: str
    partition: int
    offset: int
    reason: str


class QueueBlocked(Event):
    """A queued write is tried in vain for long, and those of its resource wait behind it: another transaction has its
    row, for example. Emitted once for a message.
    """

    words = "a queued write is tried in vain, and those of its resource wait"
    metric = counter(
        "fencepost_queue_blocked",
        "Messages that this process tried in vain for long; `fencepost queue` names those that it still tries.",
        "queue",
    )
    queue: str
    resource: str
    partition: int
    offset: int
    reason: str


Emit = Callable[[Event], None]
