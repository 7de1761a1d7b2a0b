"""The gateway, put together: its database, what runs beside the requests, the application."""

import asyncio
import gc
import logging
import random
import signal
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any, Final, NamedTuple, Protocol

import asyncpg
from fastapi import FastAPI

from fencepost.server.election import Watches
from fencepost.server.fence.seal import SealKeys
from fencepost.server.gateway.gateway import Batches, Gateway, Seals
from fencepost.server.gateway.group_commit import GroupCommit
from fencepost.server.gateway.outcomes import KeptAnswers, Turns
from fencepost.server.gateway.results import Results
from fencepost.server.health import Health
from fencepost.server.http.app import Admin, Application, Parts
from fencepost.server.http.data import Running
from fencepost.server.http.edge import RateLimits, read_rate, read_sites
from fencepost.server.http.guard import ADMIN_GUARD, GUARD, KEPT_ANSWERS, ConnectionBounds, Guard
from fencepost.server.http.system import Readiness, ShownHealth
from fencepost.server.identity.api_keys import Announcements, ApiKeys
from fencepost.server.locks.builtin import PostgresLocks, Queue
from fencepost.server.locks.leases import LeaseLimits
from fencepost.server.observe import logs
from fencepost.server.observe.events import (
    BatchesFail,
    CatalogLoaded,
    ConnectionTrouble,
    Emit,
    ListenerLost,
    OriginJudged,
    Pruned,
    PruningFailed,
    QueueFailed,
)
from fencepost.server.observe.metrics import CallerRefusals, Metrics, Observers
from fencepost.server.ops import schema as versions
from fencepost.server.parts import (
    Authentication,
    ConfiguredQueue,
    ConfiguredSource,
    SealKeysFile,
    consumers_here,
    consuming,
    queues_opened,
    read_authentication,
    read_queues,
    read_seal_keys,
    read_sources,
    sources_opened,
)
from fencepost.server.postgres import connection as session
from fencepost.server.postgres.catalog_cache import CatalogCache
from fencepost.server.postgres.connection import UNREADABLE_URL, Limits
from fencepost.server.postgres.database import AllowedRoles, Database
from fencepost.server.postgres.database_identity import ORIGIN
from fencepost.server.postgres.errors import SessionError, StorageError, UnavailableError
from fencepost.server.postgres.listen import Listener
from fencepost.server.postgres.pool import Quota
from fencepost.server.postgres.queues import LetterBound
from fencepost.server.postgres.tables import Catalog, KnownPrivileges, Served
from fencepost.server.postgres.upkeep import Pruner, add, leave_moment, prune_records
from fencepost.server.settings import Settings
from fencepost.server.startup import StartupError, Stopping, UnreachableError, within
from fencepost.server.times import TIMES, Times

# What runs beside the requests: keeping the catalog fresh, sweeping ended leases, sending waiters away at the end.


@dataclass(frozen=True, slots=True)
class Retention:
    """How long what is over is remembered, in seconds."""

    leases: float
    marks: float
    idempotency: float


class SealFile(Protocol):
    """The file with the keys of seals."""

    def look(self) -> None: ...

    def read(self) -> None: ...


