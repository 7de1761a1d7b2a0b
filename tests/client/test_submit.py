"""Writes that the client queues, on a real gateway, which applies what its own queue postgres:default holds."""

import asyncpg
import pytest
from tests.client.counting import Counting
from tests.support.gateways import DemoGateway

from fencepost import Client, StaleToken, StillQueued, SyncClient, WriteFailed
from fencepost.client import ConstraintViolated, RowNotFound
from fencepost.testing import Link, cut
from fencepost.testing.servers.processes import PATIENCE

ORDER = "orders/order-123"
WITHIN = PATIENCE


async def test_a_queued_write_returns_what_the_same_call_returns_at_once(client: Client) -> None:
    made = await client.submit.post("orders", {"order_id": "q", "status": "new"}, token=10)
    changed = await client.submit.patch("orders", "q", {"status": "paid"}, token=11)
    put = await client.submit.put("orders", "q", {"status": "shipped"}, token=12)
    gone = await client.submit.delete("orders", "q", token=13)
    results = [await queued.result(WITHIN) for queued in (made, changed, put)]
    assert [row["status"] for row in results] == ["new", "paid", "shipped"]
    await gone.result(WITHIN)
    assert [await queued.state() for queued in (made, changed, put, gone)] == ["applied"] * 4
    with pytest.raises(RowNotFound):
        await client.get("orders", "q")


async def test_a_refusal_of_the_fence_is_a_stale_token_and_the_rest_is_a_dead_letter(client: Client) -> None:
    await client.claim(ORDER, token=50)
    stale = await client.submit.patch("orders", "order-123", {"status": "paid"}, token=49)
    with pytest.raises(StaleToken) as refused:
        await stale.result(WITHIN)
    assert (refused.value.current_token, await stale.state()) == (50, "refused")
    constrained = await client.submit.patch("orders", "order-123", {"status": "no such status"}, token=51)
    with pytest.raises(WriteFailed) as failed:
        await constrained.result(WITHIN)
    assert isinstance(failed.value.reason, ConstraintViolated)
    assert (failed.value.write_id, await constrained.state()) == (constrained.id, "failed")
    nobody = await client.submit.patch("orders", "nobody", {"status": "paid"}, token=52)
    with pytest.raises(WriteFailed) as failed:
        await nobody.result(WITHIN)
    assert isinstance(failed.value.reason, RowNotFound)


async def test_a_result_that_is_not_there_in_time_may_be_asked_for_again(client: Client, shared: DemoGateway) -> None:
    holder = await asyncpg.connect(shared.dsn)
    try:
        async with holder.transaction():
            await holder.execute("SELECT 1 FROM orders WHERE order_id = 'order-123' FOR UPDATE")
            queued = await client.submit.patch("orders", "order-123", {"status": "paid"}, token=70)
            assert await queued.state() == "queued"
            with pytest.raises(StillQueued):
                await queued.result(timeout=0.3)
    finally:
        await holder.close()
    assert (await queued.result(WITHIN))["status"] == "paid"


async def test_a_submission_whose_answer_is_lost_is_repeated_and_done_once(
    link: Link, counting: Counting, shared: DemoGateway
) -> None:
    async with Client(link.url, transport=counting) as c:
        with cut(link, matching="PATCH /"):
            queued = await c.submit.patch("orders", "order-123", {"status": "paid"}, token=80)
        assert (await queued.result(WITHIN))["status"] == "paid"
    assert counting.count("PATCH") > 1
    connection = await asyncpg.connect(shared.dsn)
    done = "SELECT count(*) FROM fencepost.idempotency WHERE caller = ''"
    assert await connection.fetchval(done) == 1
    await connection.close()


def test_the_synchronous_client_queues_and_waits(gateway_url: str) -> None:
    with SyncClient(gateway_url) as c:
        queued = c.submit.patch("orders", "order-123", {"status": "paid"}, token=100)
        assert queued.result(timeout=WITHIN)["status"] == "paid"
        assert queued.state() == "applied"
        assert queued.id is not None
        assert c.submit.queued(queued.id).result(WITHIN)["status"] == "paid"
