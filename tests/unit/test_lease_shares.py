"""How callers share the connections for leases."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from fencepost.storage.connections.lease_shares import LeaseShares
from fencepost.storage.errors import UnavailableError
from fencepost.testing.servers.waiting import PATIENCE


async def test_a_caller_has_most_of_the_connections_and_of_the_places_in_line_and_others_do_not_wait() -> None:
    shares, held = LeaseShares(4, 4, PATIENCE), AsyncExitStack()
    for _ in range(3):
        await held.enter_async_context(shares.place("ann"))
    in_line = [asyncio.ensure_future(shares.place("ann").__aenter__()) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(UnavailableError, match="3 of ann already"):
        await shares.place("ann").__aenter__()
    async with shares.place("bob"):
        assert [each.done() for each in in_line] == [False] * 3
    await held.aclose()
    await asyncio.gather(*in_line)