@dataclass(frozen=True, slots=True)
class KeysOfCallers:
    """API keys: who verifies them, and who hears that they change."""

    verifier: ApiKeys
    announcements: Announcements


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What is done now and then, whether or not a request asks for it."""

    gateway: Gateway
    retention: Retention
    stopping: Stopping
    keys: KeysOfCallers | None = None
    """None: the gateway takes no API keys."""
    seal_keys: SealFile | None = None

    async def reload(self) -> None:
        """Read the keys of seals and the catalog anew, and see whether this is still the database to write to."""
        if self.seal_keys is not None:
            self.seal_keys.read()
        try:
            await self.gateway.catalog.reload()
        except StorageError as error:
            self.gateway.emit(ListenerLost(f"the catalog could not be read: {error}"))
        with suppress(StorageError):  # requests report it; here it only has to be noticed soon (R19)
            await self.gateway.database.origin_status()

    async def reload_now_and_then(self) -> None:
        while True:
            await self.gateway.times.clock.sleep(self.gateway.times.upkeep.reload_every)
            await self.reload()

    async def look_now_and_then(self) -> None:
        """See whether this is still the database to write to, and whether keys of seals have changed, for ever."""
        while True:
            await self.gateway.times.clock.sleep(self.gateway.times.upkeep.look_every)
            if self.seal_keys is not None:
                self.seal_keys.look()
            with suppress(StorageError):
                await self.gateway.database.origin_status()

    async def leave_moments_now_and_then(self) -> None:
        """Leave moments in the database while it is written to, for ever (R19)."""
        while True:
            await self.gateway.times.clock.sleep(self.gateway.times.upkeep.look_every)
            if self.gateway.database.moment_due:
                with suppress(StorageError):  # requests report it
                    await leave_moment(self.gateway.database)

    async def note_uses_now_and_then(self, keys: ApiKeys) -> None:
        """Note which API keys are used, for ever. Where that fails (the database may be a standby), a note is lost."""
        while True:
            await self._sleep_about(self.gateway.times.upkeep.note_keys_about_every)
            with suppress(StorageError):
                await keys.note_uses()

    async def sweep_now_and_then(self) -> None:
        """Remove what ended leases left, for ever."""
        while True:
            await self._sleep_about(self.gateway.times.upkeep.sweep_about_every)
            try:
                await self.gateway.locks.sweep(self.retention.leases)
            except StorageError as error:
                self.gateway.emit(QueueFailed(f"ended leases could not be swept: {error}"))

    async def prune_now_and_then(self) -> None:
        """Forget old marks and idempotency records, for ever."""
        pruner = Pruner(self.gateway.database)
        while True:
            await self._sleep_about(self.gateway.times.upkeep.prune_about_every)
            try:
                if pruned := await pruner.run(self.retention.marks):
                    self.gateway.emit(Pruned("marks", pruned))
                if pruned := await prune_records(self.gateway.database, self.retention.idempotency):
                    self.gateway.emit(Pruned("idempotency", pruned))
            except StorageError as error:
                self.gateway.emit(PruningFailed(f"marks or idempotency records could not be pruned: {error}"))

    async def _sleep_about(self, seconds: float) -> None:
        """Sleep more or less so long, so that gateways take turns."""
        await self.gateway.times.clock.sleep(seconds * random.uniform(0.5, 1.5))  # noqa: S311 - no secret


@asynccontextmanager
async def recording(
    database: Database, refusals: CallerRefusals, emit: Emit, times: Times = TIMES
) -> AsyncIterator[None]:
    """Write down now and then, and at the end, what callers were refused for who they are."""

    async def record() -> None:
        if not (counts := refusals.take()):
            return
        try:
            await add(database, counts)
        except StorageError as error:
            refusals.give_back(counts)
            emit(PruningFailed(f"refusals of callers could not be recorded, and will be later: {error}"))

    async def record_now_and_then() -> None:
        while True:
            await times.clock.sleep(times.upkeep.record_every)
            await record()

    task = asyncio.create_task(record_now_and_then())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await record()


@asynccontextmanager
async def run_upkeep(dsn: str, upkeep: Upkeep) -> AsyncIterator[None]:
    """Run all of it until the block ends."""
    gateway, queue = upkeep.gateway, upkeep.gateway.locks.queue
    listener = Listener(
        dsn=dsn,
        reload=upkeep.reload,
        lost=lambda reason: gateway.emit(ListenerLost(reason)),
        channel=queue.channel,
        woken=queue.on_notify,
        connected=queue.on_listening,
        keys=upkeep.keys.announcements if upkeep.keys else None,
        times=gateway.times,
    )
    of_keys = (
        (upkeep.note_uses_now_and_then(upkeep.keys.verifier), upkeep.keys.announcements.forget_while_unheard())
        if upkeep.keys
        else ()
    )
    works = (
        *of_keys,
        listener.run(),
        upkeep.reload_now_and_then(),
        upkeep.look_now_and_then(),
        upkeep.leave_moments_now_and_then(),
        upkeep.sweep_now_and_then(),
        upkeep.prune_now_and_then(),
    )
    tasks = [asyncio.create_task(work) for work in works]
    try:
        with (
            _reload_on_hangup(upkeep.reload),
            _stop_at_once(
                upkeep.stopping.ask,
                queue.stop,
                gateway.watches.stop,
                gateway.results.stop,
                gateway.batches.stopping.set,
            ),
        ):
            yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def _reload_on_hangup(reload: Callable[[], Coroutine[Any, Any, None]]) -> Iterator[None]:
    """Reload the catalog on SIGHUP."""
    loop = asyncio.get_running_loop()
    reloads: set[asyncio.Task[None]] = set()

    def on_hangup() -> None:
        task = asyncio.create_task(reload())
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    # Signals belong to the main thread; in tests the application runs in another.
    with suppress(ValueError, RuntimeError):
        loop.add_signal_handler(signal.SIGHUP, on_hangup)
    yield


@contextmanager
def _stop_at_once(*stops: Callable[[], None]) -> Iterator[None]:
    """Call these once the process is asked to stop. Who waits or watches is sent away: the server would wait for them
    otherwise.
    """
    loop = asyncio.get_running_loop()
    previous: dict[signal.Signals, Callable[[int, FrameType | None], Any]] = {}

    def stop(number: int, frame: FrameType | None) -> None:
        for each in stops:
            loop.call_soon_threadsafe(each)
        previous[signal.Signals(number)](number, frame)

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            handler = signal.getsignal(number)
            if callable(handler):  # the server's own, which was there first
                previous[number] = handler
                signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


# Opens the gateway: the database, the picture of its tables, locks, sources, queues, and what runs beside requests.

LOGGER: Final = logging.getLogger("fencepost")
_PASSING: Final = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
)
"""No server, none that may be asked yet, none that has a connection left, or a connection that broke."""


class Configured(NamedTuple):
    """What the settings name beside the database."""

    sources: Sequence[ConfiguredSource]
    queues: Sequence[ConfiguredQueue]
    seal_keys: SealKeys | None


async def check_database(dsn: str) -> None:
    """Raise StartupError unless the database can be reached and has the schema that this version works with.
    UnreachableError: it cannot be reached, or takes no connections now.
    """
    try:
        connection = await session.connect_first(dsn, session.PINNED)
    except SessionError as error:
        raise StartupError(f"{error}") from error
    except (ValueError, OverflowError) as error:  # the first quotes the URL, and with it perhaps the password
        raise StartupError(UNREADABLE_URL) from error
    except (*_PASSING, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        kind = UnreachableError if isinstance(error, _PASSING) else StartupError
        what = str(error) or type(error).__name__
        raise kind(f"cannot connect to PostgreSQL, as the database URL names it: {what}") from error
    try:
        schema = await versions.fit(connection)
        if schema.works:
            await connection.execute(ORIGIN)  # what every connection of the pool begins with (R19)
    except asyncpg.InsufficientPrivilegeError as error:
        raise StartupError(
            f"{error}: run `fencepost migrate --gateway-role` for the role in the database URL"
        ) from error
    except _PASSING as error:
        raise UnreachableError(f"the connection to PostgreSQL broke: {str(error) or type(error).__name__}") from error
    finally:
        await connection.close()
    if not schema.works:
        raise StartupError(schema.describe() if schema.found is None else f"schema fencepost: {schema.describe()}")


@asynccontextmanager
async def open_gateway(
    settings: Settings,
    dsn: str,
    emit: Emit,
    configured: Configured,
    keys: KeysOfCallers | None = None,
    times: Times = TIMES,
    *,
    roles_named: bool = False,
) -> AsyncIterator[Gateway]:
    """Connect, read the catalog, start what runs beside the requests; all of it ends with the block. While PostgreSQL
    cannot be reached, the start begins again, for `--start-timeout` seconds. `roles_named`: callers' tokens name roles,
    and the login must not be one that may become any. Raises StartupError.
    """
    async with AsyncExitStack() as stack:

        async def once() -> Gateway:
            await check_database(dsn)
            try:
                return await stack.enter_async_context(
                    _opened(settings, dsn, emit, configured, keys, times, roles_named=roles_named)
                )
            except SessionError as error:
                raise StartupError(f"{error}") from error
            except UnavailableError as error:
                raise UnreachableError(f"PostgreSQL could not be asked: {error}") from error

        yield await within(settings.start_timeout, once, times)


@asynccontextmanager
async def _opened(
    settings: Settings,
    dsn: str,
    emit: Emit,
    configured: Configured,
    keys: KeysOfCallers | None,
    times: Times,
    *,
    roles_named: bool,
) -> AsyncIterator[Gateway]:
    gateway = await _connect(settings, dsn, emit, Seals(configured.seal_keys, settings.seal_lifetime), times)
    file = None if settings.seal_keys_file is None else SealKeysFile(settings.seal_keys_file, gateway.seals, emit)
    stopping = Stopping(settings.shutdown_timeout)
    retention = Retention(settings.lease_history, settings.mark_retention, settings.idempotency_retention)
    try:
        await _look_first(gateway, _served(settings))
        if roles_named and (reason := await gateway.roles.why_not_start(gateway.database)) is not None:
            raise StartupError(reason)
        async with (
            run_upkeep(dsn, Upkeep(gateway, retention, stopping, keys, file)),
            sources_opened(configured.sources, gateway, emit, stopping, history=settings.lease_history) as opened,
            queues_opened(configured.queues, gateway.database, dsn, emit) as queues,
        ):
            yield replace(gateway, sources=opened, queues=queues, default_queue=settings.default_queue)
    finally:
        gateway.database.end_after(stopping.left())
        await gateway.locks.queue.close()
        await gateway.catalog.close()
        await gateway.group.close()
        await gateway.reads.close()
        await gateway.database.close()


async def _connect(settings: Settings, dsn: str, emit: Emit, seals: Seals, times: Times) -> Gateway:
    """Open the database, and put the parts together."""
    database = await Database.open(
        dsn,
        _limits(settings),
        lambda judged: emit(OriginJudged(judged.accepted, judged.generation, judged.reason)),
        lambda trouble: emit(ConnectionTrouble(trouble)),
        times,
    )
    roles, privileges = AllowedRoles(_listed(settings.roles), times), KnownPrivileges(times)

    version = 0

    def on_load(catalog: Catalog) -> None:
        nonlocal version
        roles.forget()
        privileges.forget()
        protected = sum(1 for table in catalog.tables.values() if table.fence is not None)
        changed, version = catalog.version != version, catalog.version
        emit(CatalogLoaded(catalog.version, len(catalog.tables), protected, changed))

    catalog = CatalogCache(database, on_load, _served(settings))
    made = _assemble(settings, database, catalog, emit, times)
    return replace(made, roles=roles, privileges=privileges, seals=seals)


async def _look_first(gateway: Gateway, served: Served) -> None:
    """Read the catalog, name what is to be served and is not there, and see whether this is the database to write to.
    Raises StartupError.
    """
    try:
        await gateway.catalog.reload()
    except UnavailableError:
        raise
    except StorageError as error:
        raise StartupError(f"the catalog cannot be read: {error}") from error
    found = gateway.catalog.current.tables
    for option, missing in (
        ("--tables", served.tables - {name.removeprefix("public.") for name in found}),
        ("--schemas", set(served.schemas) - {table.schema for table in found.values()}),
    ):
        if missing:
            names = ", ".join(sorted(missing))
            LOGGER.warning("%s: there is nothing to serve yet of %s", option, names)
    with suppress(StorageError):
        await gateway.database.origin_status()


def _served(settings: Settings) -> Served:
    tables = frozenset(name.removeprefix("public.") for name in _listed(settings.tables))
    return Served(tuple(_listed(settings.schemas)), tables, settings.serve_unprotected)


def _listed(setting: str) -> list[str]:
    return [name.strip() for name in setting.split(",") if name.strip()]


def _limits(settings: Settings) -> Limits:
    return Limits(
        settings.pool_size,
        settings.pool_timeout,
        settings.statement_timeout,
        settings.lock_timeout,
        settings.batch_pool_size,
        settings.lease_pool_size,
        settings.max_waiting,
    )


def _assemble(settings: Settings, database: Database, catalog: CatalogCache, emit: Emit, times: Times) -> Gateway:
    at_once = max(settings.pool_size // 2, 1)  # the other half of the connections is for everybody else
    leases = LeaseLimits(round(settings.max_ttl * 1000), round(settings.max_wait * 1000), settings.max_tokens)
    queue = Queue(database, lambda reason: emit(QueueFailed(reason)), times)
    locks = PostgresLocks(database, queue, leases)
    group = GroupCommit(
        database,
        most_waiting=settings.max_waiting,
        wait_at_most=settings.pool_timeout,
        on_setup_error=lambda reason: emit(BatchesFail(reason)),
        times=times,
    )
    turns = Turns(at_once=at_once, wait=settings.lock_timeout, most_waiting=settings.max_waiting)
    return Gateway(
        database,
        catalog,
        emit,
        settings.max_rows,
        locks,
        group,
        turns,
        GroupCommit(database, wait_at_most=settings.pool_timeout, reads=True, times=times),
        settings.max_answer_bytes,
        kept=KeptAnswers(settings.max_kept_bytes, settings.idempotency_retention, times.clock),
        waiters=Quota(settings.max_waiters, settings.max_waiters_per_caller, "FENCEPOST_MAX_WAITERS"),
        watches=Watches(_watchers(settings), times),
        results=Results(_watchers(settings), times),
        letters=LetterBound(settings.max_letter_bytes, times),
        times=times,
        batches=Batches(settings.batch_lines, at_once, settings.lock_timeout, settings.pool_timeout),
    )


def _watchers(settings: Settings) -> Quota:
    return Quota(settings.max_watchers, settings.max_watchers_per_caller, "FENCEPOST_MAX_WATCHERS")


@asynccontextmanager
async def database_for_commands(settings: Settings) -> AsyncIterator[Database]:
    """Open the database for a command, without what runs beside requests. Raises UnavailableError."""
    if settings.database_url is None:
        raise StartupError("FENCEPOST_DATABASE_URL is not set")
    limits = replace(_limits(settings), pool_size=1, batch_pool_size=1, lease_pool_size=1)
    database = await Database.open(settings.database_url.get_secret_value(), limits)
    try:
        yield database
    finally:
        await database.close()


# Puts the parts together: the one place beside the command line that reads settings.

GC_THRESHOLD: Final = 20_000
"""How many more objects may be there before Python looks for garbage; a busy gateway has thousands in use."""
GC_THRESHOLD_OF_CONSUMERS: Final = 100_000
"""The same where queues are consumed: a thousand messages in hand are some 60,000 objects, none of them garbage."""


@dataclass
class Runtime(Running):
    """The gateway, and how it does."""

    health: Health | None = None

    async def ready(self) -> Readiness:
        """Look whether requests can be served."""
        return await self._require_health().ready()

    async def measure(self) -> None:
        """Measure what is measured when metrics are asked for."""
        await self._require_health().measure()

    def _require_health(self) -> Health:
        if self.health is None:
            raise RuntimeError("the application's lifespan has not begun")
        return self.health


@dataclass(frozen=True, slots=True)
class _Serving:
    """What was read of the settings before the first request, and how it runs until after the last."""

    settings: Settings
    dsn: str
    configured: Configured
    observers: Observers
    runtime: Runtime
    authentication: Authentication | None
    times: Times

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Have a gateway in the runtime, and all that runs beside its requests, as long as the block runs."""
        settings, times, authentication, runtime = self.settings, self.times, self.authentication, self.runtime
        emit, metrics = self.observers.emit, self.observers.metrics
        roles_named = authentication is not None and authentication.names_roles
        async with open_gateway(
            settings, self.dsn, emit, self.configured, self._keys(), times, roles_named=roles_named
        ) as gateway:
            consumers = consumers_here(gateway, settings)
            jwks = None if authentication is None else authentication.jwks
            has_keys = None if jwks is None else lambda: jwks.current() is not None
            runtime.gateway, runtime.health = gateway, Health(gateway, metrics, consumers, has_keys)
            _rest_from_garbage()
            try:
                async with (
                    authentication.running() if authentication else nullcontext(),
                    consuming(gateway, consumers, settings),
                    recording(gateway.database, self.observers.refusals, emit, times),
                    _publish(runtime.health, metrics, self.observers.log, times),
                ):
                    yield
            finally:
                await runtime.health.close()
                runtime.gateway = runtime.health = None

    def _keys(self) -> KeysOfCallers | None:
        of = self.authentication
        if of is None or of.api_keys is None:
            return None
        return KeysOfCallers(of.api_keys, Announcements(of.authenticator.forget, self.times))


