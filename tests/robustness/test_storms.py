"""Many writers over few keys, all verbs, both rules; an audit inside the database judges what the gateway answered."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
from tests.robustness.storm import (
    NAMES,
    ORACLE,
    SCHEMA,
    SCOPE_ORACLE,
    SCOPED_TABLES,
    TABLE,
    TABLES,
    ScopeStorm,
    Storm,
    judge,
    judge_scopes,
)
from tests.support.gateways import in_process, in_thread
from tests.support.interleave import Connect, Connection
from tests.support.racing import owner
from tests.support.violations import assert_none

from fencepost.server.ops.protect import protect
from fencepost.testing.servers.processes import PATIENCE

pytestmark = pytest.mark.long("storms")

WITHIN = 4 * PATIENCE  # seconds, of which the storm itself takes a few

StartGateways = Callable[[int], Awaitable[list[str]]]


@pytest.fixture
async def watched(connect: Connect) -> Connection:
    """Make the tables, protected and audited; give a connection to look at them."""
    connection = await owner(connect, SCHEMA)
    for table, rule in TABLES.items():
        await connection.execute(TABLE.format(table))
        await protect(connection, table, rule=rule)
        await connection.execute(ORACLE.format(table))
    return connection


@pytest.fixture
async def start_gateways(watched: Connection, database: str) -> AsyncIterator[StartGateways]:
    assert not watched.is_closed()  # the tables come first
    async with AsyncExitStack() as stack:

        async def start(count: int) -> list[str]:
            return [await stack.enter_async_context(in_thread(database, log_level="error")) for _ in range(count)]

        yield start


async def assert_it_held(storm: Storm, watched: Connection) -> None:
    seed, answers = f"FENCEPOST_STORM_SEED={storm.seed}", str(storm.statuses)
    assert_none(await judge(watched, storm), seed, answers)
    assert not storm.complaints, "\n".join([seed, *storm.complaints[:20], answers])


async def test_in_a_storm_of_all_verbs_every_answer_is_true(
    start_gateways: StartGateways, watched: Connection, seed: int
) -> None:
    async with asyncio.timeout(WITHIN):
        storm = Storm(await start_gateways(1), seed)
        await storm.rage(writers=24, writes=60)
    await assert_it_held(storm, watched)
    assert storm.accepted.total() > 300, storm.statuses  # it was a storm, and not a row of refusals
    assert {verb for verb, status, _ in storm.statuses if status < 300} >= {"PATCH", "PUT", "POST", "DELETE", "claim"}


async def test_two_gateways_on_one_database_are_one_fence(
    start_gateways: StartGateways, watched: Connection, seed: int
) -> None:
    async with asyncio.timeout(WITHIN):
        storm = Storm(await start_gateways(2), seed)
        await storm.rage(writers=16, writes=30)
    await assert_it_held(storm, watched)


async def test_the_oracle_sees_a_fence_that_lets_a_stale_insert_pass(
    start_gateways: StartGateways, watched: Connection, seed: int
) -> None:
    """The control: with the mark of deleted rows unheeded, the same storm must come out wrong."""
    definition = await watched.fetchval(
        "SELECT pg_get_functiondef('fencepost.judge_insert(text, text, bigint, text)'::regprocedure)"
    )
    mutant = definition.replace("IF mark IS NULL THEN", "IF true THEN")
    assert mutant != definition
    await watched.execute(mutant)
    async with asyncio.timeout(WITHIN):
        storm = Storm(await start_gateways(1), seed)
        await storm.rage(writers=8, writes=100)
    wrong = await judge(watched, storm)
    assert any("was accepted after" in each for each in wrong), f"FENCEPOST_STORM_SEED={seed} {storm.statuses}"


# Many holders over few scopes of several tables, through two gateways and past them; some of them paused.

HOLDERS = 8
SCOPES_WITHIN = 2 * PATIENCE  # seconds


@pytest.fixture
async def scopes_watched(connect: Connect) -> Connection:
    """Make the tables, protected and audited; give a connection to look at them."""
    connection = await owner(connect, SCOPED_TABLES)
    for table in NAMES:
        await protect(connection, table, scope="account/{account_id}", source="builtin")
    await connection.execute(SCOPE_ORACLE)
    return connection


async def storm_over(connect: Connect, database: str, seed: int, *, turns: int) -> ScopeStorm:
    async with asyncio.timeout(SCOPES_WITHIN), AsyncExitStack() as stack:
        gateways = [await stack.enter_async_context(in_process(database)) for _ in range(2)]
        storm = ScopeStorm(gateways, [await connect() for _ in range(HOLDERS)], seed)
        await storm.rage(holders=HOLDERS, turns=turns)
    return storm


async def test_no_holder_of_a_scope_writes_from_an_outdated_reading(
    connect: Connect, scopes_watched: Connection, database: str, seed: int
) -> None:
    storm = await storm_over(connect, database, seed, turns=25)
    again, answers = f"FENCEPOST_STORM_SEED={seed}", str(storm.answers)
    assert_none(await judge_scopes(scopes_watched, storm), again, answers)
    assert not storm.complaints, "\n".join([again, *storm.complaints[:20], answers])
    # It was a storm, and not a row of refusals.
    assert storm.accepted.total() > 50, storm.answers
    assert storm.answers["PATCH 409 FP001"] > 5, storm.answers
    assert storm.answers["direct FP409"] > 0, storm.answers


async def test_the_oracle_sees_scopes_that_any_token_enters(
    connect: Connect, scopes_watched: Connection, database: str, seed: int
) -> None:
    """The control: with marks that every token sets, the same storm must come out wrong. The trigger that keeps marks
    from falling would see to the most of it: it is switched off.
    """
    definition = await scopes_watched.fetchval(
        "SELECT pg_get_functiondef('fencepost.raise_mark(text, bigint, text, boolean)'::regprocedure)"
    )
    mutant = definition.replace("WHERE fencepost.verdict(", "WHERE true OR fencepost.verdict(")
    assert mutant != definition
    await scopes_watched.execute(mutant)
    await scopes_watched.execute("ALTER TABLE fencepost.marks DISABLE TRIGGER never_lower")
    wrong = await judge_scopes(scopes_watched, await storm_over(connect, database, seed, turns=10))
    assert any("was accepted after" in each for each in wrong), f"FENCEPOST_STORM_SEED={seed}"
    assert any("outdated reading" in each for each in wrong), f"FENCEPOST_STORM_SEED={seed}"
