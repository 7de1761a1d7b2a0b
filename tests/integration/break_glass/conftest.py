"""Break-glass (R14): an operator writes without a token, for a reason, and it is recorded."""

from collections.abc import AsyncIterator

import pytest
from tests.support.interleave import Connect
from tests.support.postgres import Unmade
from tests.support.racing import Race, open_race, operators


@pytest.fixture(params=["strict-external", "epoch-builtin"])
async def race(request: pytest.FixtureRequest, connect: Connect, unmade: Unmade) -> AsyncIterator[Race]:
    rule, _, source = request.param.partition("-")
    race = await open_race(connect, unmade, rule, source=source)
    await race.insert(race.a, "k", 30)
    async with operators(race.observer):
        yield race


@pytest.fixture
async def plain(connect: Connect, unmade: Unmade) -> AsyncIterator[Race]:
    race = await open_race(connect, unmade)
    await race.insert(race.a, "k", 30)
    async with operators(race.observer):
        yield race
