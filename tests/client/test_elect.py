"""`client.elect(…)`, `client.leader(…)` and `client.leaders(…)` against a live gateway."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, aclosing
from pathlib import Path

import pytest
from tests.support.gateways import gateway_process

from fencepost import Client, Leader, Retry, StaleToken, SyncClient, SyncTerm, Unavailable
from fencepost.client import BadRequest, elections
from fencepost.testing import Link, partitioned
from fencepost.testing.servers.processes import PATIENCE, eventually

pytestmark = pytest.mark.long("holders, leaders and gateways that are paused or killed")

ORDER = "orders/order-123"


async def seen(leaders: AsyncIterator[Leader | None]) -> str | None:
    """Return the owner of the next leader."""
    leader = await asyncio.wait_for(anext(leaders), PATIENCE)
    return None if leader is None else leader.owner


async def test_a_leader_writes_under_its_term_and_its_successors_is_higher(gateway_url: str) -> None:
    async with Client(gateway_url, owner="a") as a, Client(gateway_url, owner="b") as b:
        assert await a.leader("jobs/nightly") is None
        campaign = b.elect("jobs/nightly")
        async with a.elect("jobs/nightly") as first:
            leader = await b.leader("jobs/nightly")
            assert leader is not None
            assert (leader.term, leader.owner, leader.lease_id) == (first.term, "a", first.id)
            assert first.election == "jobs/nightly"
            await a.patch("orders", "order-123", {"note": "by a"}, lease=first)
            old_token = await first.next_token()
            succeeding = asyncio.create_task(campaign.__aenter__())

            async def b_waits() -> bool:
                return bool((await a.locks("election/jobs/nightly"))[0].waiters)

            await eventually(b_waits, what="a candidate")
        second = await asyncio.wait_for(succeeding, PATIENCE)
        assert second.term > first.term
        await second.claim(ORDER)
        with pytest.raises(StaleToken):
            await a.patch("orders", "order-123", {"note": "by a"}, token=old_token)
        await b.patch("orders", "order-123", {"note": "by b"}, lease=second)
        await campaign.__aexit__(None, None, None)
        assert await a.leader("jobs/nightly") is None


async def test_observers_see_who_leads_and_each_change(client: Client, gateway_url: str) -> None:
    async with Client(gateway_url, owner="b") as b, aclosing(client.leaders("scheduler")) as leaders:
        assert await seen(leaders) is None
        async with client.elect("scheduler", owner="a"):
            assert await seen(leaders) == "a"
        assert await seen(leaders) is None
        async with b.elect("scheduler"):
            assert await seen(leaders) == "b"


async def test_observers_connect_again_and_get_nothing_twice(demo_database: str, short_dir: Path) -> None:
    async with (
        gateway_process(demo_database, short_dir) as gateway,
        Client(gateway.url, retry=Retry(patience=PATIENCE)) as c,
        aclosing(c.leaders("scheduler")) as leaders,
    ):
        async with c.elect("scheduler", ttl=60, owner="a"):
            assert await seen(leaders) == "a"
            waiting = asyncio.create_task(seen(leaders))
            gateway.crash()
            gateway.start()
            await gateway.serves()
        assert await waiting is None
        async with c.elect("scheduler", owner="b"):
            assert await seen(leaders) == "b"


async def test_a_silent_stream_is_cut_off_and_connected_again(gateway_url: str, link: Link, faults: ExitStack) -> None:
    async with (
        Client(link.url, retry=Retry(patience=5, first=0.1, longest=0.1)) as c,
        Client(gateway_url, owner="a") as direct,
        aclosing(elections.leaders(c._exchange, "scheduler", None, silence=1)) as leaders,  # noqa: SLF001
    ):
        assert await seen(leaders) is None
        async with direct.elect("scheduler"):
            assert await seen(leaders) == "a"
        faults.enter_context(partitioned(link))

        async def to_the_end() -> None:
            while True:
                await seen(leaders)

        with pytest.raises(Unavailable):
            await to_the_end()


async def test_observing_what_cannot_be_asked_is_an_error(gateway_url: str) -> None:
    async with Client(gateway_url) as c:
        with pytest.raises(BadRequest):
            await anext(c.leaders("scheduler", source="no_such"))
        with pytest.raises(BadRequest):
            await c.leader("")
        with pytest.raises(ValueError, match="elect"):
            c.elect("")
    with pytest.raises(Unavailable):
        await anext(c.leaders("scheduler"))


async def test_the_same_without_async(gateway_url: str) -> None:
    def story() -> None:
        with SyncClient(gateway_url, owner="a") as c:
            leaders = c.leaders("scheduler")
            assert next(leaders) is None
            with c.elect("scheduler") as term:
                assert isinstance(term, SyncTerm)
                leader = next(leaders)
                assert leader is not None
                assert (leader.term, leader.owner) == (term.term, "a")
                assert term.election == "scheduler"
                assert c.leader("scheduler") is not None
                c.patch("orders", "order-123", {"status": "paid"}, lease=term)
            assert next(leaders) is None
            leaders.close()
            left_open = c.leaders("scheduler")
            next(left_open)
        left_open.close()

    await asyncio.to_thread(story)
