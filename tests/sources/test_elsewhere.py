"""Locks that are taken past Fencepost: the holder presents the service's own number (`protect --verify`, R12)."""

from contextlib import AsyncExitStack

import asyncpg
import pytest
from tests.conformance.bench import Bench, opened
from tests.sources.conftest import Api, orders
from tests.support.gateways import in_process

from fencepost.server.locks.source import Grant

NAME = "lock_service"


async def serving(bench: Bench, database: str, stack: AsyncExitStack, *, verify: bool) -> Api:
    client = await stack.enter_async_context(in_process(database, sources=f"{NAME}={bench.url}"))
    await orders(database, source=NAME, verify=verify)
    return Api(client, NAME, database)


async def native(bench: Bench, lock: str, count: int = 4) -> list[int]:
    """Take a lock as a program without Fencepost would, and give it back. Numbers as the service counts them."""
    source = await opened(bench)
    try:
        grant = await source.acquire(lock, owner="elsewhere", ttl_ms=20_000, tokens=count, wait_s=10)
        assert isinstance(grant, Grant)
        await source.release(lock, grant.handle)
        return list(grant.tokens)
    finally:
        await source.close()


@pytest.fixture(autouse=True)
async def _can_verify(bench: Bench) -> None:
    source = await opened(bench)
    verifies = source.capabilities.verifies
    await source.close()
    if not verifies:
        pytest.skip("capability: verifies=False")


async def test_a_number_that_the_service_has_issued_is_taken(
    bench: Bench, database: str, stack: AsyncExitStack
) -> None:
    api = await serving(bench, database, stack, verify=True)
    first, second, third, fourth = await native(bench, "elsewhere")
    for forged, code in ((fourth + 10**9, "FP018"), (2**63 - 1, "FP008")):
        refused = await api.write(forged)
        assert (refused.status_code, refused.json()["code"]) == (409, code), "and it raises no mark"
    assert (await api.write(second)).status_code == 200
    stale = await api.write(first)
    assert (stale.status_code, stale.json()["code"]) == (409, "FP001")
    claimed = await api.client.post(
        "/v1/claims", json={"resource": "orders/absent"}, headers={"X-Fence-Token": str(third)}
    )
    assert (claimed.status_code, claimed.json()["mark"]) == (200, str(third))
    put = await api.client.put(
        "/v1/data/orders/new", json={"status": "x"}, headers={"X-Fence-Token": str(fourth), "Idempotency-Key": "k1"}
    )
    assert put.status_code == 201
    granted = await api.grant("here")
    assert int(granted["token"]) > fourth, "and grants through the gateway go on above"


async def test_without_verify_only_what_came_through_the_gateway_is_known(
    bench: Bench, database: str, stack: AsyncExitStack
) -> None:
    api = await serving(bench, database, stack, verify=False)
    (number,) = await native(bench, "elsewhere", 1)
    refused = await api.write(number)
    assert (refused.status_code, refused.json()["code"]) == (409, "FP018")
    assert "--verify" in refused.json()["hint"]


async def test_a_service_that_cannot_be_asked_lets_no_unknown_number_pass(
    bench: Bench, database: str, stack: AsyncExitStack
) -> None:
    api = await serving(bench, database, stack, verify=True)
    one, two, three, four = await native(bench, "elsewhere")
    assert (await api.write(two)).status_code == 200
    await bench.crash()
    try:
        unknown = await api.write(three)
        if unknown.status_code == 200:  # its client has heard of this number with an answer before
            assert "zookeeper" in bench.url
        else:
            assert (unknown.status_code, unknown.json()["code"]) == (503, "FP024")
        assert (await api.write(one)).json()["code"] == "FP001", "what is known is judged without it"
    finally:
        await bench.restart()
    assert (await api.write(four)).status_code == 200


async def test_direct_sql_knows_what_the_gateway_has_verified(
    bench: Bench, database: str, stack: AsyncExitStack
) -> None:
    api = await serving(bench, database, stack, verify=True)
    _, two, three, four = await native(bench, "elsewhere")
    connection = await asyncpg.connect(database)
    stack.push_async_callback(connection.close)

    async def directly(token: int) -> str:
        try:
            async with connection.transaction():
                await connection.execute(f"SET LOCAL fencepost.token = '{token}'")
                return await connection.execute("UPDATE public.orders SET status = 'sql' WHERE order_id = 'k'")
        except asyncpg.PostgresError as error:
            return error.sqlstate or ""

    assert await directly(two) == "FP018"
    assert (await api.write(three)).status_code == 200
    assert await directly(two) == "FP409"
    assert await directly(four) == "FP018"
    claimed = await api.client.post(
        "/v1/claims", json={"resource": "orders/other"}, headers={"X-Fence-Token": str(four)}
    )
    assert claimed.status_code == 200
    assert await directly(four) == "UPDATE 1"
