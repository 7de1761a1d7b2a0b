"""Renewals of one caller go on while another one asks about very many leases."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, cast

import pytest
from tests.integration.test_lease_claims import asking, lease
from tests.support.asking import asked_by
from tests.support.interleave import Connect
from tests.support.use_cases import open_gateway

from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.leases import mint, release, renew
from fencepost.server.locks.source_leases import SourceLocks
from fencepost.server.postgres.leases import LeaseId, LeaseRow
from fencepost.testing.servers.processes import PATIENCE, eventually

MADE_UP = LeaseId("other", 2**47 + 999)
SECRET, BOBS = "ann-" * 8, "bob-" * 8
HELD = "SELECT FROM fencepost.leases WHERE lease_id = {} FOR UPDATE"
OF_SOURCES = "LOCK TABLE fencepost.source_leases IN ACCESS EXCLUSIVE MODE"
WAYS: dict[str, tuple[str, Callable[[Gateway, LeaseId], Coroutine[Any, Any, object]]]] = {
    "renew": (HELD, lambda gateway, held: renew(gateway, held, SECRET, None)),
    "mint": (HELD, lambda gateway, held: mint(gateway, held, SECRET, 1)),
    "release": (HELD, lambda gateway, held: release(gateway, held, SECRET)),
    "renew of a source": (OF_SOURCES, lambda gateway, _: renew(gateway, MADE_UP, SECRET, None)),
    "release of a source": (OF_SOURCES, lambda gateway, _: release(gateway, MADE_UP, SECRET)),
}
"""What keeps them waiting in PostgreSQL, and what they ask."""


@pytest.mark.parametrize("way", WAYS)
async def test_who_asks_about_very_many_leases_leaves_a_connection_to_others(
    connect: Connect, database: str, way: str
) -> None:
    holder, observer, (keeps_waiting, attack) = await connect(), await connect(), WAYS[way]
    async with open_gateway(database, lease_pool_size=3) as opened:
        other = SourceLocks("other", "etcd", cast("Any", None), opened.database)
        gateway = replace(opened, sources={"other": other})
        anns = await lease(gateway, asking("anns", secret=SECRET))
        bobs = await lease(gateway, asking("bobs", secret=BOBS))

        async def waiting() -> bool:
            """Two connections are the share of a caller."""
            found: int = await observer.fetchval(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
            return found > 1

        async with holder.transaction():
            await holder.execute(keeps_waiting.format(anns.lease_id.number))
            asked = [asked_by("ann", attack(gateway, anns.lease_id)) for _ in range(12)]
            await eventually(waiting, what="requests that wait in PostgreSQL")
            renewed = await asyncio.wait_for(asked_by("bob", renew(gateway, bobs.lease_id, BOBS, None)), PATIENCE)
            assert isinstance(renewed, LeaseRow)
            assert not any(each.done() for each in asked)
        await asyncio.gather(*asked)
