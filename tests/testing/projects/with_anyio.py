"""A user's project: coroutines run by anyio's plugin."""

import pytest

from fencepost import Client, LockHeld
from fencepost.testing import lease_expired
from fencepost.testing.fixtures.tables import FencedTables

ORDERS = "CREATE TABLE orders (order_id text PRIMARY KEY, status text)"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
async def test_a_lock_that_is_held(fenced_table: FencedTables, fencepost_async_client: Client) -> None:
    fenced_table(ORDERS, rows=[{"order_id": "7", "status": "new"}], source="builtin")
    async with fencepost_async_client as c, c.lock("orders/7"):
        with pytest.raises(LockHeld):
            async with c.lock("orders/7"):
                pass
        with lease_expired("orders/7"):
            async with c.lock("orders/7", claim=True) as new:
                await c.patch("orders", "7", {"status": "shipped"}, lease=new)
