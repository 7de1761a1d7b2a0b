"""Alembic's environment: everything stays in the schema fencepost, its version table too.

Run through `fencepost migrate`, which hands over an open connection; `alembic` itself takes FENCEPOST_DATABASE_URL.
"""

import asyncio
import os

from alembic import context
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from fencepost.server.ops.schema import SCHEMA, act_sql, settle_sql, watch_sql
from fencepost.server.postgres import connection as session

# Migrations of several gateways that start at once wait for each other here.
MIGRATION_LOCK = 0x66656E6365


def run(connection: Connection) -> None:
    connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": MIGRATION_LOCK})
    connection.commit()
    context.configure(connection=connection, version_table_schema=SCHEMA)
    with context.begin_transaction():
        as_owner()
        context.run_migrations()
        watch()


def as_owner() -> None:
    """Make the schema, give it to the role that is asked for, and go on as its owner."""
    for statement in (settle_sql(context.config.attributes.get("owner")), act_sql()):
        # text() would take `:name` for a parameter.
        context.execute(text(statement.replace(":", "\\:")))


def watch() -> None:
    """Make the event triggers where that is possible: nothing else here needs a superuser."""
    context.execute(text(watch_sql().replace(":", "\\:")))


async def connect_and_run(url: str) -> None:
    await session.require_own(url)
    engine = create_async_engine(
        "postgresql+asyncpg://", async_creator=lambda: session.connect(url, session.DURABLE), poolclass=NullPool
    )
    async with engine.connect() as connection:
        await connection.run_sync(run)
    await engine.dispose()


def main() -> None:
    if context.is_offline_mode():
        context.configure(
            dialect_name="postgresql",
            # Another paramstyle would double every % in the functions' bodies.
            dialect_opts={"paramstyle": "named"},
            version_table_schema=SCHEMA,
            literal_binds=True,
        )
        with context.begin_transaction():
            as_owner()
            context.run_migrations()
            watch()
    elif (connection := context.config.attributes.get("connection")) is not None:
        run(connection)
    else:
        asyncio.run(connect_and_run(os.environ["FENCEPOST_DATABASE_URL"]))


main()
