"""Metrics: what the registry has, and what each event does to them; refusals by caller."""

import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar, assert_never

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector

from fencepost.server.observe import logs
from fencepost.server.observe.events import (
    Accepted,
    BatchesFail,
    CallerRefused,
    CatalogLoaded,
    ConnectionTrouble,
    ConsumerFailed,
    ConsumerPaused,
    ConsumerResumed,
    DeadLettered,
    Event,
    HolderUnknown,
    KeysFetched,
    KeysNotFetched,
    LeaseAsked,
    ListenerLost,
    OriginJudged,
    Pruned,
    PruningFailed,
    QueueBlocked,
    QueueFailed,
    Refused,
    RequestTurnedAway,
    SealKeysRead,
    SealKeysUnreadable,
    SourceQuarantined,
    SourceTrouble,
)

# The instruments of the metrics, by what they measure. Each group is made in a registry.


class HttpInstruments:
    """Of HTTP requests."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Histogram(
            "fencepost_http_request_seconds",
            "Time from the request's first byte to the answer's last.",
            ["method", "route", "status"],
            buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
            registry=registry,
        )
        self.turned_away = Counter(
            "fencepost_requests_turned_away",
            "Requests and connections that were refused before anything looked at what they ask for, by code.",
            ["code"],
            registry=registry,
        )
        self.callers_refused = Counter(
            "fencepost_callers_refused",
            "Requests that were refused for who their caller is, by code.",
            ["code"],
            registry=registry,
        )
        self.key_changes = Counter(
            "fencepost_jwks_changes", "How often the keys that verify JWTs became others.", registry=registry
        )
        self.key_failures = Counter(
            "fencepost_jwks_failures", "How often the keys that verify JWTs could not be fetched.", registry=registry
        )


class WriteInstruments:
    """Of writes and claims."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.operations = Counter(
            "fencepost_operations",
            "Writes, claims and refused reads by verdict: accepted, or the code of the refusal.",
            ["table", "verb", "verdict"],
            registry=registry,
        )
        self.rows = Counter("fencepost_rows_written", "Rows in accepted writes.", ["table", "verb"], registry=registry)
        self.waiting = Gauge(
            "fencepost_writes_waiting",
            "Single-row writes that wait for their batch, or are in one.",
            multiprocess_mode="livesum",
            registry=registry,
        )
        self.batch_failures = Counter(
            "fencepost_batch_failures",
            "How often (once a minute at most) batches of writes lacked a privilege or a function.",
            registry=registry,
        )
        self.holders_unknown = Counter(
            "fencepost_holders_unknown",
            "Refusals that were answered without naming the newer holder, because it could not be looked up.",
            ["table"],
            registry=registry,
        )


class LeaseInstruments:
    """Of leases and locks."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.operations = Counter(
            "fencepost_lease_operations",
            "Leases asked for, renewed, minted from, released: granted, repeated, done, or the code of the refusal.",
            ["verb", "verdict"],
            registry=registry,
        )
        self.issued = Counter("fencepost_tokens_issued", "Tokens drawn, of grants and mints.", registry=registry)
        self.waited = Histogram(
            "fencepost_lock_wait_seconds",
            "Time from a request for a lock to its grant.",
            buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300),
            registry=registry,
        )
        self.held = Gauge(
            "fencepost_locks_held",
            "Locks that are held, in the whole database.",
            multiprocess_mode="livemostrecent",
            registry=registry,
        )
        self.waiters = Gauge(
            "fencepost_lock_waiters",
            "Requests that wait for locks, at all gateways.",
            multiprocess_mode="livemostrecent",
            registry=registry,
        )
        self.seal_keys = Counter(
            "fencepost_seal_keys_read", "How often other keys for seals were read than before.", registry=registry
        )
        self.seal_key_failures = Counter(
            "fencepost_seal_key_failures",
            "How often the file with the keys for seals became unreadable.",
            registry=registry,
        )
        self.queue_failures = Counter(
            "fencepost_lock_queue_failures", "How often the queues could not be kept up.", registry=registry
        )


class SourceInstruments:
    """Of token sources."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.quarantined = Gauge(
            "fencepost_source_quarantined",
            "1 when the numbers of a token source went backwards and nothing is taken from it.",
            ["source"],
            registry=registry,
            multiprocess_mode="mostrecent",
        )
        self.generation = Gauge(
            "fencepost_source_generation",
            "The generation of a token source.",
            ["source"],
            registry=registry,
            multiprocess_mode="mostrecent",
        )
        self.troubles = Counter(
            "fencepost_source_troubles",
            "How often work for a lock service that no request waits for failed.",
            ["source"],
            registry=registry,
        )


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """How far a partition is decided; None: it is not known. `lag`: messages, `oldest`: seconds, `dead`: dead letters
    that are there; the rest is counted by all consumers since the queue was first used.
    """

    lag: int | None
    oldest: float | None
    applied: int | None
    refused: int | None
    failed: int | None
    redelivered: int | None
    dead: int | None


