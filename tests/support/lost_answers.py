"""A gateway whose connection to the database breaks half-open before the answer (R15): the backend gets nothing of it,
and goes on.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from asyncpg.transaction import Transaction
from tests.support.postgres import CuttingProxy, cutting_proxy
from tests.support.racing import Race
from tests.support.use_cases import gateway_pid, open_gateway

from fencepost.server.fence.token import Rule
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.times import TIMES, RequestTimes, Times
from fencepost.testing.servers.processes import PATIENCE, eventually

ALONE: tuple[Rule, str] = ("strict", "alone")
"""Parameter of a race: its rule, and whether a write has its transaction alone or shares it. What most tests have."""
BOTH_WAYS = pytest.mark.parametrize(
    "race",
    [pytest.param(ALONE, id="strict-alone"), pytest.param(("epoch", "in batches"), id="epoch-in batches")],
    indirect=True,
)
"""For the tests of which the code differs."""
IN_A_HURRY = Times(requests=RequestTimes(resolve_within=0.5))
"""Times of a gateway that soon gives up to look what became of a write."""
TOKEN = b"\x00\x00\x00\x1f"
"""How the token 31 is sent, in binary."""


@asynccontextmanager
async def cut_off(
    race: Race, lock_timeout: float = 10, times: Times = TIMES
) -> AsyncIterator[tuple[Gateway, CuttingProxy]]:
    """Give a gateway behind a proxy, with its one connection made."""
    async with (
        cutting_proxy(race.dsn) as (proxy, url),
        open_gateway(url, lock_timeout=lock_timeout, times=times) as gateway,
    ):
        await gateway_pid(gateway)
        yield gateway, proxy


async def swallowed(proxy: CuttingProxy, landed: Callable[[], Awaitable[bool]]) -> None:
    """Return once a write is committed (`landed`), and its answer swallowed."""
    await asyncio.wait_for(proxy.muted.wait(), PATIENCE)
    await eventually(landed, what="the write that landed")


def cut(proxy: CuttingProxy) -> None:
    """Break what is open, and let later connections through."""
    proxy.mute_after = None
    proxy.cut_all()


async def lock_k(race: Race) -> Transaction:
    """Keep the row k locked until the transaction of race.a ends."""
    holder = await race.begin(race.a)
    await race.a.execute("SELECT FROM orders WHERE order_id = 'k' FOR UPDATE")
    return holder


async def waiting_instead_of(race: Race, pid: int) -> None:
    """Return once this backend is gone, and one other waits for a lock."""
    another_waits = """SELECT count(*) = 1 AND bool_and(pid <> $1) FROM pg_stat_activity
                        WHERE datname = current_database() AND wait_event_type = 'Lock' AND state = 'active'"""
    what = "the old backend gone, a new one waiting"
    await eventually(lambda: race.observer.fetchval(another_waits, pid), what=what)
