"""A gateway on the demo's database that all tests of a file share; each of them finds the demo as it was made."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import asyncpg
from tests.support.live_gateway import serving
from tests.support.ready_made import ReadyMade
from tests.support.unhurried import UNHURRIED

from fencepost.server.ops import demo
from fencepost.server.settings import Settings
from fencepost.server.times import Times

# Written while no trigger judges it. Numbers of tokens and leases go on: what rises goes on rising.
_AS_IT_WAS = f"""
SET session_replication_role = replica;
DELETE FROM public.orders; DELETE FROM public.accounts; DELETE FROM fencepost.marks; DELETE FROM fencepost.idempotency;
DELETE FROM fencepost.waiters; DELETE FROM fencepost.locks; DELETE FROM fencepost.leases; DELETE FROM fencepost.draws;
{demo.ROWS["orders"]};
{demo.ROWS["accounts"]}
"""


@dataclass(frozen=True)
class DemoGateway:
    """A running gateway, and its database."""

    url: str
    dsn: str

    async def reset(self) -> None:
        """Have the demo's rows unwritten, no marks, and nothing held or waited for."""
        connection = await asyncpg.connect(self.dsn)
        try:
            await connection.execute(_AS_IT_WAS)
        finally:
            await connection.close()


@contextmanager
def demo_gateway(databases: ReadyMade, times: Times = UNHURRIED, /, **settings: object) -> Iterator[DemoGateway]:
    """Run one on a database of its own until the block ends."""
    dsn, _ = asyncio.run(databases.make_with("demo", demo.load))
    with serving(Settings.model_validate({"database_url": dsn, "port": 0, **settings}), times) as url:
        yield DemoGateway(url, dsn)
    databases.drop(dsn)
