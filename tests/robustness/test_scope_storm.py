"""Many holders over few scopes of several tables, through two gateways and past them; some of them paused."""

import asyncio
from contextlib import AsyncExitStack

import pytest
from tests.robustness.scope_storm import NAMES, ORACLE, TABLES, Storm, judge
from tests.support.gateways import in_process
from tests.support.interleave import Connect, Connection
from tests.support.racing import owner
from tests.support.violations import assert_none

from fencepost.server.ops.protect import protect
from fencepost.testing.servers.processes import PATIENCE

pytestmark = pytest.mark.long("storms")

HOLDERS = 8
WITHIN = 2 * PATIENCE  # seconds


@pytest.fixture
async def watched(connect: Connect) -> Connection:
    """Make the tables, protected and audited; give a connection to look at them."""
    connection = await owner(connect)
    await connection.execute(TABLES)
    for table in NAMES:
        await protect(connection, table, scope="account/{account_id}", source="builtin")
    await connection.execute(ORACLE)
    return connection


async def storm_over(connect: Connect, database: str, seed: int, *, turns: int) -> Storm:
    async with asyncio.timeout(WITHIN), AsyncExitStack() as stack:
        gateways = [await stack.enter_async_context(in_process(database)) for _ in range(2)]
        storm = Storm(gateways, [await connect() for _ in range(HOLDERS)], seed)
        await storm.rage(holders=HOLDERS, turns=turns)
    return storm


async def test_no_holder_of_a_scope_writes_from_an_outdated_reading(
    connect: Connect, watched: Connection, database: str, seed: int
) -> None:
    storm = await storm_over(connect, database, seed, turns=25)
    again, answers = f"FENCEPOST_STORM_SEED={seed}", str(storm.answers)
    assert_none(await judge(watched, storm), again, answers)
    assert not storm.complaints, "\n".join([again, *storm.complaints[:20], answers])
    # It was a storm, and not a row of refusals.
    assert storm.accepted.total() > 50, storm.answers
    assert storm.answers["PATCH 409 FP001"] > 5, storm.answers
    assert storm.answers["direct FP409"] > 0, storm.answers


async def test_the_oracle_sees_scopes_that_any_token_enters(
    connect: Connect, watched: Connection, database: str, seed: int
) -> None:
    """The control: with marks that every token sets, the same storm must come out wrong. The trigger that keeps marks
    from falling would see to the most of it: it is switched off.
    """
    definition = await watched.fetchval(
        "SELECT pg_get_functiondef('fencepost.raise_mark(text, bigint, text, boolean)'::regprocedure)"
    )
    mutant = definition.replace("WHERE fencepost.verdict(", "WHERE true OR fencepost.verdict(")
    assert mutant != definition
    await watched.execute(mutant)
    await watched.execute("ALTER TABLE fencepost.marks DISABLE TRIGGER never_lower")
    wrong = await judge(watched, await storm_over(connect, database, seed, turns=10))
    assert any("was accepted after" in each for each in wrong), f"FENCEPOST_STORM_SEED={seed}"
    assert any("outdated reading" in each for each in wrong), f"FENCEPOST_STORM_SEED={seed}"
