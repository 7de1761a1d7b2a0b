"""Generations of a lock service's tokens (R12): the scenarios on tables, and the same for scopes."""

import asyncpg
import pytest
from tests.scenarios import sources as scenarios
from tests.scenarios.races import Scenario
from tests.support.interleave import Connect
from tests.support.racing import outcome
from tests.support.violations import judging

from fencepost.fencing.token import Rule
from fencepost.storage.leases import sources
from fencepost.storage.protecting.protect import protect
from fencepost.storage.upkeep import raising

SOURCE = scenarios.SOURCE


@pytest.mark.parametrize("rule", ["strict", "epoch"])
@pytest.mark.parametrize("scenario", scenarios.SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_sources(scenario: Scenario, rule: Rule, connect: Connect, database: str) -> None:
    race = await scenarios.open_source_race(connect, database, rule)
    with judging():
        await scenario(race)


@pytest.mark.parametrize("scenario", scenarios.SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_positions_of_a_queue(
    scenario: Scenario, connect: Connect, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue's source is raised as a lock service's is; its name has to be quoted everywhere."""
    monkeypatch.setattr(scenarios, "SOURCE", "kafka:Orders.eu-1")
    race = await scenarios.open_source_race(connect, database, "strict")
    with judging():
        await scenario(race)


ITEMS = "CREATE TABLE public.items (id int PRIMARY KEY, account int NOT NULL, n int NOT NULL DEFAULT 0)"
ENTER = "SELECT refused_by FROM fencepost.enter('account', ARRAY['account/1'], 40)"
ENTER_EACH = (
    "SELECT verdict FROM fencepost.enter_each('account', ARRAY['account/1'], ARRAY[40::bigint],"
    " 'public.items'::regclass, 'account/{account}')"
)


async def scoped(connect: Connect) -> asyncpg.Connection:
    """Make a table whose rows have the mark of their scope, with one row."""
    owner = await connect()
    await owner.execute("SET search_path = public")
    await sources.register(owner, SOURCE, "redis", "source", verifies=True)
    await sources.record_verified(owner, SOURCE, 1000)
    await owner.execute(ITEMS)
    await protect(owner, "items", source=SOURCE, scope="account/{account}")
    await owner.execute("BEGIN; SET LOCAL fencepost.token = '30'; INSERT INTO items VALUES (1, 1); COMMIT")
    return owner


@pytest.mark.parametrize("isolation", scenarios.ISOLATIONS)
@pytest.mark.parametrize("way", ["update", "enter", "each"])
async def test_a_scope_is_not_entered_under_a_token_that_was_voided_since_the_snapshot(
    connect: Connect, isolation: scenarios.Isolation, way: str
) -> None:
    owner, writer = await scoped(connect), await connect()
    transaction = writer.transaction(isolation=isolation)
    await transaction.start()
    await writer.execute("SELECT FROM public.items")
    await sources.raise_source(owner, SOURCE, "test")
    if way == "update":
        await writer.execute("SET LOCAL fencepost.token = '40'")
        assert await outcome(writer.execute("UPDATE public.items SET n = 1")) == "FP409"
    elif way == "enter":
        assert await outcome(writer.fetchval(ENTER)) == "FP409"
    else:
        assert await writer.fetchval(ENTER_EACH) == "unclear"
    await transaction.rollback()
    assert await owner.fetchval("SELECT n FROM items") == 0


async def test_an_open_write_that_does_not_end_keeps_a_bump_from_waiting_for_ever(
    connect: Connect, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raising, "LOCK_TIMEOUT", "10ms")
    race = await scenarios.open_source_race(connect, database, "strict")
    await race.insert(race.a, "k", 30)
    await race.begin(race.a)
    assert await race.update(race.a, "k", 40)
    assert await outcome(sources.raise_source(race.b, SOURCE, "test")) == "55P03"
    assert (await sources.state(race.observer, SOURCE, "k")).generation == 0


async def test_a_table_that_could_not_be_pinned_leaves_the_source_where_it_was(connect: Connect) -> None:
    """Its marks count as issued only if it becomes the source's."""
    owner = await connect()
    await owner.execute("SET search_path = public")
    await sources.register(owner, SOURCE, "redis", "source", verifies=True)
    await open_external(owner)
    transaction = owner.transaction()
    await transaction.start()
    await protect(owner, "t", source=SOURCE)
    assert (await sources.state(owner, SOURCE, "k")).issued == 7000
    await transaction.rollback()
    assert (await sources.state(owner, SOURCE, "k")).issued == 0
    await protect(owner, "t", source=SOURCE)
    assert (await sources.state(owner, SOURCE, "k")).issued == 7000


async def open_external(owner: asyncpg.Connection) -> None:
    await owner.execute("CREATE TABLE t (id int PRIMARY KEY)")
    await protect(owner, "t")
    await owner.execute("BEGIN; SET LOCAL fencepost.token = '7000'; INSERT INTO t VALUES (1); COMMIT")
