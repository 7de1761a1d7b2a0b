"""The race that most files run: a protected table and three racers. Files with another one define it."""

from collections.abc import AsyncIterator

import pytest
from tests.support.interleave import Connect
from tests.support.postgres import Unmade
from tests.support.racing import Race, open_race
from tests.support.use_cases import open_gateway

from fencepost.server.gateway.gateway import Gateway


@pytest.fixture
async def race(request: pytest.FixtureRequest, connect: Connect, unmade: Unmade) -> Race:
    """Give a race under strict, or the rule that the test names (BOTH_RULES)."""
    return await open_race(connect, unmade, getattr(request, "param", "strict"))


@pytest.fixture
async def gateway(race: Race) -> AsyncIterator[Gateway]:
    """Give the use cases' gateway on the race's database, with one connection in its pool."""
    async with open_gateway(race.dsn) as gateway:
        yield gateway
