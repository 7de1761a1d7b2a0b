"""A table that was protected with a queue takes all its writes there, and nothing else."""

from collections.abc import AsyncIterator

import asyncpg
import pytest
from tests.support.asking import Queued, code, queueing
from tests.support.shops import Shop

from fencepost.server.gateway.gateway import DEFAULT_QUEUE
from fencepost.server.ops.protect import protect, unprotect
from fencepost.server.queues.message import read_message
from fencepost.testing.servers.processes import eventually

SQL = """
CREATE TABLE IF NOT EXISTS public.coded (code varchar(3) PRIMARY KEY, n integer);
CREATE TABLE IF NOT EXISTS public.priced (price numeric(5, 2) PRIMARY KEY, n integer);
CREATE TABLE IF NOT EXISTS public.padded (code char(3) PRIMARY KEY, n integer);
CREATE TABLE IF NOT EXISTS public.parcels (parcel_id text PRIMARY KEY, status text NOT NULL DEFAULT 'new')"""


@pytest.fixture
async def queued(shop: Shop) -> AsyncIterator[Queued]:
    connection = await asyncpg.connect(shop.dsn)
    await connection.execute(SQL)
    for table in ("parcels", "coded", "priced", "padded"):
        await protect(connection, table, queue=DEFAULT_QUEUE)
    await connection.close()
    async with queueing(shop.dsn) as queued:
        yield queued


@pytest.mark.parametrize("asked", [None, "respond-async"])
async def test_every_write_of_one_row_is_queued_without_a_token(queued: Queued, asked: str | None) -> None:
    for method, path, body in (
        ("PATCH", "data/parcels/p-1", {"status": "sent"}),
        ("PUT", "data/parcels/p-1", {}),
        ("DELETE", "data/parcels/p-1", None),
        ("POST", "data/parcels", {"parcel_id": "p-1"}),
        ("POST", "data/parcels", [{"parcel_id": "p-1"}]),
    ):
        answer = await queued.api.ask(method, path, body, prefer=asked)
        assert (answer.status_code, answer.headers.get("preference-applied")) == (202, asked), (method, path, body)
        assert answer.json()["queue"] == DEFAULT_QUEUE, (method, path, body)
        message = read_message((await queued.messages())[-1])
        assert (message.method, message.resource, message.token) == (method, "parcels/p-1", None), (method, path, body)


async def test_what_cannot_be_queued_is_refused_by_name(queued: Queued) -> None:
    for method, path, body, token, named in (
        ("PATCH", "data/parcels/p-1", {"status": "sent"}, 7, "X-Fence-Token"),
        ("POST", "data/parcels", [{"parcel_id": "p-1"}, {"parcel_id": "p-2"}], None, "several rows"),
        ("PATCH", "data/parcels?status=eq.new", {"status": "sent"}, None, "several rows"),
        ("PATCH", "data/parcels", [{"parcel_id": "p-1", "status": "sent"}], None, "several rows"),
        ("POST", "claims", {"resource": "parcels/p-1"}, 7, "a claim"),
    ):
        answer = await queued.api.ask(method, path, body, token=token)
        assert code(answer) == (400, "FP016"), (method, path)
        problem = answer.json()
        assert (named in problem["detail"], DEFAULT_QUEUE in problem["detail"]) == (True, True), (method, path)
        assert "X-Fence-Token" in problem["hint"], (method, path)
        assert await queued.messages() == [], (method, path)


async def test_a_lease_cannot_claim_a_row_of_it(queued: Queued) -> None:
    answer = await queued.api.ask("POST", "leases", {"lock": "p", "claim": ["parcels/p-1"]})
    assert code(answer) == (409, "FP008")
    assert "lease" in answer.json()["hint"]


async def test_a_gateway_that_does_not_know_yet_that_the_table_got_a_queue_or_lost_it_looks_before_it_refuses(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its picture the write lacks a token."""
    name = "late_parcels"
    connection = await asyncpg.connect(shop.dsn)
    await connection.execute(f"CREATE TABLE public.{name} (parcel_id text PRIMARY KEY, status text)")
    await protect(connection, name)
    async with queueing(shop.dsn) as queued:
        before = queued.gateway.catalog.current
        lacking = await queued.api.ask("PATCH", f"data/{name}/p-1", {"status": "sent"})
        assert code(lacking) == (428, "FP003")
        await protect(connection, name, queue=DEFAULT_QUEUE)

        async def noticed() -> bool:
            return queued.gateway.catalog.current is not before

        await eventually(noticed, what="the gateway to notice that the table has a queue")
        monkeypatch.setattr(queued.gateway.catalog, "_current", before)  # as if it had not been
        answer = await queued.api.ask("PATCH", f"data/{name}/p-1", {"status": "sent"})
        assert answer.status_code == 202, answer.text
        before = queued.gateway.catalog.current
        await unprotect(connection, name)
        await protect(connection, name)
        await eventually(noticed, what="the gateway to notice that the table has no queue any more")
        for method, token in (("POST", 5), ("PATCH", 6)):  # one row, and several
            monkeypatch.setattr(queued.gateway.catalog, "_current", before)
            answer = await queued.api.ask(method, f"data/{name}", [{"parcel_id": "p-1", "status": "sent"}], token=token)
            assert answer.status_code in {201, 204}, answer.text
    await unprotect(connection, name)
    await connection.execute(f"DROP TABLE {name}")
    await connection.close()


async def test_a_posted_row_is_queued_under_the_name_that_it_has_when_it_is_stored(queued: Queued) -> None:
    """Else its writes would be in two partitions, in no order."""
    expected: list[str] = []
    for body, table, name in (
        ({"code": "abc"}, "coded", "coded/abc"),
        ({"code": "abc "}, "coded", None),
        ({"price": "1.50"}, "priced", "priced/1.5"),
        ({"price": 1.234}, "priced", None),
        ({"code": "abc  "}, "padded", "padded/abc"),
    ):
        answer = await queued.api.ask("POST", f"data/{table}", body)
        if name is None:
            assert code(answer) == (400, "FP016"), (body, table, name)
            assert "would be changed when stored" in answer.json()["detail"], (body, table, name)
        else:
            assert answer.status_code == 202, answer.text
            expected.append(name)
    assert sorted(read_message(each).resource for each in await queued.messages()) == sorted(expected)
