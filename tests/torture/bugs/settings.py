"""The runs that bugs share."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest import mock

from tests.torture.planted import Setting

from fencepost.testing.servers.postgres import Connection
from fencepost.testing.servers.processes import eventually
from fencepost.testing.torture import stages
from fencepost.testing.torture.stages import OwnPrimary

_MORE_TOKENS: Final = 200
"""nextval logs 32 ahead: a standby has to be further behind to give tokens again."""


@contextmanager
def _lagging_standby() -> Iterator[None]:
    """Let commits not wait for the standby, and let it be some grants behind when it is promoted.

    Acknowledged grants are lost then, as in any failover to an asynchronous standby. A generation that is raised makes
    up for that: no token comes again.
    """
    fail_over = OwnPrimary.fail_over

    async def asynchronous(_connection: Any) -> None:
        pass

    async def drawn(connection: Connection) -> int:
        return int(await connection.fetchval("SELECT last_value FROM fencepost.tokens"))

    async def until_many_more_are_drawn(connection: Connection) -> None:
        before = await drawn(connection)

        async def enough() -> bool:
            return await drawn(connection) > before + _MORE_TOKENS

        await eventually(enough, what="more grants")

    async def cut_off(standby: Connection) -> None:
        await standby.execute("ALTER SYSTEM SET primary_conninfo = ''")
        await standby.execute("SELECT pg_reload_conf()")

        async def alone() -> bool:
            return not await standby.fetchval("SELECT count(*) FROM pg_stat_wal_receiver")

        await eventually(alone, what="the standby cut off")

    def lagging(of: OwnPrimary) -> tuple[str, int]:
        assert of._standby is not None  # noqa: SLF001 - the lag is no fault of the product's harness
        asyncio.run(stages._on(of._standby.url, cut_off))  # noqa: SLF001
        asyncio.run(stages._on(of.url, until_many_more_are_drawn))  # noqa: SLF001
        return fail_over(of)

    with (
        mock.patch.object(stages, "make_synchronous", asynchronous),
        mock.patch.object(OwnPrimary, "fail_over", lagging),
    ):
        yield


ROWS: Final = Setting("rows", "register", operations=1200)
SCOPES: Final = Setting("scopes", "register", operations=800, faults="delay-database")
LOCKS: Final = Setting("locks", "mutex", operations=2500, resources=1, tasks=6)
KEYS: Final = Setting("keys", "idempotent", operations=600)
KEYS_AT_ONCE: Final = Setting("keys at once", "idempotent", operations=2500, faults="delay-database", gateways=2)
"""Answers of PostgreSQL that come late leave time between the steps of a write."""
LOST_ANSWERS: Final = Setting("lost answers", "register", operations=800, faults="cut-after-commit")
CLIENTS: Final = Setting(
    "clients", "client", operations=1800, faults="partition-client", resources=2, gateways=2, tasks=8
)
CLIENTS_ANSWERS: Final = Setting("answers to clients", "client", operations=1500, faults="cut-client", tasks=8)
CLIENT_SETS: Final = Setting("sets of clients", "client-set", operations=300)
CRASHES: Final = Setting("crashes", "register", operations=2000, faults="restart-immediate", own_servers=True)
GENERATIONS: Final = Setting("generations", "register", operations=2000, faults="failover", own_servers=True)
FAILOVERS: Final = Setting(
    "failovers", "mutex", operations=5000, faults="failover", resources=1, own_servers=True, around=_lagging_standby
)
