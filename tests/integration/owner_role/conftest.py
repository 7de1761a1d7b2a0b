"""A schema fencepost that has an owner of its own, and tables that belong to another role."""

from collections.abc import AsyncIterator

import pytest
from tests.support.gateways import ORDERS, OwnedDatabase, building
from tests.support.interleave import Connection

from fencepost.server.ops.embedded import PostgresServer
from fencepost.server.ops.protect import protect


@pytest.fixture
async def owned(postgres: PostgresServer) -> AsyncIterator[OwnedDatabase]:
    async with building(postgres) as owned:
        yield owned


@pytest.fixture
async def migrated(postgres: PostgresServer, template: str) -> AsyncIterator[OwnedDatabase]:
    async with building(postgres, template) as owned:
        yield owned


@pytest.fixture
async def fenced(migrated: OwnedDatabase) -> tuple[OwnedDatabase, Connection]:
    """Give a migrated database with an owner, where the table orders of `app` was protected by a superuser; and `app`'s
    connection.
    """
    owned = migrated
    made = await owned.command("migrate", "--owner", owned.owner)
    assert made.exit_code == 0, made.output
    app = await owned.login(owned.app)
    await app.execute(ORDERS)
    await protect(owned.root, "orders")
    await app.execute("INSERT INTO public.orders (id, last_fence_token) VALUES (1, 10), (2, 10)")
    await app.execute("BEGIN; SET LOCAL fencepost.token = '20'; DELETE FROM public.orders WHERE id = 2; COMMIT")
    return owned, app
