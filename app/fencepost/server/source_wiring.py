"""Reads which lock services are configured, and puts them behind the gateway."""

import asyncio
import random
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final

from pydantic import SecretStr

from fencepost.server.gateway.gateway import Gateway
from fencepost.server.locks.source import Source, SourceConfigError, SourceContext, kind_of, make
from fencepost.server.locks.source_leases import SourceLocks
from fencepost.server.observe.events import Emit, QueueFailed, SourceQuarantined, SourceTrouble
from fencepost.server.postgres import sources
from fencepost.server.postgres.errors import RefusedError, StorageError
from fencepost.server.postgres.sources import KnownSource
from fencepost.server.settings import Settings
from fencepost.server.startup import StartupError
from fencepost.server.stopping import Stopping
from fencepost.server.times import Times

_NAME: Final = re.compile("[a-z][a-z0-9_]{0,31}")
_RESERVED: Final = frozenset({"builtin", "external"})
_NO_PRIVILEGE: Final = "42501"


@dataclass(frozen=True, slots=True)
class ConfiguredSource:
    """A source with its name, not opened yet."""

    name: str
    kind: str
    source: Source


def read_sources(settings: Settings) -> list[ConfiguredSource]:
    """Read FENCEPOST_SOURCES. Raises StartupError, which quotes no URL: there may be a password in it."""
    found: dict[str, ConfiguredSource] = {}
    dsn = settings.database_url.get_secret_value() if settings.database_url is not None else ""
    for part in (settings.sources.get_secret_value() if settings.sources is not None else "").split():
        each = read_source(part, dsn)
        if each.name in found:
            raise StartupError(f"FENCEPOST_SOURCES: {each.name} stands there twice")
        found[each.name] = each
    return list(found.values())


def check_sources(settings: Settings) -> None:
    """Refuse a malformed FENCEPOST_SOURCES before anything is opened. Raises StartupError."""
    if settings.database_url is None:  # the embedded server's URL is not known before it runs, and it will have one
        settings = settings.model_copy(update={"database_url": SecretStr("postgresql://127.0.0.1/fencepost")})
    read_sources(settings)


def read_source(text: str, dsn: str) -> ConfiguredSource:
    """Read one NAME=URL. Raises StartupError."""
    name, equals, url = text.partition("=")
    if not equals or not _NAME.fullmatch(name) or name in _RESERVED:
        # Nothing of it is repeated: without its name, or with a `=` in its password, any part may be a secret.
        raise StartupError(
            "FENCEPOST_SOURCES: an item is no NAME=URL with a name of a-z, 0-9 and _ (not builtin, nor external)"
        )
    try:
        return ConfiguredSource(name, kind_of(url), make(url, SourceContext(name, dsn)))
    except SourceConfigError as error:
        raise StartupError(f"FENCEPOST_SOURCES: {name}: {error}") from error


@asynccontextmanager
async def sources_opened(
    configured: Sequence[ConfiguredSource], gateway: Gateway, emit: Emit, stopping: Stopping, *, history: float
) -> AsyncIterator[dict[str, SourceLocks]]:
    """Open the sources, and close them in the end, all at once. The services need not be there; their names must be
    free.
    """
    opened: dict[str, SourceLocks] = {}

    async def close() -> None:
        left = stopping.left()
        await asyncio.gather(*(locks.close(left) for locks in opened.values()))

    async with AsyncExitStack() as stack:
        stack.push_async_callback(close)
        for each in configured:
            locks = _locks(each, gateway, emit)
            try:
                await locks.open()
            except RefusedError as error:
                raise StartupError(f"FENCEPOST_SOURCES: {each.name}: {error}. {_mend(error)}") from error
            opened[each.name] = locks
        sweeping = asyncio.create_task(_sweep_now_and_then(list(opened.values()), history, emit, gateway.times))
        try:
            yield opened
        finally:
            sweeping.cancel()


def _mend(error: RefusedError) -> str:
    if error.sqlstate == _NO_PRIVILEGE:
        return "Run `fencepost migrate --gateway-role` for the role in the database URL"
    return error.hint or ""


def _locks(configured: ConfiguredSource, gateway: Gateway, emit: Emit) -> SourceLocks:
    name = configured.name
    return SourceLocks(
        name,
        configured.kind,
        configured.source,
        gateway.database,
        limits=gateway.locks.limits,
        failed=lambda reason: emit(SourceTrouble(name, reason)),
        quarantined=lambda reason: emit(SourceQuarantined(name, reason)),
        times=gateway.times,
    )


async def _sweep_now_and_then(opened: Sequence[SourceLocks], history: float, emit: Emit, times: Times) -> None:
    while opened:
        await times.clock.sleep(times.sources.sweep_about_every * random.uniform(0.5, 1.5))  # noqa: S311 - so that gateways take turns
        try:
            await opened[0].sweep(history)  # those of all sources
        except StorageError as error:
            emit(QueueFailed(f"leases of lock services that ended could not be forgotten: {error}"))


async def list_sources(gateway: Gateway) -> list[KnownSource]:
    """List the sources as the database knows them; none when it cannot be asked."""
    with suppress(StorageError):
        async with gateway.database.spare() as connection:
            return await sources.list_known(connection)
    return []


async def describe_sources(gateway: Gateway) -> dict[str, str]:
    """Return the state of each lock service, for /readyz. A quarantined one does not make the gateway unready: writes
    go on. Queues are shown by themselves.
    """
    return {
        each.name: each.describe() + ("" if each.name in gateway.sources else "; not configured at this gateway")
        for each in await list_sources(gateway)
        if not each.of_a_queue
    }
