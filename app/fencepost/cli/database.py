"""How the commands that only need a database find it and speak of it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import asyncpg
import click

from fencepost.server.ops.embedded.data_directory import running_url
from fencepost.server.ops.embedded.process import EmbeddedServerError
from fencepost.server.ops.protecting.check import ProtectError
from fencepost.server.ops.schema import versions
from fencepost.server.postgres.connections import session
from fencepost.server.postgres.connections.connection import UNREADABLE_URL
from fencepost.server.postgres.errors import StorageError
from fencepost.server.settings import Settings

T = TypeVar("T")


def database_url(settings: Settings) -> str:
    """Return the database's URL: the one that is set, or that of the embedded server running in the data directory."""
    if settings.database_url is not None:
        return settings.database_url.get_secret_value()
    try:
        url = running_url(settings.data_dir)
    except EmbeddedServerError as error:
        raise click.ClickException(str(error)) from error
    if url is None:
        raise click.ClickException(
            "no database: set --database-url or FENCEPOST_DATABASE_URL. (Without one, this command looks for the "
            f"embedded PostgreSQL of a running `fencepost serve` in {settings.data_dir}, and there is none.)"
        )
    return url


def on_database(settings: Settings, work: Callable[[asyncpg.Connection], Awaitable[T]], *, migrated: bool = True) -> T:
    """Run `work` on a connection; whatever PostgreSQL refuses is one line and exit code 1."""

    async def run() -> T:
        connection = await session.connect_first(database_url(settings), session.DURABLE)
        try:
            if migrated and not (schema := await versions.fit(connection)).works:
                text = schema.describe()
                raise click.ClickException(text if schema.found is None else f"schema fencepost: {text}")
            return await work(connection)
        finally:
            await connection.close()

    return run_command(run)


def run_command(run: Callable[[], Awaitable[T]]) -> T:
    """Run to the end, turning what can go wrong with a database into one line."""

    async def main() -> T:
        return await run()

    try:
        return asyncio.run(main())
    except ProtectError as error:
        raise click.ClickException("\n  ".join([f"{error.table}:", *error.reasons])) from error
    except StorageError as error:
        raise click.ClickException(str(error)) from error
    except asyncpg.PostgresError as error:
        hint = f" {error.hint}" if error.hint else ""
        raise click.ClickException(f"PostgreSQL refused: {error.message or error} ({error.sqlstate}).{hint}") from error
    except (ValueError, OverflowError) as error:  # the first quotes the URL, and with it perhaps the password
        raise click.ClickException(UNREADABLE_URL) from error
    except (OSError, TimeoutError, asyncpg.InterfaceError) as error:
        raise click.ClickException(f"cannot connect to PostgreSQL: {str(error) or type(error).__name__}") from error