class QueueInstruments:
    """Of queues. What consumers count is kept in the database, and so it is that of all of them, wherever they run."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def of_partition(name: str, text: str) -> Gauge:
            return Gauge(
                f"fencepost_queue_{name}",
                text,
                ["queue", "partition"],
                multiprocess_mode="livemostrecent",
                registry=registry,
            )

        self.lag = of_partition("lag", "Messages of a queue that are not decided.")
        self.oldest = of_partition(
            "oldest_seconds", "Age of the oldest message that is not decided; 0: none is, no sample: not known."
        )
        self.applied = of_partition("applied_total", "Messages that were applied.")
        self.refused = of_partition("refused_total", "Messages whose token the fence refused.")
        self.failed = of_partition("failed_total", "Messages that became dead letters.")
        self.redelivered = of_partition("redelivered_total", "Messages that came again after they were decided.")
        self.dead = of_partition("dead", "Dead letters that are there.")
        self.paused = Gauge(
            "fencepost_queue_paused",
            "1 while a consumer decides or takes nothing, wherever it runs.",
            ["queue"],
            multiprocess_mode="livemostrecent",
            registry=registry,
        )
        self.dead_lettered = Counter(
            "fencepost_queue_dead_lettered", "Dead letters that this process has put.", ["queue"], registry=registry
        )
        self.blocked = Counter(
            "fencepost_queue_blocked",
            "Messages that this process tried in vain for long; `fencepost queue` names those that it still tries.",
            ["queue"],
            registry=registry,
        )
        self.faults = Counter(
            "fencepost_queue_faults", "Faults of the gateway that consumers have met.", ["queue"], registry=registry
        )


class DatabaseInstruments:
    """Of PostgreSQL, the connections to it and the picture of its tables."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.pool = Gauge(
            "fencepost_pool_connections",
            "Connections to PostgreSQL.",
            ["state"],
            multiprocess_mode="livesum",
            registry=registry,
        )
        self.silence = Gauge(
            "fencepost_database_silence_seconds",
            "For how long PostgreSQL has not answered what /metrics asks; 0 when it has.",
            multiprocess_mode="livemax",
            registry=registry,
        )
        self.trouble = Counter(
            "fencepost_connection_troubles",
            "How often PostgreSQL had no connection left, became read-only, or a connection could not be closed.",
            registry=registry,
        )
        self.origin = Gauge(
            "fencepost_origin_accepted",
            "1 when writes are let through to the database behind the gateway, 0 when it is a standby or quarantined.",
            multiprocess_mode="livemin",
            registry=registry,
        )
        self.listener = Counter(
            "fencepost_listener_losses", "How often the LISTEN connection broke.", registry=registry
        )
        self.tables = Gauge(
            "fencepost_tables",
            "Tables in the catalog.",
            ["protected"],
            multiprocess_mode="livemax",
            registry=registry,
        )
        self.reloads = Counter("fencepost_catalog_loads", "Catalog loads.", registry=registry)


