"""Prometheus metrics. With several workers they are summed over all of them, whichever answers the scrape; what the
others have accepted in the last second may be missing (`count`).
"""

import os
from typing import Any, Final, TypeVar, assert_never

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from fencepost.observe.events import (
    Accepted,
    BatchesFail,
    CatalogLoaded,
    ConnectionTrouble,
    Event,
    HolderUnknown,
    LeaseAsked,
    ListenerLost,
    OriginJudged,
    Pruned,
    PruningFailed,
    QueueFailed,
    Refused,
    SourceFroze,
    SourceTrouble,
    Upkeep,
)

Instrument = TypeVar("Instrument", Counter, Histogram)

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST


class Metrics:
    """The gateway's instruments, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._children: dict[object, Any] = {}
        self._accepted: dict[tuple[str, str], list[int]] = {}
        self._operations = Counter(
            "fencepost_operations",
            "Writes, claims and refused reads by verdict: accepted, or the code of the refusal.",
            ["table", "verb", "verdict"],
            registry=self._registry,
        )
        self._rows = Counter(
            "fencepost_rows_written", "Rows in accepted writes.", ["table", "verb"], registry=self._registry
        )
        self._leases = Counter(
            "fencepost_lease_operations",
            "Leases asked for, renewed, minted from, released: granted, repeated, done, or the code of the refusal.",
            ["verb", "verdict"],
            registry=self._registry,
        )
        self._issued = Counter("fencepost_tokens_issued", "Tokens drawn, of grants and mints.", registry=self._registry)
        self._waited = Histogram(
            "fencepost_lock_wait_seconds",
            "Time from a request for a lock to its grant.",
            buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300),
            registry=self._registry,
        )
        self._source_frozen = Gauge(
            "fencepost_source_frozen",
            "1 when the numbers of a token source went backwards and nothing is taken from it.",
            ["source"],
            registry=self._registry,
            multiprocess_mode="mostrecent",
        )
        self._source_generation = Gauge(
            "fencepost_source_generation",
            "The generation of a token source.",
            ["source"],
            registry=self._registry,
            multiprocess_mode="mostrecent",
        )
        self._source_troubles = Counter(
            "fencepost_source_troubles",
            "How often work for a lock service that no request waits for failed.",
            ["source"],
            registry=self._registry,
        )
        self._locks = Gauge(
            "fencepost_locks_held",
            "Locks that are held, in the whole database.",
            multiprocess_mode="livemostrecent",
            registry=self._registry,
        )
        self._waiters = Gauge(
            "fencepost_lock_waiters",
            "Requests that wait for locks, at all gateways.",
            multiprocess_mode="livemostrecent",
            registry=self._registry,
        )
        self._queue_failures = Counter(
            "fencepost_lock_queue_failures", "How often the queues could not be kept up.", registry=self._registry
        )
        self._requests = Histogram(
            "fencepost_http_request_seconds",
            "Time from the request's first byte to the answer's last.",
            ["method", "route", "status"],
            buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
            registry=self._registry,
        )
        self._pool = Gauge(
            "fencepost_pool_connections",
            "Connections to PostgreSQL.",
            ["state"],
            multiprocess_mode="livesum",
            registry=self._registry,
        )
        self._silence = Gauge(
            "fencepost_database_silence_seconds",
            "For how long PostgreSQL has not answered what /metrics asks; 0 when it has.",
            multiprocess_mode="livemax",
            registry=self._registry,
        )
        self._writes_waiting = Gauge(
            "fencepost_writes_waiting",
            "Single-row writes that wait for their batch, or are in one.",
            multiprocess_mode="livesum",
            registry=self._registry,
        )
        self._batch_failures = Counter(
            "fencepost_batch_failures",
            "How often (once a minute at most) batches of writes lacked a privilege or a function.",
            registry=self._registry,
        )
        self._holders_unknown = Counter(
            "fencepost_holders_unknown",
            "Refusals that were answered without naming the newer holder, because it could not be looked up.",
            ["table"],
            registry=self._registry,
        )
        self._tables = Gauge(
            "fencepost_tables",
            "Tables in the catalog.",
            ["protected"],
            multiprocess_mode="livemax",
            registry=self._registry,
        )
        self._reloads = Counter("fencepost_catalog_loads", "Catalog loads.", registry=self._registry)
        self._listener = Counter(
            "fencepost_listener_losses", "How often the LISTEN connection broke.", registry=self._registry
        )
        self._trouble = Counter(
            "fencepost_connection_troubles",
            "How often PostgreSQL had no connection left, became read-only, or a connection could not be closed.",
            registry=self._registry,
        )
        self._origin = Gauge(
            "fencepost_origin_accepted",
            "1 when writes are let through to the database behind the gateway, 0 when it is a standby or quarantined.",
            multiprocess_mode="livemin",
            registry=self._registry,
        )
        self._records = Gauge(
            "fencepost_records",
            "Marks and idempotency records, estimated by the planner's statistics.",
            ["what"],
            multiprocess_mode="livemostrecent",
            registry=self._registry,
        )
        self._bytes = Gauge(
            "fencepost_records_bytes",
            "Size on disk of marks and idempotency records, with their indexes.",
            ["what"],
            multiprocess_mode="livemostrecent",
            registry=self._registry,
        )
        self._pruned = Counter(
            "fencepost_records_pruned",
            "Marks and idempotency records that this gateway forgot.",
            ["what"],
            registry=self._registry,
        )
        self._pruning_failures = Counter(
            "fencepost_pruning_failures", "How often nothing could be pruned.", registry=self._registry
        )

    def on_event(self, event: Event) -> None:
        """Count an event."""
        match event:
            case Accepted(table, verb, rows):
                counted = self._accepted.get((table, verb))
                if counted is None:
                    counted = self._accepted[table, verb] = [0, 0]
                counted[0] += 1
                counted[1] += rows
            case Refused(table, verb, code):
                self._of(self._operations, table, verb, code).inc()
            case LeaseAsked(verb, verdict, _, _, _, waited, tokens):
                self._leases.labels(verb, verdict).inc()
                self._issued.inc(tokens)
                if verdict == "granted":
                    self._waited.observe(waited)
            case _:
                self._on_upkeep(event)

    def count(self) -> None:
        """Take over what was accepted since the last call: two instruments for each write cost more than its JSON."""
        accepted, self._accepted = self._accepted, {}
        for (table, verb), (operations, rows) in accepted.items():
            self._of(self._operations, table, verb, "accepted").inc(operations)
            self._of(self._rows, table, verb).inc(rows)

    def _of(self, instrument: Instrument, *labels: str) -> Instrument:
        """Find an instrument's child. Its own look-up takes a lock, and longer than the counting."""
        name = (instrument, *labels)
        child: Instrument | None = self._children.get(name)
        if child is None:
            child = self._children[name] = instrument.labels(*labels)
        return child

    def _on_upkeep(self, event: Upkeep) -> None:  # noqa: C901 - one case for each kind
        match event:
            case QueueFailed():
                self._queue_failures.inc()
            case HolderUnknown(table):
                self._holders_unknown.labels(table).inc()
            case CatalogLoaded(_, tables, protected):
                self._reloads.inc()
                self._tables.labels("yes").set(protected)
                self._tables.labels("no").set(tables - protected)
            case ListenerLost():
                self._listener.inc()
            case ConnectionTrouble():
                self._trouble.inc()
            case OriginJudged(accepted):
                self._origin.set(int(accepted))
            case Pruned(what, records):
                self._pruned.labels(what).inc(records)
            case PruningFailed():
                self._pruning_failures.inc()
            case BatchesFail():
                self._batch_failures.inc()
            case SourceFroze(source):
                self._source_frozen.labels(source).set(1)
            case SourceTrouble(source):
                self._source_troubles.labels(source).inc()
            case _:
                assert_never(event)

    def request_done(self, method: str, route: str, status: int, seconds: float) -> None:
        """Record one HTTP request."""
        self._of(self._requests, method, route, str(status)).observe(seconds)

    def pool(self, size: int, idle: int) -> None:
        """Record the pool's state."""
        self._pool.labels("used").set(size - idle)
        self._pool.labels("idle").set(idle)

    def silence(self, seconds: float) -> None:
        """Record for how long PostgreSQL has not answered."""
        self._silence.set(seconds)

    def writes_waiting(self, count: int) -> None:
        """Record how many writes are in batches, or wait for one."""
        self._writes_waiting.set(count)

    def source(self, name: str, generation: int, *, frozen: bool) -> None:
        """Publish how a token source stands."""
        self._source_frozen.labels(name).set(int(frozen))
        self._source_generation.labels(name).set(generation)

    def locks(self, held: int, waiting: int) -> None:
        """Record the state of all locks."""
        self._locks.set(held)
        self._waiters.set(waiting)

    def size(self, what: str, records: int | None, size: int) -> None:
        """Record how much there is of marks or idempotency records. None: the number is not known yet."""
        self._bytes.labels(what).set(size)
        if records is not None:
            self._records.labels(what).set(records)

    def exposition(self) -> bytes:
        """Write the metrics in Prometheus's text form."""
        self.count()
        registry = self._registry
        if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)
        return generate_latest(registry)
