"""Leases that get lost, gateways that go away, answers that never come."""

import asyncio
import logging
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import asyncpg
import httpx
import pytest
from tests.client.counting import Counting
from tests.support.gateways import DemoGateway, gateway_process
from tests.support.manual_clock import ManualClock

from fencepost import Client, LeaseLost, OutcomeUnknown, Retry, Unavailable
from fencepost.testing import Link, cut, partitioned
from fencepost.testing.servers.processes import PATIENCE, eventually

pytestmark = pytest.mark.long("holders, leaders and gateways that are paused or killed")

ORDER = "orders/order-123"


async def test_a_gateway_that_is_killed_and_comes_back_inside_the_ttl_is_survived(
    demo_database: str, short_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "fencepost.client")
    async with (
        gateway_process(demo_database, short_dir) as gateway,
        Client(gateway.url, retry=Retry(PATIENCE)) as c,
        c.lock(ORDER, ttl=20) as lease,
    ):
        first = (await c.locks(ORDER))[0].expires_at
        assert first is not None
        gateway.crash()
        reading = asyncio.create_task(c.get("orders", "order-123"))

        async def a_renewal_failed() -> bool:
            return "renewal attempt 2 failed" in caplog.text

        await eventually(a_renewal_failed)
        assert lease.trusted
        gateway.start()
        await gateway.serves()
        assert (await reading)["order_id"] == "order-123"

        async def renewed() -> bool:
            expires = (await c.locks(ORDER))[0].expires_at
            return expires is not None and expires > first

        await eventually(renewed)
        assert lease.trusted
        await c.patch("orders", "order-123", {"status": "paid"}, lease=lease)


async def test_410_ends_the_lease_and_names_who_has_it_now(gateway_url: str, counting: Counting) -> None:
    async with (
        Client(gateway_url, transport=counting) as c,
        Client(gateway_url, owner="successor") as other,
        c.lock("job", ttl=10) as lease,
    ):
        async with httpx.AsyncClient(base_url=gateway_url, trust_env=False) as http:
            await http.delete(f"/v1/leases/{lease.id}", headers={"X-Lease-Secret": lease.secret})
        async with other.lock("job"):
            lost = await asyncio.wait_for(lease.lost, PATIENCE)
            assert (lost.reason, lost.code, lost.lease_id) == ("gone", "FP012", lease.id)
            assert lost.superseded_by is not None
            assert lost.superseded_by.holder == "successor"
            assert not lease.trusted
            for attempt in (
                lambda: c.patch("orders", "order-123", {"status": "paid"}, lease=lease),
                lambda: c.claim(ORDER, lease=lease),
                lambda: lease.claim(ORDER),
                lease.next_token,
            ):
                with pytest.raises(LeaseLost) as raised:
                    await attempt()
                assert raised.value.superseded_by == lost.superseded_by
            assert counting.count("P") == counting.count("POST /v1/leases"), "only upkeep was sent"
        assert counting.count("POST /v1/claims") == 0


async def test_silence_ends_trust_while_the_lease_is_still_held(
    gateway_url: str, link: Link, faults: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    async with Client(link.url, clock=clock) as c, Client(gateway_url) as direct, AsyncExitStack() as time:
        async with c.lock("job", ttl=600, margin=300) as lease:
            faults.enter_context(partitioned(link))
            await time.enter_async_context(clock.running())
            lost = await asyncio.wait_for(lease.lost, PATIENCE)
            held = (await direct.locks("job"))[0].held
            assert held, "trust ended before the lease did"
            assert lost.reason == "expired"
            assert lost.problem is None
            with pytest.raises(LeaseLost):
                await c.patch("orders", "order-123", {"status": "paid"}, lease=lease)
        assert "could not be released" in caplog.text
        assert lease.secret not in caplog.text


async def test_a_failing_release_does_not_hide_the_bodys_error(link: Link, faults: ExitStack) -> None:
    clock = ManualClock()
    async with Client(link.url, clock=clock) as c, AsyncExitStack() as time:

        async def work() -> None:
            async with c.lock("job", ttl=60):
                faults.enter_context(partitioned(link))
                await time.enter_async_context(clock.running())
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await work()


async def test_a_lost_answer_to_a_write_is_asked_for_again_and_the_write_is_done_once(
    link: Link, counting: Counting, shared: DemoGateway
) -> None:
    async with Client(link.url, transport=counting) as c, c.lock(ORDER) as lease:
        await c.get("orders", "order-123")
        with cut(link, matching="PATCH /"):
            row = await c.patch("orders", "order-123", {"status": "paid"}, lease=lease)
        assert row["status"] == "paid"
        assert counting.count("PATCH") == 2
        assert (await c.fence(ORDER)).mark is not None
    connection = await asyncpg.connect(shared.dsn)
    try:
        assert await connection.fetchval("SELECT count(*) FROM fencepost.idempotency") == 1
    finally:
        await connection.close()


async def test_a_lost_answer_that_is_not_asked_for_again_is_an_unknown_outcome_and_the_fence_shows_it(
    link: Link, counting: Counting
) -> None:
    async with Client(link.url, transport=counting, retry=Retry(patience=0)) as c, c.lock(ORDER) as lease:
        await c.get("orders", "order-123")
        with cut(link, matching="PATCH /"), pytest.raises(OutcomeUnknown) as unknown:
            await c.patch("orders", "order-123", {"status": "paid"}, lease=lease)
        assert counting.count("PATCH") == 1
        assert unknown.value.resource == ORDER
        mark = (await c.fence(ORDER)).mark
        assert mark == unknown.value.presented_token, "it landed"
        key = unknown.value.idempotency_key
        assert key
        again = await c.patch("orders", "order-123", {"status": "paid"}, lease=lease, idempotency_key=key)
        assert again["status"] == "paid"
        assert (await c.fence(ORDER)).mark == mark, "it was not done again"
        await c.patch("orders", "order-123", {"status": "shipped"}, lease=lease)


async def test_given_up_for_want_of_an_answer_gives_the_lock_back(gateway_url: str, link: Link) -> None:
    async with Client(link.url, retry=Retry(patience=0)) as c, Client(gateway_url) as direct:
        await c.locks()
        with cut(link), pytest.raises(Unavailable):
            await c.lock("job", ttl=60).__aenter__()
        assert await direct.locks("job") == []