def create_app(settings: Settings | None = None, times: Times = TIMES) -> FastAPI:
    """Build the application. Without settings it reads FENCEPOST_* from the environment, as a worker process does."""
    settings = settings or Settings()
    if settings.database_url is None:
        raise StartupError(
            "FENCEPOST_DATABASE_URL is not set; `fencepost serve` runs an embedded PostgreSQL without it"
        )
    configured = Configured(read_sources(settings), read_queues(settings), read_seal_keys(settings))
    dsn = settings.database_url.get_secret_value()
    logs.configure(settings.log_level, settings.log_format)
    runtime, observers = Runtime(), Observers()
    authentication = read_authentication(settings, observers.emit, lambda: runtime.require().database, times)
    serving = _Serving(settings, dsn, configured, observers, runtime, authentication, times)
    guards = _guards(settings, observers.emit, times)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[Mapping[str, object]]:
        async with serving.running():
            yield guards

    return Application(
        Parts(
            runtime,
            ShownHealth(runtime.ready, observers.metrics, runtime.measure),
            observers.metrics.request_done,
            lifespan,
            settings.max_body_bytes,
            settings.access_log,
            read_sites(settings.host, settings.allowed_hosts, settings.cors_origins),
            observers.emit,
            authentication.authenticator if authentication else None,
            _rate_limits(settings, authenticated=authentication is not None),
            _admin(settings),
            settings.demo,
            settings.try_writes,
        )
    )


