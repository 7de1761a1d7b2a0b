"""Puts the parts together: the one place beside the command line that reads settings."""

import asyncio
import gc
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final

import asyncpg
from fastapi import FastAPI

from fencepost import background, wire
from fencepost.election.watching import Watches
from fencepost.gateway.gateway import Gateway
from fencepost.gateway.turns import Turns
from fencepost.health import Health
from fencepost.http.app import Application, Parts
from fencepost.locks.builtin.leases import PostgresLocks
from fencepost.locks.builtin.queue import Queue
from fencepost.locks.leases import LeaseLimits
from fencepost.observe import logs
from fencepost.observe.events import (
    BatchesFail,
    CatalogLoaded,
    ConnectionTrouble,
    Emit,
    Event,
    OriginJudged,
    QueueFailed,
)
from fencepost.observe.metrics import Metrics
from fencepost.settings import Settings
from fencepost.source_wiring import ConfiguredSource, read_sources, sources_opened
from fencepost.startup import StartupError
from fencepost.stopping import Stopping
from fencepost.storage.batches.group_commit import GroupCommit
from fencepost.storage.connections import session
from fencepost.storage.connections.connection import Limits
from fencepost.storage.connections.engine import UNREADABLE_URL, Database
from fencepost.storage.connections.origin import ORIGIN
from fencepost.storage.errors import SessionError, StorageError
from fencepost.storage.schema import versions
from fencepost.storage.tables.cache import CatalogCache
from fencepost.storage.tables.catalog import Catalog

PUBLISHED_EVERY: Final = 1.0
"""Seconds between two looks at what each worker has in use."""
GC_THRESHOLD: Final = 20_000
"""How many more objects may be there before Python looks for garbage; a busy gateway has thousands in use."""


async def check_database(dsn: str) -> None:
    """Raise StartupError unless the database can be reached and has the schema that this version works with."""
    try:
        connection = await session.connect_first(dsn, session.PINNED)
    except SessionError as error:
        raise StartupError(f"{error}") from error
    except (ValueError, OverflowError) as error:  # the first quotes the URL, and with it perhaps the password
        raise StartupError(UNREADABLE_URL) from error
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise StartupError(f"cannot connect to PostgreSQL: {str(error) or type(error).__name__}") from error
    try:
        schema = await versions.fit(connection)
        if schema.works:
            await connection.execute(ORIGIN)  # what every connection of the pool begins with (R19)
    except asyncpg.InsufficientPrivilegeError as error:
        raise StartupError(
            f"{error}: run `fencepost migrate --gateway-role` for the role in the database URL"
        ) from error
    finally:
        await connection.close()
    if not schema.works:
        raise StartupError(schema.describe() if schema.found is None else f"schema fencepost: {schema.describe()}")


@dataclass
class Runtime:
    """What exists between the lifespan's two ends."""

    gateway: Gateway | None = None
    health: Health | None = None

    def require(self) -> Gateway:
        """Return the gateway; it is there whenever a request is."""
        if self.gateway is None:
            raise RuntimeError("the application's lifespan has not begun")
        return self.gateway

    def require_health(self) -> Health:
        """Return what the gateway says of itself; the same."""
        if self.health is None:
            raise RuntimeError("the application's lifespan has not begun")
        return self.health


def create_app(settings: Settings | None = None) -> FastAPI:
    """Build the application. Without settings it reads FENCEPOST_* from the environment, as a worker process does."""
    settings = settings or Settings()
    if settings.database_url is None:
        raise StartupError(
            "FENCEPOST_DATABASE_URL is not set; `fencepost serve` runs an embedded PostgreSQL without it"
        )
    configured = read_sources(settings)
    logs.configure(settings.log_level, settings.log_format)
    dsn = settings.database_url.get_secret_value()
    runtime, metrics, log = Runtime(), Metrics(), logs.EventLog()

    def emit(event: Event) -> None:
        log.on_event(event)
        metrics.on_event(event)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with _open(settings, dsn, emit, configured) as gateway:
            runtime.gateway, runtime.health = gateway, Health(gateway, metrics)
            _rest_from_garbage()
            try:
                async with _publish(runtime.health, metrics, log):
                    yield
            finally:
                await runtime.health.close()
                runtime.gateway = runtime.health = None

    async def ready() -> wire.Readiness:
        return await runtime.require_health().ready()

    async def measure() -> None:
        await runtime.require_health().measure()

    return Application(
        Parts(
            runtime.require,
            ready,
            metrics,
            measure,
            metrics.request_done,
            lifespan,
            settings.max_body_bytes,
            settings.access_log,
            settings.demo,
        )
    )


