"""Prometheus metrics. With several workers they are summed over all of them, whichever answers the scrape; what the
others have accepted in the last second may be missing (`count`).
"""

import math
import os
from collections.abc import Iterator
from typing import Any, Final, TypeVar, assert_never

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector

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
    OfQueues,
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
    Upkeep,
)
from fencepost.server.observe.instruments import (
    DatabaseInstruments,
    HttpInstruments,
    LeaseInstruments,
    QueueFigures,
    QueueInstruments,
    RecordInstruments,
    SourceInstruments,
    WriteInstruments,
)

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
            case ConsumerPaused() | ConsumerResumed() | ConsumerFailed() | DeadLettered() | QueueBlocked():
                self._on_queue(event)
            case _:
                self._on_upkeep(event)

    def _on_queue(self, event: OfQueues) -> None:
        match event:
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
            case _:
                assert_never(event)

    def count(self) -> None:
        """Take over what was accepted since the last call: two instruments for each write cost more than its JSON."""
        accepted, self._accepted = self._accepted, {}
        for (table, verb), (operations, rows) in accepted.items():
            self._of(self._writes.operations, table, verb, "accepted").inc(operations)
            self._of(self._writes.rows, table, verb).inc(rows)

    def _of(self, instrument: Instrument, *labels: str) -> Instrument:
        """Find an instrument's child. Its own look-up takes a lock, and longer than the counting."""
        name = (instrument, *labels)
        child: Instrument | None = self._children.get(name)
        if child is None:
            child = self._children[name] = instrument.labels(*labels)
        return child

    def _on_upkeep(self, event: Upkeep) -> None:
        match event:
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

    def request_done(self, method: str, route: str, status: int, seconds: float) -> None:
        """Record one HTTP request."""
        self._of(self._http.requests, method, route, str(status)).observe(seconds)

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
