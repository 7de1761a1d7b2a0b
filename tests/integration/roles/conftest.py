"""A table of orders that fp_web and fp_other may write to, fp_reader may read, and fp_nothing may not see."""

from collections.abc import AsyncIterator

import pytest
from tests.support.asking import OTHER, READER, WEB, Acting, acting
from tests.support.interleave import Connect
from tests.support.postgres import Unmade
from tests.support.racing import Race, open_race

GRANTED = f"""
GRANT SELECT, INSERT, UPDATE, DELETE ON orders TO {WEB}, {OTHER}; GRANT SELECT ON orders TO {READER}"""
STAMPED = """
CREATE SCHEMA of_the_owner; CREATE DOMAIN of_the_owner.state AS text;
CREATE TABLE public.orders (
  order_id text PRIMARY KEY, status of_the_owner.state NOT NULL DEFAULT 'new', n integer NOT NULL DEFAULT 0,
  who text DEFAULT CURRENT_USER)"""


@pytest.fixture
async def race(connect: Connect, unmade: Unmade) -> Race:
    """Give a table whose rows say who made them. One column's type lies in a schema that the roles may not use."""
    return await open_race(connect, unmade, "strict", ddl=STAMPED)


@pytest.fixture
async def stage(race: Race) -> AsyncIterator[Acting]:
    """Give a gateway with one connection for requests, and one for batches."""
    async with acting(race.observer, race.dsn, GRANTED) as stage:
        yield stage
