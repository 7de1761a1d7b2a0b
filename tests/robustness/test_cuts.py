"""Connections cut at random, on both sides of the gateway, while many write (R15, R16).

Each logical write is done exactly once when its writer gets a success, not at all when it is refused, and at most once
when its outcome is answered as unknown.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
from tests.robustness.cuts import AUDIT, SCHEMA, TABLE, TABLES, Writers, judge
from tests.support.gateways import in_thread
from tests.support.interleave import Connect, Connection
from tests.support.postgres import CuttingProxy, cutting_proxy
from tests.support.racing import owner
from tests.support.violations import assert_none

from fencepost.server.ops.protect import protect
from fencepost.testing.servers.processes import PATIENCE

pytestmark = pytest.mark.long("storms")

CUTS = 500
LANDED = 100
WITHIN = 4 * PATIENCE  # seconds, of which it takes about twenty

Begin = Callable[[int], Awaitable[tuple[Writers, list[CuttingProxy]]]]


@pytest.fixture
async def watched(connect: Connect) -> Connection:
    """Make the tables, protected and audited; give a connection to look at them."""
    connection = await owner(connect)
    await connection.execute(SCHEMA)
    for table, rule in TABLES.items():
        await connection.execute(TABLE.format(table))
        await protect(connection, table, rule="epoch" if rule == "epoch" else "strict")
        await connection.execute(AUDIT.format(table))
    return connection


@pytest.fixture
async def begin(watched: Connection, database: str, seed: int) -> AsyncIterator[Begin]:
    """A gateway between two proxies, and writers that know its address."""
    assert not watched.is_closed()  # the tables come first
    chance = random.Random(seed)
    async with AsyncExitStack() as stack:

        async def start(cuts: int) -> tuple[Writers, list[CuttingProxy]]:
            # Its pool's first connection is made before anything is cut.
            inner, dsn = await stack.enter_async_context(
                cutting_proxy(database, lambda: chance.randrange(1_000, 16_000), seed)
            )
            inner.cutting = False
            url = await stack.enter_async_context(in_thread(dsn, log_level="error"))
            outer, url = await stack.enter_async_context(
                cutting_proxy(url, lambda: chance.randrange(200, 8_000), seed + 1)
            )
            inner.cutting = True
            proxies = [inner, outer]

            def enough() -> bool:
                """So many cuts, and writes between them; how many cuts a write meets depends on its bytes."""
                return writers.accepted > LANDED and sum(proxy.cuts for proxy in proxies) >= cuts

            writers = Writers(url, seed, enough)
            return writers, proxies

        yield start


async def test_when_connections_are_cut_at_random_each_write_is_done_as_often_as_was_reported(
    begin: Begin, watched: Connection, seed: int
) -> None:
    async with asyncio.timeout(WITHIN):
        writers, proxies = await begin(CUTS)
        await writers.write(with_sdk=8, by_hand=8)
    answer = f"FENCEPOST_STORM_SEED={seed} {dict(writers.answers)} {[proxy.cuts for proxy in proxies]}"
    assert_none(await judge(watched, writers), answer)
    assert min(proxy.cuts for proxy in proxies) > CUTS // 10, answer


async def test_the_oracle_sees_writes_that_are_done_twice(begin: Begin, watched: Connection, seed: int) -> None:
    """The control: with keys that are forgotten at once, the same cuts must come out wrong."""
    await watched.execute(
        "CREATE OR REPLACE FUNCTION fencepost.idem_record(p_caller text, p_key text, p_hash bytea, p_status integer,"
        " p_headers text[], p_answer bytea) RETURNS void LANGUAGE sql AS ''"
    )
    await watched.execute(
        "CREATE OR REPLACE FUNCTION fencepost.idem_record_each(p_callers text[], p_keys text[], p_hashes bytea[],"
        " p_statuses integer[], p_headers text[], p_answers bytea[]) RETURNS void LANGUAGE sql AS ''"
    )
    async with asyncio.timeout(WITHIN):
        writers, _ = await begin(CUTS // 2)
        writers.own_keys = True
        await writers.write(with_sdk=4, by_hand=0)
    wrong = await judge(watched, writers)
    answer = f"FENCEPOST_STORM_SEED={seed} {dict(writers.answers)}"
    assert any("done 2 times" in each for each in wrong), answer
    assert any("answered refused, and was done 1" in each for each in wrong), (
        f"the echo of a write of its own; {answer}"
    )
