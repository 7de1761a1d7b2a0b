"""A user's project: the session's gateway is paused and killed, and its database is."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from fencepost import SyncClient, Unavailable
from fencepost.testing import killed
from fencepost.testing.fixtures.gateway import OwnGateway
from fencepost.testing.fixtures.tables import FencedTables

ORDERS = "CREATE TABLE orders (order_id text PRIMARY KEY, status text)"


def test_a_killed_gateway_keeps_what_was_written(
    fenced_table: FencedTables, fencepost_gateway: OwnGateway, fencepost_client: SyncClient
) -> None:
    fenced_table(ORDERS, rows=[{"order_id": "7", "status": "new"}])
    with killed(fencepost_gateway):
        pass
    assert fencepost_client.patch("orders", "7", {"status": "paid"}, token=1)["status"] == "paid"
    with killed(fencepost_gateway.postgres), pytest.raises(Unavailable):
        fencepost_client.patch("orders", "7", {"status": "lost"}, token=2)
    assert fencepost_client.get("orders", "7")["status"] == "paid"


def test_the_gateway_is_killed_while_its_database_is(
    fenced_table: FencedTables, fencepost_gateway: OwnGateway, fencepost_client: SyncClient
) -> None:
    fenced_table(ORDERS, rows=[{"order_id": "7", "status": "new"}])
    with killed(fencepost_gateway.postgres):
        with killed(fencepost_gateway):
            pass
        with pytest.raises(Unavailable):
            fencepost_client.get("orders", "7")
    assert fencepost_client.get("orders", "7")["status"] == "new"


def test_a_thread_kills_the_database(
    fenced_table: FencedTables, fencepost_gateway: OwnGateway, fencepost_client: SyncClient
) -> None:
    fenced_table(ORDERS, rows=[{"order_id": "7", "status": "new"}])

    def kill() -> None:
        with killed(fencepost_gateway.postgres):
            pass

    with ThreadPoolExecutor() as pool:
        pool.submit(kill).result()
    assert fencepost_client.patch("orders", "7", {"status": "paid"}, token=1)["status"] == "paid"
