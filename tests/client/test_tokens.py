"""Tokens of the client, at a gateway that wants them: what happens when one ends in the middle."""

import asyncio
import logging

import pytest
from tests.support import gateways
from tests.support.gateways import FOR_ALL
from tests.support.interleave import Connection
from tests.support.servers import until

from fencepost import Client, LeaseLost, Unauthenticated
from fencepost.server.postgres import api_keys
from fencepost.testing.servers.processes import PATIENCE, eventually

shared, owner = gateways.shared, gateways.owner
ORDER = "orders/order-123"


async def test_a_key_that_is_rotated_in_the_middle_is_asked_for_again(gateway_url: str, owner: Connection) -> None:
    key_id, key = await api_keys.create(owner, FOR_ALL)
    held = [key]
    async with Client(gateway_url, token=lambda: held[0]) as client, client.lock(ORDER, ttl=12) as lease:
        await client.patch("orders", "order-123", {"status": "paid"}, lease=lease)
        held[0] = await api_keys.rotate(owner, key_id, overlap=0, expires_in=None)
        until = lease.trust.until

        async def renewed_twice() -> bool:
            return lease.trust.until > until + 5  # seconds: they are four apart

        await eventually(renewed_twice, what="renewals with the new secret")
        await client.patch("orders", "order-123", {"status": "shipped"}, lease=lease)


@pytest.mark.realtime
async def test_a_key_that_ends_in_the_middle_is_a_warning_at_once_and_a_loss_that_says_why(
    gateway_url: str, owner: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "fencepost.client")
    key_id, key = await api_keys.create(owner, FOR_ALL)
    async with Client(gateway_url, token=key) as client, client.lock(ORDER, ttl=6) as lease:
        await api_keys.revoke(owner, key_id)
        await until(lambda: "unless the gateway renews it" in caplog.text, what="a warning")
        assert lease.trusted, "the warning comes while the lease is still held"
        assert f"the API key {key_id} was revoked" in caplog.text
        with pytest.raises(Unauthenticated):
            await client.patch("orders", "order-123", {"status": "paid"}, lease=lease)
        lost = await asyncio.wait_for(lease.lost, PATIENCE)
        assert (lost.reason, lost.code) == ("expired", None)
        assert "could not be renewed in time" in str(lost)
        assert f"the last renewal was refused: Authorization: the API key {key_id} was revoked. (FP037)" in str(lost)
        with pytest.raises(LeaseLost, match="the last renewal was refused"):
            lease.check()
    warnings = [each for each in caplog.records if "unless the gateway renews it" in each.getMessage()]
    assert len(warnings) == 1, "one warning, not one for each attempt"
    assert key not in caplog.text


async def test_an_observer_of_an_election_is_refused_when_its_key_is_revoked(
    gateway_url: str, owner: Connection
) -> None:
    key_id, key = await api_keys.create(owner, FOR_ALL)
    async with Client(gateway_url, token=key) as client:
        assert await anext(client.leaders("scheduler")) is None
        await api_keys.revoke(owner, key_id)

        async def refused() -> bool:
            try:
                await anext(client.leaders("scheduler"))
            except Unauthenticated:
                return True
            return False

        await eventually(refused)
