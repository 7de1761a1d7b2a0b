"""Does the service survive a paused lock holder?"""

from concurrent.futures import ThreadPoolExecutor

import httpx

from fencepost.testing import lease_expired, paused


def test_a_cancelled_order_stays_cancelled(orders, start, payments):
    a, b = start("a"), start("b")
    with ThreadPoolExecutor() as pool:
        paying = pool.submit(httpx.post, f"{a.url}/orders/7/pay", timeout=60)
        payments.wait_for_charge()  # a has the lock, and has read that the order is new
        with paused(a), lease_expired("orders/7"):
            assert httpx.post(f"{b.url}/orders/7/cancel", timeout=60).json() == {"status": "cancelled"}
        payments.accept()  # a wakes up, and does what it was about to do
        paying.result()
    assert [row["status"] for row in orders.rows()] == ["cancelled"]