def _rest_from_garbage() -> None:
    """What is there now stays, and is not looked through again and again. What requests make goes with them: Python's
    700 objects at once are no reason to look for more.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)


@asynccontextmanager
async def _open(
    settings: Settings, dsn: str, emit: Emit, configured: Sequence[ConfiguredSource]
) -> AsyncIterator[Gateway]:
    """Connect, read the catalog, start what runs beside the requests; all of it ends with the block."""

    def loaded(catalog: Catalog) -> None:
        protected = sum(1 for table in catalog.tables.values() if table.fence is not None)
        emit(CatalogLoaded(catalog.version, len(catalog.tables), protected))

    await check_database(dsn)
    database = await Database.open(
        dsn,
        _limits(settings),
        lambda standing: emit(OriginJudged(standing.accepted, standing.generation, standing.reason)),
        lambda trouble: emit(ConnectionTrouble(trouble)),
    )
    catalog = CatalogCache(database, [name.strip() for name in settings.schemas.split(",") if name.strip()], loaded)
    queue = Queue(database, settings.max_waiters, lambda reason: emit(QueueFailed(reason)))
    gateway = _assemble(settings, database, catalog, queue, emit)
    stopping = Stopping(settings.shutdown_timeout)
    try:
        try:
            await catalog.reload()
        except StorageError as error:
            raise StartupError(f"the catalog cannot be read: {error}") from error
        with suppress(StorageError):
            await database.origin_status()
        retention = background.Retention(
            settings.lease_history, settings.mark_retention, settings.idempotency_retention
        )
        async with (
            background.run_upkeep(
                dsn, background.Upkeep(database, catalog, gateway.locks, retention, emit, gateway.watches, stopping)
            ),
            sources_opened(configured, gateway, emit, stopping, history=settings.lease_history) as opened,
        ):
            yield replace(gateway, sources=opened)
    finally:
        database.end_after(stopping.left())
        await queue.close()
        await catalog.close()
        await gateway.group.close()
        await database.close()


def _limits(settings: Settings) -> Limits:
    return Limits(
        settings.pool_size,
        settings.pool_timeout,
        settings.statement_timeout,
        settings.lock_timeout,
        settings.batch_pool_size,
        settings.max_waiting,
    )


def _assemble(settings: Settings, database: Database, catalog: CatalogCache, queue: Queue, emit: Emit) -> Gateway:
    at_once = max(settings.pool_size // 2, 1)  # the other half of the connections is for everybody else
    leases = LeaseLimits(round(settings.max_ttl * 1000), round(settings.max_wait * 1000), settings.max_tokens)
    locks = PostgresLocks(database, queue, leases, at_once=at_once)
    group = GroupCommit(
        database,
        most_waiting=settings.max_waiting,
        wait_at_most=settings.pool_timeout,
        on_setup_error=lambda reason: emit(BatchesFail(reason)),
    )
    turns = Turns(at_once=at_once, wait=settings.lock_timeout, most_waiting=settings.max_waiting)
    return Gateway(
        database, catalog, emit, settings.max_rows, locks, group, turns, watches=Watches(settings.max_watchers)
    )


@asynccontextmanager
async def _publish(health: Health, metrics: Metrics, log: logs.EventLog) -> AsyncIterator[None]:
    """Publish again and again what another worker may be asked for, and what was not logged."""

    async def publish() -> None:
        while True:
            health.publish()
            log.log_withheld()
            await asyncio.sleep(PUBLISHED_EVERY)

    publishing = asyncio.create_task(publish())
    try:
        yield
    finally:
        publishing.cancel()
        metrics.count()
        log.log_withheld()
