"""A gateway's process, in the order in which it happens: settings, identity, the application; then its lifespan:
database, catalog, upkeep, token sources, queues, consumers. It ends in the reverse order.

This is the one place beside parts.py and the command line that reads settings. `fencepost consume` opens the same
gateway without the application.
"""

import asyncio
import gc
import logging
import random
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from types import FrameType
from typing import Any, Final, NamedTuple, Self

import asyncpg
from fastapi import FastAPI

from fencepost.server.fence.seal import SealKeys
from fencepost.server.gateway.election import Watches
from fencepost.server.gateway.gateway import Batches, Gateway, SealKeysFile, Seals
from fencepost.server.gateway.group_commit import BatchedLocks, GroupCommit
from fencepost.server.gateway.outcomes import KeptAnswers, Turns
from fencepost.server.gateway.results import Results
from fencepost.server.gateway.takers import NextRows
from fencepost.server.health import Health
from fencepost.server.http.app import Admin, Application, Parts
from fencepost.server.http.data import Running
from fencepost.server.http.edge import Sites, read_sites
from fencepost.server.http.guard import ADMIN_GUARD, GUARD, KEPT_ANSWERS, ConnectionBounds, Guard
from fencepost.server.http.system import Readiness, ShownHealth
from fencepost.server.locks.builtin import Queue
from fencepost.server.locks.leases import LeaseLimits
from fencepost.server.locks.source_leases import SourceLocks
from fencepost.server.observe import logs
from fencepost.server.observe.events import (
    BatchesFail,
    CatalogLoaded,
    ConnectionTrouble,
    Emit,
    Event,
    ListenerLost,
    OriginJudged,
    Pruned,
    PruningFailed,
    QueueFailed,
)
from fencepost.server.observe.metrics import Observers
from fencepost.server.ops import schema as versions
from fencepost.server.parts import (
    Authentication,
    ConfiguredSource,
    consumers_here,
    consuming,
    read_authentication,
    read_queues,
    read_rate_limits,
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
from fencepost.server.postgres.listen import WRITTEN, Listener
from fencepost.server.postgres.pool import Quota, waiting_quota
from fencepost.server.postgres.queues import LetterBound
from fencepost.server.postgres.tables import Catalog, KnownPrivileges, Served
from fencepost.server.postgres.upkeep import Pruner, add, leave_moment, prune_records
from fencepost.server.queues.registry import ConfiguredQueue, queues_opened
from fencepost.server.settings import Settings
from fencepost.server.startup import StartupError, Stopping, UnreachableError, within
from fencepost.server.times import TIMES, Times

LOGGER: Final = logging.getLogger("fencepost")
_PASSING: Final = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
)
"""No server, none that may be asked yet, none that has a connection left, or a connection that broke."""


GC_THRESHOLD: Final = 20_000
"""How many more objects may be there before Python looks for garbage; a busy gateway has thousands in use."""
GC_THRESHOLD_OF_CONSUMERS: Final = 100_000
"""The same where queues are consumed: a thousand messages in hand are some 60,000 objects, none of them garbage."""


class Configured(NamedTuple):
    """What the settings name, not opened yet."""

    dsn: str
    sources: Sequence[ConfiguredSource] = ()
    queues: Sequence[ConfiguredQueue] = ()
    seal_keys: SealKeys | None = None

    @classmethod
    def read(cls, settings: Settings, queues: Sequence[ConfiguredQueue] | None = None, unset: str = "") -> Self:
        """Read all of it. `queues`: in place of those of the settings. `unset`: what is said after the message that
        there is no database URL. Raises StartupError.
        """
        dsn = _database_url(settings, unset)
        sources = read_sources(settings)
        return cls(dsn, sources, read_queues(settings) if queues is None else queues, read_seal_keys(settings))


def _database_url(settings: Settings, unset: str = "") -> str:
    if settings.database_url is None:
        raise StartupError(f"FENCEPOST_DATABASE_URL is not set{unset}")
    return settings.database_url.get_secret_value()


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


