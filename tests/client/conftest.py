"""Clients of a live gateway on the demo database, and what stands between them."""

from collections.abc import AsyncIterator

import pytest
from tests.client.counting import Counting
from tests.client.proxy import Proxy, proxy_to
from tests.http.conftest import demo_database, gateway_url, start_gateway

from fencepost import Client

__all__ = ["client", "counting", "demo_database", "gateway_url", "start_gateway"]


@pytest.fixture
async def client(gateway_url: str) -> AsyncIterator[Client]:
    """Give a client of the gateway."""
    async with Client(gateway_url) as client:
        yield client


@pytest.fixture
def counting() -> Counting:
    """Give a transport that counts."""
    return Counting()


@pytest.fixture
async def proxy(gateway_url: str) -> AsyncIterator[Proxy]:
    """Give a proxy in front of the gateway."""
    async with proxy_to(gateway_url) as proxy:
        yield proxy
