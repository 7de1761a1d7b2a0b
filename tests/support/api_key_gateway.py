"""A gateway that wants API keys: a test file has `shared, owner = api_key_gateway.shared, api_key_gateway.owner`."""

from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest
from tests.support.demo_gateway import DemoGateway, demo_gateway
from tests.support.interleave import Connection
from tests.support.ready_made import ReadyMade

from fencepost.server.postgres.api_keys import NewKey

FOR_ALL = NewKey(None, ("read", "write", "lock"), None, None, "")


@pytest.fixture(scope="module")
def shared(databases: ReadyMade) -> Iterator[DemoGateway]:
    """Give the gateway."""
    with demo_gateway(databases, api_keys=True) as gateway:
        yield gateway


@pytest.fixture
async def owner(shared: DemoGateway) -> AsyncIterator[Connection]:
    """Give a connection to its database, which makes keys."""
    connection = await asyncpg.connect(shared.dsn)
    yield connection
    await connection.close()
