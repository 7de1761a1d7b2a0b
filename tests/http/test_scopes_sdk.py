"""The client on tables of a scope (R8): one lease, many rows of several tables, and no client makes itself stale."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.http.conftest import StartGateway
from tests.http.test_scopes import DDL
from tests.support.interleave import Connect, Connection

from fencepost import Client, StaleToken
from fencepost.client import BadRequest
from fencepost.storage.protecting.protect import protect


@pytest.fixture
async def owner(connect: Connect) -> Connection:
    connection = await connect()
    await connection.execute(DDL)
    for table in ("items", "notes"):
        await protect(connection, table, scope="account/{account_id}", source="builtin")
    return connection


@pytest.fixture
async def url(
    owner: Connection,  # noqa: ARG001 - it makes the tables
    database: str,
    start_gateway: StartGateway,
) -> str:
    return await start_gateway(database)


@pytest.fixture
async def client(url: str) -> AsyncIterator[Client]:
    async with Client(url) as client:
        yield client


async def test_writes_to_several_tables_at_once_do_not_make_each_other_stale(client: Client) -> None:
    """The client does not know yet that the rows share a mark."""
    async with client.lock("account/42", tokens=1) as lease:
        await asyncio.gather(
            *(client.patch("items", key, {"n": 7}, lease=lease) for key in (1, 2)),
            *(client.put("notes", (42, number), {"note": "x"}, lease=lease) for number in range(1, 6)),
            *(client.post("items", {"id": 10 + number, "account_id": 42}, lease=lease) for number in range(3)),
            client.patch_where("items", {"account_id": "eq.42"}, {"n": 8}, lease=lease),
        )
        await client.delete("notes", (42, 1), lease=lease)
    answer = await client.fence("account/42")
    assert answer.tables == ("items", "notes")
    assert answer.mark
    assert len(await client.select("notes", {"account_id": "eq.42"})) == 4


async def test_a_lock_named_after_the_scope_claims_it(client: Client, owner: Connection) -> None:
    async with client.lock("account/42", claim=True) as lease:
        mark = (await client.fence("account/42")).mark or 0
        assert mark == await owner.fetchval("SELECT last_fence_token FROM fencepost.marks")
        assert await lease.claim("account/42") is None, "a scope has no row"
        assert ((await client.fence("items/1")).mark or 0) > mark > 0
        with pytest.raises(BadRequest):
            await lease.claim("items/1")


async def test_a_superseded_holder_learns_by_whom(client: Client, url: str) -> None:
    async with client.lock("account/42", claim=True) as lease:
        old = await lease.next_token()
    async with Client(url, owner="successor") as other, other.lock("account/42", claim=True) as newer:
        await other.put("notes", (42, 1), {"note": "theirs"}, lease=newer)
        with pytest.raises(StaleToken) as refused:
            await client.patch("items", 1, {"n": 1}, token=old)
    assert (refused.value.resource, refused.value.presented_token) == ("account/42", old)
    assert "successor" in str(refused.value)