class RecordInstruments:
    """Of marks and idempotency records, which are pruned."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.count = Gauge(
            "fencepost_records",
            "Marks and idempotency records, estimated by the planner's statistics.",
            ["what"],
            multiprocess_mode="livemostrecent",
            registry=registry,
        )
        self.bytes = Gauge(
            "fencepost_records_bytes",
            "Size on disk of marks and idempotency records, with their indexes.",
            ["what"],
            multiprocess_mode="livemostrecent",
            registry=registry,
        )
        self.pruned = Counter(
            "fencepost_records_pruned",
            "Marks and idempotency records that this gateway forgot.",
            ["what"],
            registry=registry,
        )
        self.pruning_failures = Counter(
            "fencepost_pruning_failures", "How often nothing could be pruned.", registry=registry
        )


# Counts what callers were refused for who they are, until it is written down (postgres/upkeep.py).

MOST_COUNTED: Final = 1000
"""Callers and codes that are counted apart in a day, by one process."""
DAY: Final = 86_400.0
OTHERS: Final = "others"
_LONGEST: Final = 500
"""Characters of a name or a detail that are kept."""

Counts = Mapping[tuple[str, str], tuple[int, str]]
"""By caller and code: how often, and the detail of the last one."""


class CallerRefusals:
    """Subscribes to events."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._counts: dict[tuple[str, str], tuple[int, str]] = {}
        self._clock, self._day = clock, clock()
        self._seen: set[tuple[str, str]] = set()
        """What is counted apart today: each is a row."""

    def on_event(self, event: Event) -> None:
        if isinstance(event, CallerRefused):
            self._add(event.caller[:_LONGEST], event.code, 1, event.detail[:_LONGEST])

    def take(self) -> Counts:
        counts, self._counts = self._counts, {}
        return counts

    def give_back(self, counts: Counts) -> None:
        """Add what was taken and could not be written down."""
        for (caller, code), (count, detail) in counts.items():
            self._add(caller, code, count, detail)

    def _add(self, caller: str, code: str, count: int, detail: str) -> None:
        key = (caller, code)
        if self._clock() - self._day > DAY:
            self._day, self._seen = self._clock(), set()
        if key not in self._seen and len(self._seen) >= MOST_COUNTED:
            key = (OTHERS, code)
        else:
            self._seen.add(key)
        before, _ = self._counts.get(key, (0, ""))
        self._counts[key] = before + count, detail


# Prometheus metrics. With several workers they are summed over all of them, whichever answers the scrape; what the
# others have accepted in the last second may be missing (`count`).

Instrument = TypeVar("Instrument", Counter, Histogram)

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST


