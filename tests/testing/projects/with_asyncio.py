"""A user's project: coroutines run by pytest-asyncio."""

import pytest

from fencepost import Client, StaleToken
from fencepost.testing import lease_expired
from fencepost.testing.fixtures.tables import FencedTables

ORDERS = "CREATE TABLE orders (order_id text PRIMARY KEY, status text)"


@pytest.mark.asyncio
async def test_a_late_holder(fenced_table: FencedTables, fencepost_async_client: Client) -> None:
    fenced_table(ORDERS, rows=[{"order_id": "7", "status": "new"}], source="builtin")
    async with fencepost_async_client as c, c.lock("orders/7", claim=True) as late:
        with lease_expired(late):
            async with c.lock("orders/7", claim=True) as new:
                await c.patch("orders", "7", {"status": "shipped"}, lease=new)
        with pytest.raises(StaleToken):
            await c.patch("orders", "7", {"status": "cancelled"}, lease=late)