def _guards(settings: Settings, emit: Emit, times: Times) -> dict[str, object]:
    """Give what the server finds in the lifespan's state: the bounds within which requests arrive, for each port."""
    bounds = ConnectionBounds(
        settings.max_connections,
        settings.max_connections_per_address,
        settings.max_head_bytes,
        settings.head_timeout,
        settings.body_timeout,
        settings.least_rate,
        KEPT_ANSWERS * max(settings.max_answer_bytes, 8 << 20),
    )
    sites = read_sites(settings.host, settings.allowed_hosts, settings.cors_origins)
    guards: dict[str, object] = {GUARD: Guard(bounds, emit, times.edge, sites.for_page)}
    if settings.admin_port is not None:
        guards[ADMIN_GUARD] = settings.admin_port, Guard(bounds.of_admin_port, emit, times.edge)
    return guards


def _admin(settings: Settings) -> Admin | None:
    if settings.admin_port is None:
        return None
    return Admin(settings.admin_port, read_sites(settings.admin_host, settings.allowed_hosts, "", addresses=True))


def _rate_limits(settings: Settings, *, authenticated: bool) -> RateLimits:
    per_caller = read_rate("rate limit", settings.rate_limit)
    if per_caller is not None and not authenticated:
        raise StartupError(
            "the rate limit is of callers, which are known by authentication: FENCEPOST_JWT_SECRET, for example"
        )
    return RateLimits(per_caller, read_rate("failed rate limit", settings.failed_rate_limit))


