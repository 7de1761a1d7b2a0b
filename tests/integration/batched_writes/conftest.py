"""Six rows that one batch writes."""

import pytest
from tests.support.interleave import Connect
from tests.support.postgres import Unmade
from tests.support.racing import Race, open_race

LOADED = """
CREATE TABLE public.customers (id int PRIMARY KEY);
INSERT INTO public.customers VALUES (1);
CREATE TABLE public.orders (
  order_id text PRIMARY KEY, status text NOT NULL DEFAULT 'new' CHECK (status <> 'bad'), n integer NOT NULL DEFAULT 0,
  number int UNIQUE, customer int REFERENCES public.customers DEFERRABLE INITIALLY DEFERRED)"""


@pytest.fixture
async def race(request: pytest.FixtureRequest, connect: Connect, unmade: Unmade) -> Race:
    race = await open_race(connect, unmade, getattr(request, "param", "strict"), ddl=LOADED)
    for key in ("a", "b", "c", "d", "e", "f"):
        await race.insert(race.a, key, 30)
    return race
