"""Run Alembic from Python: bring the schema fencepost to the newest revision, or report where it stands."""

import io

from alembic import command
from alembic.config import Config
from alembic.util.exc import CommandError
from sqlalchemy import Connection as SyncConnection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from fencepost.server.ops import schema
from fencepost.server.postgres import connection as session
from fencepost.server.postgres.errors import StorageError


def _config(
    connection: SyncConnection | None = None, output: io.StringIO | None = None, owner: str | None = None
) -> Config:
    config = Config(output_buffer=output) if output is not None else Config()
    config.set_main_option("script_location", str(schema.scripts_dir()).replace("%", "%%"))
    config.attributes["connection"] = connection
    config.attributes["owner"] = owner
    return config


class NewerSchemaError(StorageError):
    """The schema is of a newer version of Fencepost, which alone can migrate it. Nothing was changed."""


async def _run(dsn: str, revision: str, owner: str | None = None, *, down: bool) -> None:
    await session.require_own(dsn)
    # asyncpg reads the URL itself, so that every option of the gateway's own URL means the same here.
    engine = create_async_engine(
        "postgresql+asyncpg://", async_creator=lambda: session.connect(dsn, session.DURABLE), poolclass=NullPool
    )
    step = command.downgrade if down else command.upgrade
    try:
        async with engine.connect() as connection:
            await connection.run_sync(lambda sync: step(_config(sync, owner=owner), revision))
    except CommandError as error:
        await _refuse_newer(dsn)
        raise RuntimeError(f"Alembic could not migrate: {error}") from error
    except DBAPIError as error:  # SQLAlchemy's clothes around asyncpg's error, which callers know
        raise (error.orig and error.orig.__cause__) or error from error
    finally:
        await engine.dispose()


async def _refuse_newer(dsn: str) -> None:
    """Raise NewerSchemaError if that is why Alembic found no way. It has rolled back what it had begun."""
    connection = await session.connect(dsn, session.DURABLE)
    try:
        found = await schema.current(connection)
    finally:
        await connection.close()
    if found is not None and found not in schema.known_revisions():
        raise NewerSchemaError(
            f"the schema fencepost is at revision {found}, and this version of Fencepost only knows those up to"
            f" {schema.newest()}: it was migrated by a newer version. Nothing was changed; run `migrate` of that one"
        )


async def upgrade(dsn: str, *, owner: str | None = None) -> None:
    """Migrate the schema fencepost; touches nothing else. Several at once wait for each other.

    `owner`: the role that the schema and all in it will belong to, made if absent; None keeps the one that is, and
    takes the connection's own for a new schema. asyncpg.InsufficientPrivilegeError says what that one lacks.
    NewerSchemaError: only a newer version of Fencepost can.
    """
    await _run(dsn, "head", owner, down=False)


async def downgrade(dsn: str) -> None:
    """Undo all migrations; the empty schema and its alembic_version stay. Refused while tables are protected."""
    await _run(dsn, "base", down=True)


def upgrade_sql(owner: str | None = None) -> str:
    """Write the whole migration as SQL, touching no database. `owner` as in `upgrade`."""
    output = io.StringIO()
    command.upgrade(_config(output=output, owner=owner), "head", sql=True)
    return output.getvalue()
