"""A schema fencepost that has an owner of its own, and tables that belong to another role."""

from collections.abc import AsyncIterator

import pytest
from tests.support.house import ORDERS, House, building
from tests.support.interleave import Connection

from fencepost.embedded.server import PostgresServer
from fencepost.storage.protecting.protect import protect


@pytest.fixture
async def house(postgres: PostgresServer) -> AsyncIterator[House]:
    async with building(postgres) as house:
        yield house


@pytest.fixture
async def migrated(postgres: PostgresServer, template: str) -> AsyncIterator[House]:
    async with building(postgres, template) as house:
        yield house


@pytest.fixture
async def fenced(migrated: House) -> tuple[House, Connection]:
    """Give a migrated database with an owner, where the table orders of `app` was protected by a superuser; and `app`'s
    connection.
    """
    house = migrated
    made = await house.command("migrate", "--owner", house.owner)
    assert made.exit_code == 0, made.output
    app = await house.login(house.app)
    await app.execute(ORDERS)
    await protect(house.root, "orders")
    await app.execute("INSERT INTO public.orders (id, last_fence_token) VALUES (1, 10), (2, 10)")
    await app.execute("BEGIN; SET LOCAL fencepost.token = '20'; DELETE FROM public.orders WHERE id = 2; COMMIT")
    return house, app
