"""Metrics: what events move, and what is looked up when it is asked for; refusals by caller."""

import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, repeat
from typing import Any, Final, NamedTuple

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.multiprocess import MultiProcessCollector

from fencepost.server.observe import logs
from fencepost.server.observe.events import EVENTS, Accepted, CallerRefused, Event, Metric, gauge

# What no event moves: requests, and figures that health.py looks up.

REQUESTS: Final = Metric(
    "histogram",
    "fencepost_http_request_seconds",
    "Time from the request's first byte to the answer's last.",
    ("method", "route", "status"),
    {"buckets": (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)},
)
WRITES_WAITING: Final = gauge(
    "livesum", "fencepost_writes_waiting", "Single-row writes that wait for their batch, or are in one."
)
POOL: Final = gauge("livesum", "fencepost_pool_connections", "Connections to PostgreSQL.", "state")
SILENCE: Final = gauge(
    "livemax",
    "fencepost_database_silence_seconds",
    "For how long PostgreSQL has not answered what /metrics asks; 0 when it has.",
)
LOCKS_HELD: Final = gauge("livemostrecent", "fencepost_locks_held", "Locks that are held, in the whole database.")
LOCK_WAITERS: Final = gauge(
    "livemostrecent", "fencepost_lock_waiters", "Requests that wait for locks, at all gateways."
)
GENERATION: Final = gauge("mostrecent", "fencepost_source_generation", "The generation of a token source.", "source")
RECORDS: Final = gauge(
    "livemostrecent",
    "fencepost_records",
    "Marks and idempotency records, estimated by the planner's statistics.",
    "what",
)
RECORDS_BYTES: Final = gauge(
    "livemostrecent",
    "fencepost_records_bytes",
    "Size on disk of marks and idempotency records, with their indexes.",
    "what",
)


class QueueFigures(NamedTuple):
    """How far a partition is decided; None: it is not known. `lag`: messages, `oldest`: seconds, `dead`: dead letters
    that are there; the rest is counted by all consumers since the queue was first used, and kept in the database.
    """

    lag: int | None
    oldest: float | None
    applied: int | None
    refused: int | None
    failed: int | None
    redelivered: int | None
    dead: int | None


OF_PARTITIONS: Final = tuple(
    gauge("livemostrecent", f"fencepost_queue_{name}", text, "queue", "partition")
    for name, text in (
        ("lag", "Messages of a queue that are not decided."),
        ("oldest_seconds", "Age of the oldest message that is not decided; 0: none is, no sample: not known."),
        ("applied_total", "Messages that were applied."),
        ("refused_total", "Messages whose token the fence refused."),
        ("failed_total", "Messages that became dead letters."),
        ("redelivered_total", "Messages that came again after they were decided."),
        ("dead", "Dead letters that are there."),
    )
)
"""The metrics of QueueFigures, in their order."""

_OF_EVENTS: Final = chain.from_iterable(kind.metrics for kind in EVENTS)
_DECLARED: Final = [each for each in (*OF_PARTITIONS, *globals().values(), *_OF_EVENTS) if isinstance(each, Metric)]
METRICS: Final = [each for _, each in sorted({each.name: each for each in _DECLARED}.items())]
"""All of them: one that stands here or in a class of events is shown."""


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

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST

_MADE: Final[dict[str, Any]] = {"counter": Counter, "gauge": Gauge, "histogram": Histogram}
_RECORDS: Final = {"counter": "inc", "gauge": "set", "histogram": "observe"}


class Metrics:
    """The metrics of a process, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._made = {
            each.name: _MADE[each.kind](each.name, each.text, each.labels, registry=self._registry, **each.options)
            for each in METRICS
        }
        self._found: dict[tuple[Any, ...], Callable[[float], None]] = {}
        self._accepted: dict[tuple[str, str], list[int]] = {}

    def on_event(self, event: Event) -> None:
        if type(event) is Accepted:
            counted = self._accepted.get((event.table, event.verb))
            if counted is None:
                counted = self._accepted[event.table, event.verb] = [0, 0]
            counted[0] += 1
            counted[1] += event.rows
            return
        for metric in event.metrics:
            if metric.where is None or getattr(event, metric.where[0]) == metric.where[1]:
                value = getattr(event, metric.value) if isinstance(metric.value, str) else metric.value
                self.record(metric, value, *map(getattr, repeat(event), metric.by or metric.labels))

    def count(self) -> None:
        """Take over what was accepted since the last call: two metrics for each write cost more than its JSON."""
        accepted, self._accepted = self._accepted, {}
        for (table, verb), (operations, rows) in accepted.items():
            self.record(Accepted.metric, operations, table, verb, Accepted.verdict)
            self.record(Accepted.written, rows, table, verb)

    def record(self, metric: Metric, value: float, *labels: str | int) -> None:
        """Add a value to a counter, set a gauge to it, or have a histogram count it."""
        key = (metric.name, *labels)
        move = self._found.get(key)
        if move is None:  # the look-up of prometheus_client takes a lock, and longer than the counting
            made = self._made[metric.name]
            move = self._found[key] = getattr(made.labels(*labels) if labels else made, _RECORDS[metric.kind])
        move(value)

    def request_done(self, method: str, route: str, status: int, seconds: float) -> None:
        self.record(REQUESTS, seconds, method, route, status)

    def queue(self, name: str, partition: int, figures: QueueFigures) -> None:
        """Publish how far a partition of a queue is decided, by all consumers. What is not known has no sample."""
        for metric, value in zip(OF_PARTITIONS, figures, strict=True):
            self.record(metric, math.nan if value is None else value, name, partition)

    def partitions_of_queue(self, name: str) -> frozenset[int]:
        """Give the partitions that this process has published: what is not known of them any more has to be, too."""
        return frozenset(key[2] for key in self._found if key[:2] == (OF_PARTITIONS[0].name, name))

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

    def collect(self) -> Iterator[Family]:
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