def create_app(settings: Settings | None = None, times: Times = TIMES) -> FastAPI:
    """Build the application. Without settings it reads FENCEPOST_* from the environment, as a worker process does."""
    settings = settings or Settings()
    configured = Configured.read(settings, unset="; `fencepost serve` runs an embedded PostgreSQL without it")
    logs.configure(settings.log_level, settings.log_format)
    runtime, observers = Runtime(), Observers()
    emit = observers.emit
    authentication = read_authentication(settings, emit, lambda: runtime.require().database, times)
    sites = read_sites(settings.host, settings.allowed_hosts, settings.cors_origins)
    guards = _guards(settings, sites, emit, times)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[Mapping[str, object]]:
        async with open_gateway(settings, configured, emit, authentication, times) as gateway:
            consumers = consumers_here(gateway, settings)
            health = Health(gateway, observers.metrics, consumers, authentication.has_keys if authentication else None)
            runtime.gateway, runtime.health = gateway, health
            _rest_from_garbage()
            try:
                async with (
                    authentication.running() if authentication else nullcontext(),
                    consuming(gateway, consumers, settings),
                    _reporting(gateway, health, observers),
                ):
                    yield guards
            finally:
                await health.close()
                runtime.gateway = runtime.health = None

    limits = read_rate_limits(settings, authenticated=authentication is not None)
    admin = None
    if settings.admin_port is not None:
        of_admin = read_sites(settings.admin_host, settings.allowed_hosts, "", addresses=True)
        admin = Admin(settings.admin_port, of_admin)
    return Application(
        Parts(
            runtime,
            ShownHealth(runtime.ready, observers.metrics, runtime.measure),
            observers.metrics.request_done,
            lifespan,
            settings.max_body_bytes,
            settings.access_log,
            sites,
            emit,
            authentication.authenticator if authentication else None,
            limits,
            admin,
            settings.demo,
            settings.try_writes,
        )
    )


def _guards(settings: Settings, sites: Sites, emit: Emit, times: Times) -> dict[str, object]:
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
    guards: dict[str, object] = {GUARD: Guard(bounds, emit, times.edge, sites.for_page)}
    if settings.admin_port is not None:
        guards[ADMIN_GUARD] = settings.admin_port, Guard(bounds.of_admin_port, emit, times.edge)
    return guards


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
    logs.configure(settings.log_level, settings.log_format)
    configured = Configured.read(settings, queues)
    async with open_gateway(settings, configured, logs.EventLog().on_event, times=times) as gateway:
        _rest_from_garbage(GC_THRESHOLD_OF_CONSUMERS)
        yield gateway


# The gateway: the database, the picture of its tables, upkeep, token sources, queues.


@asynccontextmanager
async def open_gateway(
    settings: Settings,
    configured: Configured,
    emit: Emit,
    authentication: Authentication | None = None,
    times: Times = TIMES,
) -> AsyncIterator[Gateway]:
    """Connect, read the catalog, start what runs beside the requests; all of it ends with the block. While PostgreSQL
    cannot be reached, the start begins again, for `--start-timeout` seconds. Raises StartupError.
    """
    async with AsyncExitStack() as stack:

        async def once() -> Gateway:
            await check_database(configured.dsn)
            try:
                return await stack.enter_async_context(_opened(settings, configured, emit, authentication, times))
            except SessionError as error:
                raise StartupError(f"{error}") from error
            except UnavailableError as error:
                raise UnreachableError(f"PostgreSQL could not be asked: {error}") from error

        yield await within(settings.start_timeout, once, times)


@asynccontextmanager
async def _opened(
    settings: Settings, configured: Configured, emit: Emit, authentication: Authentication | None, times: Times
) -> AsyncIterator[Gateway]:
    gateway = await _connect(settings, configured, emit, times)
    upkeep = Upkeep(gateway, settings, authentication)
    stopping = Stopping(settings.shutdown_timeout)
    stops: list[Callable[[], object]] = [
        stopping.ask,
        partial(gateway.database.end_after, settings.shutdown_timeout),
        gateway.locks.queue.stop,
        gateway.next_rows.stop,
    ]
    stops += [gateway.watches.stop, gateway.results.stop, gateway.batches.stopping.set]
    try:
        await _look_first(gateway, _served(settings))
        # Callers' tokens name roles: the login must not be one that may become any.
        names_roles = authentication is not None and authentication.names_roles
        if names_roles and (reason := await gateway.roles.why_not_start(gateway.database)) is not None:
            raise StartupError(reason)
        async with (
            _working(upkeep.works(configured.dsn)),
            _heeding_signals(upkeep.reload, stops),
            sources_opened(configured.sources, gateway, stopping) as sources,
            _working(upkeep.works_of_sources(sources)),
            queues_opened(configured.queues, gateway.database, configured.dsn, emit) as queues,
        ):
            stops += [each.stop for each in sources.values()]
            yield replace(gateway, sources=sources, queues=queues, default_queue=settings.default_queue)
    finally:
        gateway.database.end_after(stopping.left())
        await gateway.next_rows.close()
        await gateway.locks.close()
        await gateway.catalog.close()
        await gateway.group.close()
        await gateway.reads.close()
        await gateway.database.close()


