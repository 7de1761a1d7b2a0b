"""Tokens of the client, at a gateway that wants them: what happens when one ends in the middle."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest
from tests.support.demo_gateway import DemoGateway, demo_gateway
from tests.support.interleave import Connection

from fencepost import Client, Forbidden, LeaseLost, Unauthenticated
from fencepost.storage.identity import api_keys
from fencepost.storage.identity.api_keys import NewKey
from fencepost.testing.servers.databases import Databases
from fencepost.testing.servers.waiting import PATIENCE, eventually

FOR_ALL = NewKey(None, ("read", "write", "lock"), None, None, "")
ORDER = "orders/order-123"


@pytest.fixture(scope="module")
def shared(databases: Databases) -> Iterator[DemoGateway]:
    """Give a gateway that wants API keys."""
    with demo_gateway(databases, api_keys=True) as gateway:
        yield gateway


@pytest.fixture
async def owner(shared: DemoGateway) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(shared.dsn)
    yield connection
    await connection.close()


async def test_who_has_no_key_is_unauthenticated_and_who_has_one_for_less_is_forbidden(
    gateway_url: str, owner: Connection
) -> None:
    _, reads = await api_keys.create(owner, NewKey(None, ("read",), None, None, ""))
    async with Client(gateway_url) as nobody:
        with pytest.raises(Unauthenticated) as raised:
            await nobody.get("orders", "order-123")
        assert (raised.value.status, raised.value.code) == (401, "FP036")
    async with Client(gateway_url, token=reads) as reader:
        assert (await reader.get("orders", "order-123"))["order_id"] == "order-123"
        with pytest.raises(Forbidden) as forbidden:
            await reader.patch("orders", "order-123", {"status": "paid"}, token=50)
        assert forbidden.value.code == "FP038"
        with pytest.raises(Forbidden):
            async with reader.lock(ORDER):
                pytest.fail("a key without lock has taken one")


async def test_a_key_that_is_rotated_in_the_middle_is_asked_for_again(gateway_url: str, owner: Connection) -> None:
    key_id, key = await api_keys.create(owner, FOR_ALL)
    held = [key]
    async with Client(gateway_url, token=lambda: held[0]) as client, client.lock(ORDER, ttl=3) as lease:
        await client.patch("orders", "order-123", {"status": "paid"}, lease=lease)
        held[0] = await api_keys.rotate(owner, key_id, overlap=0, expires_in=None)
        until = lease.trust.until

        async def renewed_twice() -> bool:
            return lease.trust.until > until + 2

        await eventually(renewed_twice, what="renewals with the new secret")
        await client.patch("orders", "order-123", {"status": "shipped"}, lease=lease)


async def test_a_key_that_ends_in_the_middle_is_a_warning_at_once_and_a_loss_that_says_why(
    gateway_url: str, owner: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "fencepost.client")
    key_id, key = await api_keys.create(owner, FOR_ALL)
    async with Client(gateway_url, token=key) as client, client.lock(ORDER, ttl=6) as lease:
        await api_keys.revoke(owner, key_id)

        async def warned() -> bool:
            return "unless the gateway renews it" in caplog.text

        await eventually(warned, what="a warning")
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


async def test_an_observer_of_an_election_learns_it_too(gateway_url: str, owner: Connection) -> None:
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
