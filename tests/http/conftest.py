"""Live gateways on the test's database, and a shop that all tests of a file share."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack

import httpx
import pytest
from tests.http.raw import RawConnection
from tests.support.asking import Api
from tests.support.gateways import DemoGateway, demo_gateway, in_thread
from tests.support.manual_clock import UNHURRIED
from tests.support.postgres import ReadyMade, Unmade
from tests.support.shops import Shop, running_shop

from fencepost.server.ops import demo
from fencepost.server.times import Times
from fencepost.testing.servers.processes import PATIENCE

Start = Callable[..., Awaitable[str]]


@pytest.fixture
def start_gateway(stack: AsyncExitStack) -> Start:
    """Give what starts a gateway on a database, with settings by name. All are stopped afterwards."""

    async def start(database: str, times: Times = UNHURRIED, **changes: object) -> str:
        return await stack.enter_async_context(in_thread(database, times, **changes))

    return start


@pytest.fixture
async def demo_database(unmade: Unmade) -> str:
    """Give the URL of a fresh database with the demo table `orders`, protected, and its rows."""
    await unmade.made_with("demo", demo.load)
    return unmade.url


@pytest.fixture(scope="module")
def shared(databases: ReadyMade) -> Iterator[DemoGateway]:
    """Give a gateway on the demo's database, one for all tests of a file that ask for it or for what is below."""
    with demo_gateway(databases) as gateway:
        yield gateway


@pytest.fixture
async def gateway_url(shared: DemoGateway) -> str:
    """Give the base URL of that gateway; the demo is as it was made."""
    await shared.reset()
    return shared.url


@pytest.fixture
async def raw(gateway_url: str) -> AsyncIterator[RawConnection]:
    connection = await RawConnection.open(gateway_url)
    yield connection
    connection.close()


@pytest.fixture
async def http(gateway_url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=gateway_url, timeout=PATIENCE, trust_env=False) as client:
        yield client


@pytest.fixture(scope="module")
def shop(databases: ReadyMade) -> Iterator[Shop]:
    """Give a gateway on the tables of support/shops.py, one for all tests of a file. What is queued stays queued."""
    with running_shop(databases, consume_here=False) as shop:
        yield shop


@pytest.fixture
async def api(shop: Shop) -> AsyncIterator[Api]:
    """Give what asks the shop's gateway."""
    async with Api.open(shop.url) as api:
        yield api
