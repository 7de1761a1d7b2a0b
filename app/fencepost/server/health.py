"""Whether the gateway is ready, and how far its queues are."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Generic, Literal, TypeVar

import asyncpg

from fencepost.server.consuming.consumer import QueueConsumer
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.http.system import Readiness
from fencepost.server.observe import metrics as shown
from fencepost.server.observe.events import ConsumerPaused, PruningFailed, QueueFailed, SourceQuarantined
from fencepost.server.observe.metrics import Metrics, QueueFigures
from fencepost.server.ops import schema as versions
from fencepost.server.parts import describe_sources, list_sources
from fencepost.server.postgres import queues, upkeep
from fencepost.server.postgres.database_identity import OriginStatus
from fencepost.server.postgres.errors import StorageError
from fencepost.server.queues.registry import QueueStatus, look_at
from fencepost.server.times import TIMES, Times

# How queues stand, for /readyz and /metrics.


async def look_at_queues(gateway: Gateway) -> list[QueueStatus]:
    """Look at all queues, as `look_at` does; at none when the database cannot be asked."""
    try:
        return await look_at(gateway.database, gateway.queues, gateway.times.health.log_within)
    except StorageError:
        return []


async def describe_queues(gateway: Gateway, consumers: Mapping[str, QueueConsumer]) -> dict[str, str]:
    """Return the state of each queue, for /readyz. None of it makes the gateway unready."""
    described = {}
    for each in await look_at_queues(gateway):
        name = each.known.name
        paused = consumers[name].paused_because if name in consumers else None
        described[name] = each.describe(paused, configured=name in gateway.queues)
    return described


async def measure_queues(gateway: Gateway, consumers: Mapping[str, QueueConsumer], metrics: Metrics) -> None:
    """Bring the metrics of queues up to date. `consumers`: those of this process."""
    publish(await look_at_queues(gateway), consumers, metrics)


def publish(statuses: Sequence[QueueStatus], consumers: Mapping[str, QueueConsumer], metrics: Metrics) -> None:
    """Set the metrics of queues, also of what is not known of them any more. `consumers`: those of this process."""
    for each in statuses:
        name = each.known.name
        noted = {one.partition: one for one in each.known.partitions}
        before = metrics.partitions_of_queue(name)
        for partition in sorted({*range(len(each.ages)), *(each.dead or ()), *before}):
            metrics.queue(name, partition, _figures(each, partition, noted.get(partition)))
        here = name in consumers and consumers[name].paused_because is not None
        metrics.record(ConsumerPaused.metric, here or each.known.paused is not None, name)


def _figures(status: QueueStatus, partition: int, noted: queues.KnownPartition | None) -> QueueFigures:
    lag = status.lags[partition] if 0 <= partition < len(status.lags) else None
    age = status.ages[partition] if 0 <= partition < len(status.ages) else None
    dead = None if status.dead is None else status.dead.get(partition, 0)
    if noted is None:
        count = 0 if partition >= 0 else None  # letters of no partition
        return QueueFigures(lag, age, count, count, count, count, dead)
    return QueueFigures(lag, age, noted.applied, noted.refused, noted.failed, noted.redelivered, dead)


# What /readyz and /metrics show, and how long they wait for PostgreSQL's answer (HealthTimes), whatever it does.
#
# Each asks PostgreSQL anew. All that want the same at one time share the question, so probes do not pile up on a
# server that does not answer. When it has not answered in time, the answer is made of what is known: not ready, and
# for how long PostgreSQL has been silent; or the metrics without what only the database knows. The question goes on
# for `ask_for` seconds, and its answer counts for those who ask until then.

T = TypeVar("T")


class Question(Generic[T]):
    """Something to be asked, once at a time. None is no answer."""

    def __init__(
        self,
        ask: Callable[[], Awaitable[T | None]],
        times: Times = TIMES,
    ) -> None:
        self._ask = ask
        self._times, self._clock = times.health, times.clock
        self._asking: asyncio.Task[T | None] | None = None
        self._silent_since: float | None = None

    @property
    def silence(self) -> float:
        """For how many seconds it has not been answered; 0: it was, or is not asked."""
        if self._silent_since is None:
            return 0.0
        return self._clock.monotonic() - self._silent_since

    async def answer(self) -> T | None:
        """Give the answer; None: there is none in time."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask_in_time())
        await asyncio.wait([self._asking], timeout=self._times.answer_within)
        return self._asking.result() if self._asking.done() else None

    async def close(self) -> None:
        """Give up what is being asked."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])

    async def _ask_in_time(self) -> T | None:
        if self._silent_since is None:
            self._silent_since = self._clock.monotonic()
        try:
            async with asyncio.timeout(self._times.ask_for):
                answer = await self._ask()
        except TimeoutError:
            return None
        if answer is not None:
            self._silent_since = None
        return answer


_NO_KEYS: Final = "none could be fetched (FENCEPOST_JWT_JWKS): no JWT can be verified"


class Health:
    """What a gateway reports about itself."""

    def __init__(
        self,
        gateway: Gateway,
        metrics: Metrics,
        consumers: Mapping[str, QueueConsumer] | None = None,
        has_keys: Callable[[], bool] | None = None,
    ) -> None:
        """`consumers`: those of this process, by the names of their queues. `has_keys`: whether there are keys by which
        JWTs are verified; None: none are fetched.
        """
        self._gateway = gateway
        self._consumers = consumers or {}
        self._has_keys = has_keys
        self._metrics = metrics
        self._readiness: Question[Readiness] = Question(self._ask_readiness, gateway.times)
        self._figures: Question[Literal[True]] = Question(self._ask_figures, gateway.times)

    async def close(self) -> None:
        """Give up what is being asked: the connections go."""
        await self._readiness.close()
        await self._figures.close()

    async def ready(self) -> Readiness:
        """Return whether requests can be served."""
        known = await self._readiness.answer()
        if known is not None:
            return known
        silence = f"no answer from PostgreSQL for {self._readiness.silence:.1f} s"
        return self._readiness_body(silence, "unknown", None, {}, {}, ready=False)

    async def measure(self) -> None:
        """Bring the metrics up to date, as far as PostgreSQL answers."""
        self.publish()
        await self._figures.answer()
        self._metrics.record(shown.SILENCE, self._figures.silence)

    def publish(self) -> None:
        """Bring up to date what the process itself knows."""
        size, idle = self._gateway.database.sizes()
        self._metrics.record(shown.POOL, size - idle, "used")
        self._metrics.record(shown.POOL, idle, "idle")
        self._metrics.record(shown.WRITES_WAITING, self._gateway.group.waiting)
        self._metrics.count()

    def _readiness_body(
        self,
        database: str,
        schema: str,
        origin: OriginStatus | None,
        sources: dict[str, str],
        queues: dict[str, str],
        *,
        ready: bool,
    ) -> Readiness:
        loaded = self._gateway.catalog.current
        return {
            "status": "ready" if ready else "not ready",
            "database": database,
            "schema": schema,
            "origin": "unknown" if origin is None else origin.describe(),
            "catalog": f"version {loaded.version}, {len(loaded.tables)} tables",
            "fences": {
                table.name: f"refused: {table.fence.broken}"
                for table in loaded.tables.values()
                if table.fence is not None and not table.fence.intact
            },
            "keys": "not fetched" if self._has_keys is None else "known" if self._has_keys() else _NO_KEYS,
            "sources": sources,
            "queues": queues,
        }

    async def _ask_readiness(self) -> Readiness:
        """Ask everything at once: a log that waits for a connection, say, does not make the rest late."""
        (database, schema, origin), sources, queues = await asyncio.gather(
            self._ask_database(), describe_sources(self._gateway), describe_queues(self._gateway, self._consumers)
        )
        ready = schema is not None and schema.works and origin is not None and origin.accepted
        ready = ready and (self._has_keys is None or self._has_keys())
        described = "unknown" if schema is None else schema.describe()
        return self._readiness_body(database, described, origin, sources, queues, ready=ready)

    async def _ask_database(self) -> tuple[str, versions.Fit | None, OriginStatus | None]:
        gateway = self._gateway
        database, schema, origin = "reachable", None, None
        try:
            async with gateway.database.spare() as connection:
                schema = await versions.fit(connection)
            origin = await gateway.database.origin_status()
        except (StorageError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            database, schema = f"unreachable: {error}", None
        else:
            if gateway.database.all_lent:
                database += "; all connections of this process are in use"
        return database, schema, origin

    async def _ask_figures(self) -> Literal[True] | None:
        if not (await self._count_locks() and await self._measure_sizes()):
            return None
        for each in await list_sources(self._gateway):
            self._metrics.record(SourceQuarantined.metric, each.quarantined is not None, each.name)
            self._metrics.record(shown.GENERATION, each.generation, each.name)
        await measure_queues(self._gateway, self._consumers, self._metrics)
        return True

    async def _count_locks(self) -> bool:
        try:
            held, waiting = await self._gateway.locks.counts()
        except StorageError as error:  # the metrics of the gateway itself are wanted all the more
            self._gateway.emit(QueueFailed(f"locks could not be counted: {error}"))
            return False
        self._metrics.record(shown.LOCKS_HELD, held)
        self._metrics.record(shown.LOCK_WAITERS, waiting)
        return True

    async def _measure_sizes(self) -> bool:
        try:
            async with self._gateway.database.connection() as connection:
                found = await upkeep.estimate_sizes(connection)
        except StorageError as error:
            self._gateway.emit(PruningFailed(f"marks could not be measured: {error}"))
            return False
        for size in found:
            self._metrics.record(shown.RECORDS_BYTES, size.bytes, size.what)
            if size.records is not None:  # None: the number is not known yet
                self._metrics.record(shown.RECORDS, size.records, size.what)
        return True
