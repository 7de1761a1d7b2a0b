"""Clients of a live gateway on the demo database, and what stands between them."""

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack

import pytest
from tests.client.transports import Counting
from tests.http.conftest import demo_database, gateway_url, shared, start_gateway

from fencepost import Client
from fencepost.testing import Link

__all__ = ["client", "counting", "demo_database", "gateway_url", "shared", "start_gateway"]


@pytest.fixture
async def client(gateway_url: str) -> AsyncIterator[Client]:
    async with Client(gateway_url) as client:
        yield client


@pytest.fixture
def counting() -> Counting:
    return Counting()


@pytest.fixture
def link(gateway_url: str) -> Iterator[Link]:
    with Link.to(gateway_url) as link:
        yield link


@pytest.fixture
def faults() -> Iterator[ExitStack]:
    """Give a stack for faults that last until the test ends."""
    with ExitStack() as faults:
        yield faults
