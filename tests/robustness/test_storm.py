"""Many writers over few keys, all verbs, both rules; an audit inside the database judges what the gateway answered."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
from tests.robustness.storm import ORACLE, SCHEMA, TABLE, TABLES, Storm, judge
from tests.support.gateways import in_thread
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
    connection = await owner(connect)
    await connection.execute(SCHEMA)
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
