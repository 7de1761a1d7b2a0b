"""A user's project: plain tests, with threads."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from fencepost import StaleToken, SyncClient
from fencepost.testing import lease_expired
from fencepost.testing.fixtures.tables import FencedTables

ORDERS = "CREATE TABLE orders (order_id text PRIMARY KEY, status text)"
NEW = [{"order_id": "7", "status": "new"}]


def test_a_late_holder_does_not_overwrite(fenced_table: FencedTables, fencepost_client: SyncClient) -> None:
    orders = fenced_table(ORDERS, rows=NEW, source="builtin")
    with fencepost_client.lock("orders/7", claim=True) as late:
        with lease_expired(late), fencepost_client.lock("orders/7", claim=True) as new:
            fencepost_client.patch("orders", "7", {"status": "shipped"}, lease=new)
        with pytest.raises(StaleToken):
            fencepost_client.patch("orders", "7", {"status": "cancelled"}, lease=late)
    assert [row["status"] for row in orders.rows()] == ["shipped"]


def test_nothing_of_the_former_test_is_left(fenced_table: FencedTables, fencepost_client: SyncClient) -> None:
    orders = fenced_table(ORDERS, rows=NEW, source="builtin")
    assert [(row["status"], row["last_fence_token"]) for row in orders.rows()] == [("new", 0)]
    assert fencepost_client.locks() == []


def test_options_are_those_of_protect(fenced_table: FencedTables, fencepost_client: SyncClient) -> None:
    fenced_table(ORDERS, rows=NEW, rule="epoch", require_idempotency_key=True)
    items = "CREATE TABLE items (item_id int PRIMARY KEY, order_id text NOT NULL)"
    fenced_table(items, scope="order/{order_id}", rows=[{"item_id": 1, "order_id": "7"}])
    fencepost_client.patch("orders", "7", {"status": "paid"}, token=5)
    fencepost_client.patch("orders", "7", {"status": "packed"}, token=5)
    fencepost_client.patch("items", 1, {"order_id": "7"}, token=3)


def test_threads_share_the_client(fenced_table: FencedTables, fencepost_client: SyncClient) -> None:
    orders = fenced_table(ORDERS, rows=NEW, source="builtin")

    def work(number: int) -> None:
        with fencepost_client.lock("orders/7", wait=30, claim=True) as lease:
            fencepost_client.patch("orders", "7", {"status": f"{number}"}, lease=lease)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(8)))
    assert orders.rows()[0]["status"] in {str(number) for number in range(8)}
