"""Reads which queues are configured, opens their logs, and makes their token sources known (R12)."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from fencepost.server.observe.events import Emit, SourceTrouble
from fencepost.server.postgres import queues as progress
from fencepost.server.postgres.database import Database
from fencepost.server.postgres.errors import RefusedError, StorageError
from fencepost.server.queues import registry
from fencepost.server.queues.log import Log, LogConfigError, LogError
from fencepost.server.settings import Settings
from fencepost.server.startup import StartupError

_FOR_GOOD: Final = frozenset({"42501", "FP400"})
"""SQLSTATEs that waiting does not mend: a privilege is missing, the name is another kind's."""


@dataclass(frozen=True, slots=True)
class ConfiguredQueue:
    """A queue with its name, not opened yet."""

    name: str
    log: Log


def read_queues(settings: Settings) -> list[ConfiguredQueue]:
    """Read FENCEPOST_QUEUES, without the queue of the database itself. Raises StartupError, which quotes no URL: there
    may be a password in it.
    """
    names = names_of_queues(settings)
    if settings.default_queue not in names:
        raise StartupError(
            f"FENCEPOST_DEFAULT_QUEUE: there is no queue {settings.default_queue}; there are {', '.join(names)}"
        )
    try:
        return [ConfiguredQueue(registry.name_of(url), registry.make(url)) for url in _urls(settings)]
    except LogConfigError as error:
        raise StartupError(f"FENCEPOST_QUEUES: {error}") from error


def names_of_queues(settings: Settings) -> list[str]:
    """Name the queues that there are, that of the database first. Raises StartupError."""
    names = [registry.DEFAULT]
    for url in _urls(settings):
        try:
            name = registry.name_of(url)
        except LogConfigError as error:
            raise StartupError(f"FENCEPOST_QUEUES: {error}") from error
        if name in names:
            raise StartupError(f"FENCEPOST_QUEUES: {name} stands there twice")
        names.append(name)
    return names


def _urls(settings: Settings) -> list[str]:
    return settings.queues.get_secret_value().split() if settings.queues is not None else []


@asynccontextmanager
async def queues_opened(
    configured: Sequence[ConfiguredQueue], database: Database, dsn: str, emit: Emit, *, register: bool = True
) -> AsyncIterator[dict[str, Log]]:
    """Open the logs, and close them in the end. Their servers need not be there, nor need the database take writes: a
    consumer registers its queue again. `register`: False for those who only look.
    """
    queues = {registry.DEFAULT: registry.make_default(database, dsn), **{each.name: each.log for each in configured}}
    opened: list[Log] = []
    try:
        for name, log in queues.items():
            if register:
                await _register(database, name, emit)
            opened.append(log)
            try:
                await log.open()
            except LogConfigError as error:
                raise StartupError(f"FENCEPOST_QUEUES: {name}: {error}") from error
            except LogError as error:
                emit(SourceTrouble(name, str(error)))
        yield queues
    finally:
        await asyncio.gather(*(log.close() for log in opened))


async def _register(database: Database, name: str, emit: Emit) -> None:
    try:
        async with database.connection() as connection:
            await progress.register(connection, name)
    except RefusedError as error:
        if error.sqlstate in _FOR_GOOD and name != registry.DEFAULT:  # it is there unasked
            mend = (
                "Run `fencepost migrate --gateway-role` for the role in the database URL"
                if error.sqlstate == "42501"
                else error.hint or ""
            )
            raise StartupError(f"FENCEPOST_QUEUES: {name}: {error}. {mend}") from error
        emit(SourceTrouble(name, f"it is not registered yet: {error}"))
    except StorageError as error:
        emit(SourceTrouble(name, f"it is not registered yet: {error}"))