class Metrics:
    """The gateway's instruments, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._children: dict[object, Any] = {}
        self._accepted: dict[tuple[str, str], list[int]] = {}
        self._partitions: dict[str, set[int]] = {}
        self._writes = WriteInstruments(self._registry)
        self._leases = LeaseInstruments(self._registry)
        self._sources = SourceInstruments(self._registry)
        self._database = DatabaseInstruments(self._registry)
        self._records = RecordInstruments(self._registry)
        self._queues = QueueInstruments(self._registry)
        self._http = HttpInstruments(self._registry)

    def on_event(self, event: Event) -> None:
        match event:
            case Accepted(table, verb, rows):
                counted = self._accepted.get((table, verb))
                if counted is None:
                    counted = self._accepted[table, verb] = [0, 0]
                counted[0] += 1
                counted[1] += rows
            case Refused(table, verb, code):
                self._of(self._writes.operations, table, verb, code).inc()
            case CallerRefused(_, code):
                self._of(self._http.callers_refused, code).inc()
            case RequestTurnedAway(code):
                self._of(self._http.turned_away, code).inc()
            case LeaseAsked(verb, verdict, _, _, _, waited, tokens):
                self._leases.operations.labels(verb, verdict).inc()
                self._leases.issued.inc(tokens)
                if verdict == "granted":
                    self._leases.waited.observe(waited)
            case ConsumerPaused(queue):
                self._queues.paused.labels(queue).set(1)
            case ConsumerResumed(queue):
                self._queues.paused.labels(queue).set(0)
            case ConsumerFailed(queue):
                self._queues.faults.labels(queue).inc()
            case DeadLettered(queue):
                self._queues.dead_lettered.labels(queue).inc()
            case QueueBlocked(queue):
                self._queues.blocked.labels(queue).inc()
            case QueueFailed():
                self._leases.queue_failures.inc()
            case HolderUnknown(table):
                self._writes.holders_unknown.labels(table).inc()
            case CatalogLoaded(tables=tables, protected=protected):
                self._database.reloads.inc()
                self._database.tables.labels("yes").set(protected)
                self._database.tables.labels("no").set(tables - protected)
            case ListenerLost():
                self._database.listener.inc()
            case ConnectionTrouble():
                self._database.trouble.inc()
            case SealKeysRead():
                self._leases.seal_keys.inc()
            case SealKeysUnreadable():
                self._leases.seal_key_failures.inc()
            case OriginJudged(accepted):
                self._database.origin.set(int(accepted))
            case Pruned(what, records):
                self._records.pruned.labels(what).inc(records)
            case PruningFailed():
                self._records.pruning_failures.inc()
            case BatchesFail():
                self._writes.batch_failures.inc()
            case SourceQuarantined(source):
                self._sources.quarantined.labels(source).set(1)
            case SourceTrouble(source):
                self._sources.troubles.labels(source).inc()
            case KeysFetched():
                self._http.key_changes.inc()
            case KeysNotFetched():
                self._http.key_failures.inc()
            case _:
                assert_never(event)

    def count(self) -> None:
        """Take over what was accepted since the last call: two instruments for each write cost more than its JSON."""
        accepted, self._accepted = self._accepted, {}
        for (table, verb), (operations, rows) in accepted.items():
            self._of(self._writes.operations, table, verb, "accepted").inc(operations)
            self._of(self._writes.rows, table, verb).inc(rows)

    def _of(self, instrument: Instrument, *labels: str | int) -> Instrument:
        """Find an instrument's child. Its own look-up takes a lock, and longer than the counting."""
        name = (instrument, *labels)
        child: Instrument | None = self._children.get(name)
        if child is None:
            child = self._children[name] = instrument.labels(*labels)
        return child

    def request_done(self, method: str, route: str, status: int, seconds: float) -> None:
        """Record one HTTP request."""
        self._of(self._http.requests, method, route, status).observe(seconds)

    def pool(self, size: int, idle: int) -> None:
        """Record the pool's state."""
        self._database.pool.labels("used").set(size - idle)
        self._database.pool.labels("idle").set(idle)

    def silence(self, seconds: float) -> None:
        """Record for how long PostgreSQL has not answered."""
        self._database.silence.set(seconds)

    def writes_waiting(self, count: int) -> None:
        """Record how many writes are in batches, or wait for one."""
        self._writes.waiting.set(count)

    def source(self, name: str, generation: int, *, quarantined: bool) -> None:
        """Publish how a token source stands."""
        self._sources.quarantined.labels(name).set(int(quarantined))
        self._sources.generation.labels(name).set(generation)

    def queue(self, name: str, partition: int, figures: QueueFigures) -> None:
        """Publish how far a partition of a queue is decided, by all consumers. What is not known has no sample."""
        self._partitions.setdefault(name, set()).add(partition)
        of = (name, str(partition))
        queues = self._queues
        for gauge, value in (
            (queues.lag, figures.lag),
            (queues.oldest, figures.oldest),
            (queues.applied, figures.applied),
            (queues.refused, figures.refused),
            (queues.failed, figures.failed),
            (queues.redelivered, figures.redelivered),
            (queues.dead, figures.dead),
        ):
            gauge.labels(*of).set(math.nan if value is None else value)

    def partitions_of_queue(self, name: str) -> frozenset[int]:
        """Give the partitions that this process has published: what is not known of them any more has to be, too."""
        return frozenset(self._partitions.get(name, ()))

    def queue_paused(self, name: str, *, paused: bool) -> None:
        """Publish whether a consumer of a queue decides or takes nothing, wherever it runs."""
        self._queues.paused.labels(name).set(int(paused))

    def locks(self, held: int, waiting: int) -> None:
        """Record the state of all locks."""
        self._leases.held.set(held)
        self._leases.waiters.set(waiting)

    def size(self, what: str, records: int | None, size: int) -> None:
        """Record how much there is of marks or idempotency records. None: the number is not known yet."""
        self._records.bytes.labels(what).set(size)
        if records is not None:
            self._records.count.labels(what).set(records)

    def exposition(self) -> bytes:
        """Write the metrics in Prometheus's text form."""
        self.count()
        registry = self._registry
        if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)
        return generate_latest(_Known(registry))


class _Known(CollectorRegistry):
    """The samples of a registry that have a value: where several processes write, none can be taken back."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__()
        self._all = registry

    def collect(self) -> Iterator[Metric]:
        for family in self._all.collect():
            family.samples = [each for each in family.samples if not math.isnan(each.value)]
            yield family


class Observers:
    """All that is told what happens."""

    def __init__(self) -> None:
        self.metrics, self.log, self.refusals = Metrics(), logs.EventLog(), CallerRefusals()

    def emit(self, event: Event) -> None:
        self.metrics.on_event(event)
        if type(event) is Accepted and not logging.root.isEnabledFor(logging.DEBUG):  # most are, and are no news
            return
        self.log.on_event(event)
        self.refusals.on_event(event)
