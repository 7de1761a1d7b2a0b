"""A request that failed because of DDL is run again, on the table as it is then, and a few times at most."""

import asyncpg
import pytest
from tests.support.interleave import Connect
from tests.support.postgres import Unmade
from tests.support.racing import Race, open_race
from tests.support.use_cases import open_gateway

from fencepost.server import wiring
from fencepost.server.fence.problems import Problem
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.outcomes import Done, Outcome
from fencepost.server.gateway.use_cases import MOST_DOUBTS, on_table
from fencepost.server.observe import events
from fencepost.server.postgres.errors import RefusedError
from fencepost.server.postgres.tables import Table
from fencepost.server.settings import Settings
from fencepost.server.wiring import Configured


@pytest.fixture
async def race(connect: Connect, unmade: Unmade) -> Race:
    return await open_race(connect, unmade)


class Changing:
    """A request whose table gets a column each time that it runs; it needs all that are there at the end."""

    def __init__(self, race: Race, gateway: Gateway, times: int) -> None:
        self._race, self._gateway, self._times = race, gateway, times
        self.runs = 0

    async def use(self, table: Table) -> Outcome:
        self.runs += 1
        if self.runs <= self._times:
            await self._gateway.catalog.reload()  # as another request may have it: it is too old soon
            await self._race.observer.execute(f"ALTER TABLE public.orders ADD later_{self.runs} int")
            raise RefusedError(asyncpg.UndefinedColumnError("the table was changed"))
        assert f"later_{self._times}" in table.columns
        return Done(())


async def test_the_picture_is_from_after_the_failure(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        for times in range(1, MOST_DOUBTS + 1):
            request = Changing(race, gateway, times)
            assert isinstance(await on_table(gateway, "orders", "patch", request.use), Done)
            assert request.runs == times + 1
            for n in range(1, times + 1):
                await race.observer.execute(f"ALTER TABLE public.orders DROP later_{n}")


async def test_it_is_not_run_for_ever(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        request = Changing(race, gateway, 100)
        assert isinstance(await on_table(gateway, "orders", "patch", request.use), Problem)
        assert request.runs == MOST_DOUBTS + 1


async def test_a_look_that_finds_nothing_new_keeps_the_picture_and_is_no_news(race: Race) -> None:
    settings = Settings.model_validate({"database_url": race.dsn, "consume_here": False})
    found: list[events.Event] = []
    async with wiring.open_gateway(settings, race.dsn, found.append, Configured((), (), None)) as gateway:
        catalog, before = gateway.catalog, gateway.catalog.current
        again = await catalog.reload()
        assert (again.version, again.tables is before.tables, again.begun > before.begun) == (
            before.version,
            True,
            True,
        )
        await race.observer.execute("ALTER TABLE public.orders ADD later int")
        assert (await catalog.reload()).version == before.version + 1
    changed = [event.changed for event in found if isinstance(event, events.CatalogLoaded)]
    assert (changed[:2], changed.count(True)) == ([True, False], 2)
