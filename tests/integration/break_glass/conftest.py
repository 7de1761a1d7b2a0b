"""Break-glass (R14): an operator writes without a token, for a reason, and it is recorded."""

from collections.abc import AsyncIterator

import pytest
from tests.support.glass import operators
from tests.support.interleave import Connect
from tests.support.racing import Race, open_race


@pytest.fixture(params=["strict-external", "epoch-builtin"])
async def race(request: pytest.FixtureRequest, connect: Connect, database: str) -> AsyncIterator[Race]:
    rule, _, source = request.param.partition("-")
    race = await open_race(connect, database, rule, source=source)
    await race.insert(race.a, "k", 30)
    async with operators(race.observer):
        yield race


@pytest.fixture
async def plain(connect: Connect, database: str) -> AsyncIterator[Race]:
    race = await open_race(connect, database)
    await race.insert(race.a, "k", 30)
    async with operators(race.observer):
        yield race