def _rest_from_garbage(threshold: int = GC_THRESHOLD) -> None:
    """What is there now stays, and is not looked through again and again. What requests make goes with them: Python's
    700 objects at once are no reason to look for more.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(threshold)


@asynccontextmanager
async def consumer_gateway(
    settings: Settings, queues: Sequence[ConfiguredQueue], times: Times = TIMES
) -> AsyncIterator[Gateway]:
    """Open what a process needs that applies queued writes and answers no requests. Raises StartupError."""
    if settings.database_url is None:
        raise StartupError("FENCEPOST_DATABASE_URL is not set")
    logs.configure(settings.log_level, settings.log_format)
    log = logs.EventLog()
    dsn = settings.database_url.get_secret_value()
    configured = Configured(read_sources(settings), queues, read_seal_keys(settings))
    async with open_gateway(settings, dsn, log.on_event, configured, times=times) as gateway:
        _rest_from_garbage(GC_THRESHOLD_OF_CONSUMERS)
        yield gateway


@asynccontextmanager
async def _publish(health: Health, metrics: Metrics, log: logs.EventLog, times: Times) -> AsyncIterator[None]:
    """Publish again and again what another worker may be asked for, and what was not logged."""

    async def publish() -> None:
        while True:
            health.publish()
            log.log_withheld()
            await times.clock.sleep(times.upkeep.publish_every)

    publishing = asyncio.create_task(publish())
    try:
        yield
    finally:
        publishing.cancel()
        metrics.count()
        log.log_withheld()
