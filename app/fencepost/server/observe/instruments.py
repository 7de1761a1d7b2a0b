"""The instruments of the metrics, by what they measure. Each group is made in a registry."""

from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


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
