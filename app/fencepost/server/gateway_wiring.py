"""Opens the gateway: the database, the picture of its tables, locks, sources, queues, and what runs beside requests."""

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import Final, NamedTuple

import asyncpg

from fencepost.server import background
from fencepost.server.election.watching import Watches
from fencepost.server.fence.seal import SealKeys
from fencepost.server.gateway.batches import Batches
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.gathered_reads import GatheredReads
from fencepost.server.gateway.kept import KeptAnswers
from fencepost.server.gateway.results import Results
from fencepost.server.gateway.seals import Seals
from fencepost.server.gateway.shares import CallerShares, Reads
from fencepost.server.gateway.turns import Turns
from fencepost.server.locks.builtin import PostgresLocks, Queue
from fencepost.server.locks.leases import LeaseLimits
from fencepost.server.observe.events import (
    BatchesFail,
    CatalogLoaded,
    ConnectionTrouble,
    Emit,
    OriginJudged,
    QueueFailed,
)
from fencepost.server.ops import schema as versions
from fencepost.server.postgres import connection as session
from fencepost.server.postgres.catalog_cache import CatalogCache
from fencepost.server.postgres.connection import UNREADABLE_URL, Limits
from fencepost.server.postgres.database import AllowedRoles, Database
from fencepost.server.postgres.database_identity import ORIGIN
from fencepost.server.postgres.errors import SessionError, StorageError, UnavailableError
from fencepost.server.postgres.group_commit import GroupCommit
from fencepost.server.postgres.queues import LetterBound
from fencepost.server.postgres.tables import Catalog, KnownPrivileges, Served
from fencepost.server.queue_wiring import ConfiguredQueue, queues_opened
from fencepost.server.quota import Quota, most_of
from fencepost.server.seal_wiring import SealKeysFile
from fencepost.server.settings import Settings
from fencepost.server.source_wiring import ConfiguredSource, sources_opened
from fencepost.server.startup import StartupError, UnreachableError, within
from fencepost.server.stopping import Stopping
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
    keys: background.Keys | None = None,
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
    keys: background.Keys | None,
    times: Times,
    *,
    roles_named: bool,
) -> AsyncIterator[Gateway]:
    gateway = await _connect(settings, dsn, emit, Seals(configured.seal_keys, settings.seal_lifetime), times)
    file = None if settings.seal_keys_file is None else SealKeysFile(settings.seal_keys_file, gateway.seals, emit)
    stopping = Stopping(settings.shutdown_timeout)
    retention = background.Retention(settings.lease_history, settings.mark_retention, settings.idempotency_retention)
    try:
        await _look_first(gateway, _served(settings))
        if roles_named and (reason := await gateway.roles.why_not_start(gateway.database)) is not None:
            raise StartupError(reason)
        async with (
            background.run_upkeep(dsn, background.Upkeep(gateway, retention, stopping, keys, file)),
            sources_opened(configured.sources, gateway, emit, stopping, history=settings.lease_history) as opened,
            queues_opened(configured.queues, gateway.database, dsn, emit) as queues,
        ):
            yield replace(gateway, sources=opened, queues=queues, default_queue=settings.default_queue)
    finally:
        gateway.database.end_after(stopping.left())
        await gateway.locks.queue.close()
        await gateway.catalog.close()
        await gateway.group.close()
        await gateway.gathered.close()
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
    shares = CallerShares(settings.pool_size, settings.pool_timeout, settings.max_waiting)
    reads = Reads(most_of(settings.pool_size), shares)
    return Gateway(
        database,
        catalog,
        emit,
        settings.max_rows,
        locks,
        group,
        turns,
        reads,
        GatheredReads(database, reads, wait_at_most=settings.pool_timeout, times=times),
        shares,
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