async def _connect(settings: Settings, configured: Configured, emit: Emit, times: Times) -> Gateway:
    """Open the database, and put together what needs nothing else."""
    database = await Database.open(
        configured.dsn,
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

    at_once = max(settings.pool_size // 2, 1)  # the other half of the connections is for everybody else
    leases = LeaseLimits(round(settings.max_ttl * 1000), round(settings.max_wait * 1000), settings.max_tokens)
    queue = Queue(database, lambda reason: emit(QueueFailed(reason)), times)
    made = partial(
        GroupCommit,
        database,
        most_waiting=settings.max_waiting,
        wait_at_most=settings.pool_timeout,
        on_setup_error=lambda reason: emit(BatchesFail(reason)),
        times=times,
    )
    locks = BatchedLocks(database, queue, leases, made(leases=True), made(leases=True))
    turns = Turns(at_once=at_once, wait=settings.lock_timeout, most_waiting=settings.max_waiting)
    return Gateway(
        database,
        CatalogCache(database, on_load, _served(settings)),
        emit,
        settings.max_rows,
        locks,
        made(),
        turns,
        GroupCommit(database, wait_at_most=settings.pool_timeout, reads=True, times=times),
        settings.max_answer_bytes,
        NextRows(times, waiting_quota(settings.max_waiting)),
        kept=KeptAnswers(settings.max_kept_bytes, settings.idempotency_retention, times.clock),
        seals=Seals(configured.seal_keys, settings.seal_lifetime),
        roles=roles,
        privileges=privileges,
        waiters=Quota(settings.max_waiters, settings.max_waiters_per_caller, "FENCEPOST_MAX_WAITERS"),
        watches=Watches(_watchers(settings), times),
        results=Results(_watchers(settings), times),
        letters=LetterBound(settings.max_letter_bytes, times),
        times=times,
        batches=Batches(settings.batch_lines, at_once, settings.lock_timeout, settings.pool_timeout),
    )


def _watchers(settings: Settings) -> Quota:
    return Quota(settings.max_watchers, settings.max_watchers_per_caller, "FENCEPOST_MAX_WATCHERS")


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


@asynccontextmanager
async def database_for_commands(settings: Settings) -> AsyncIterator[Database]:
    """Open the database for a command, without what runs beside requests. Raises UnavailableError."""
    dsn = _database_url(settings)
    limits = replace(_limits(settings), pool_size=1, batch_pool_size=1, lease_pool_size=1)
    database = await Database.open(dsn, limits)
    try:
        yield database
    finally:
        await database.close()


# What is done now and then, whether or not a request asks for it.


class Chore(NamedTuple):
    """What is done `every` so many seconds, for ever. `about`: more or less, so that gateways take turns. `failed` and
    `words`: what is said when the database could not be asked; None: nothing, because requests report it.
    """

    every: float
    do: Callable[[], Awaitable[object]]
    about: bool = False
    failed: Callable[[str], Event] | None = None
    words: str = ""

    async def run(self, gateway: Gateway) -> None:
        while True:
            spread = random.uniform(0.5, 1.5) if self.about else 1.0  # noqa: S311 - no secret
            await gateway.times.clock.sleep(self.every * spread)
            await self.once(gateway)

    async def once(self, gateway: Gateway) -> None:
        try:
            await self.do()
        except StorageError as error:
            if self.failed is not None:
                gateway.emit(self.failed(f"{self.words}: {error}"))


class Upkeep:
    """What a gateway does now and then, with or without an application."""

    def __init__(self, gateway: Gateway, settings: Settings, authentication: Authentication | None = None) -> None:
        self._gateway, self.settings, self._authentication = gateway, settings, authentication
        file = settings.seal_keys_file
        self._seal_keys = None if file is None else SealKeysFile(file, gateway.seals, gateway.emit)
        self._pruner = Pruner(gateway.database)

    def works(self, dsn: str) -> list[Coroutine[Any, Any, None]]:
        """Give all of it, not begun: each runs for ever."""
        gateway, authentication, every = self._gateway, self._authentication, self._gateway.times.upkeep
        queue, works = gateway.locks.queue, list[Coroutine[Any, Any, None]]()
        chores = [
            Chore(every.reload_every, self.reload),
            Chore(every.look_every, self._look),
            Chore(every.look_every, self._leave_moment),
            Chore(every.sweep_about_every, self._sweep, True, QueueFailed, "ended leases could not be swept"),
            Chore(
                every.prune_about_every,
                self._prune,
                True,
                PruningFailed,
                "marks or idempotency records could not be pruned",
            ),
        ]
        announcements = None if authentication is None else authentication.announcements
        if announcements is not None:
            works.append(announcements.forget_while_unheard())
        if authentication is not None and authentication.api_keys is not None:
            # Where that fails (the database may be a standby), a note is lost.
            chores.append(Chore(every.note_keys_about_every, authentication.api_keys.note_uses, True))
        listener = Listener(
            dsn=dsn,
            reload=self.reload,
            lost=lambda reason: gateway.emit(ListenerLost(reason)),
            channels={queue.channel: queue.on_notify, WRITTEN: gateway.next_rows.on_notify},
            connected=[queue.on_listening, gateway.next_rows.on_listening],
            keys=announcements,
            times=gateway.times,
        )
        return [*works, listener.run(), *(chore.run(gateway) for chore in chores)]

    def works_of_sources(self, sources: Mapping[str, SourceLocks]) -> list[Coroutine[Any, Any, None]]:
        """Give what is to be done where there are lock services: one of them forgets the ended leases of all."""
        every, words = self._gateway.times.sources, "leases of lock services that ended could not be forgotten"
        chores = [
            Chore(every.sweep_about_every, partial(each.sweep, self.settings.lease_history), True, QueueFailed, words)
            for each in list(sources.values())[:1]
        ]
        return [chore.run(self._gateway) for chore in chores]

    async def reload(self) -> None:
        """Read the keys of seals and the catalog anew, and see whether this is still the database to write to."""
        if self._seal_keys is not None:
            self._seal_keys.read()
        try:
            await self._gateway.catalog.reload()
        except StorageError as error:
            self._gateway.emit(ListenerLost(f"the catalog could not be read: {error}"))
        with suppress(StorageError):  # requests report it; here it only has to be noticed soon (R19)
            await self._gateway.database.origin_status()

    async def _look(self) -> None:
        """See whether keys of seals have changed, and whether this is still the database to write to."""
        if self._seal_keys is not None:
            self._seal_keys.look()
        await self._gateway.database.origin_status()

    async def _leave_moment(self) -> None:
        """Leave a moment in the database while it is written to (R19)."""
        if self._gateway.database.moment_due:
            await leave_moment(self._gateway.database)

    async def _sweep(self) -> None:
        await self._gateway.locks.sweep(self.settings.lease_history)

    async def _prune(self) -> None:
        if pruned := await self._pruner.run(self.settings.mark_retention):
            self._gateway.emit(Pruned("marks", pruned))
        if pruned := await prune_records(self._gateway.database, self.settings.idempotency_retention):
            self._gateway.emit(Pruned("idempotency", pruned))


@asynccontextmanager
async def _reporting(gateway: Gateway, health: Health, observers: Observers) -> AsyncIterator[None]:
    """Publish now and then what another worker may be asked for, and what was not logged; and write down, now and then
    and at the end, what callers were refused for who they are.
    """

    async def publish() -> None:
        health.publish()
        observers.log.log_withheld()

    async def record() -> None:
        if not (counts := observers.refusals.take()):
            return
        try:
            await add(gateway.database, counts)
        except StorageError:
            observers.refusals.give_back(counts)
            raise

    every = gateway.times.upkeep
    await publish()
    words = "refusals of callers could not be recorded, and will be later"
    recording = Chore(every.record_every, record, failed=PruningFailed, words=words)
    try:
        async with _working([chore.run(gateway) for chore in (Chore(every.publish_every, publish), recording)]):
            yield
    finally:
        observers.metrics.count()
        observers.log.log_withheld()
        await recording.once(gateway)


@asynccontextmanager
async def _working(works: Sequence[Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Run all of them until the block ends."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def _heeding_signals(
    reload: Callable[[], Coroutine[Any, Any, None]], stops: Sequence[Callable[[], object]]
) -> AsyncIterator[None]:
    """Reload on SIGHUP; call `stops` once the process is asked to stop. Who waits or watches is sent away: the server
    would wait for them otherwise.
    """
    loop = asyncio.get_running_loop()
    reloads: set[asyncio.Task[None]] = set()
    previous: dict[signal.Signals, Callable[[int, FrameType | None], Any]] = {}

    def on_hangup() -> None:
        task = asyncio.create_task(reload())
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    def stop(number: int, frame: FrameType | None) -> None:
        for each in stops:
            loop.call_soon_threadsafe(each)
        previous[signal.Signals(number)](number, frame)

    # Signals belong to the main thread; in tests the application runs in another.
    with suppress(ValueError, RuntimeError):
        loop.add_signal_handler(signal.SIGHUP, on_hangup)
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
