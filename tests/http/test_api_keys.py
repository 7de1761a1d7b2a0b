"""API keys at live gateways: who is let in, and how soon a key that has changed is refused everywhere."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import asyncpg
import httpx
import pytest
from tests.support.asking import bearer
from tests.support.gateways import FOR_ALL, DemoGateway, demo_gateway, serving_process
from tests.support.gateways import serving as serving_here
from tests.support.interleave import Connection
from tests.support.postgres import ReadyMade
from tests.support.use_cases import Sent, patch_line

from fencepost.server.postgres import api_keys
from fencepost.server.postgres.api_keys import NewKey
from fencepost.testing.servers.processes import PATIENCE, eventually

ORDERS = "/v1/data/orders?select=order_id&limit=1"
SOON = 10.0
"""Seconds. Far less than a verified key is kept where nothing announces its end."""


@pytest.fixture(scope="module")
def served(databases: ReadyMade) -> Iterator[list[DemoGateway]]:
    """Run two gateways on one database, as two workers are."""
    keys = {"api_keys": True}
    with demo_gateway(databases, **keys) as one, serving_here(one.dsn, **keys) as url:
        yield [one, DemoGateway(url, one.dsn)]


@pytest.fixture
async def owner(served: list[DemoGateway]) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(served[0].dsn)
    yield connection
    await connection.execute("ALTER TABLE fencepost.api_keys ENABLE TRIGGER announce")
    await connection.close()


@pytest.fixture
async def gateways(served: list[DemoGateway]) -> AsyncIterator[list[httpx.AsyncClient]]:
    """Give a client of each of the two."""
    async with AsyncExitStack() as stack:
        clients = [httpx.AsyncClient(base_url=each.url, timeout=PATIENCE, trust_env=False) for each in served]
        yield [await stack.enter_async_context(client) for client in clients]


async def ask(gateway: httpx.AsyncClient, key: str) -> tuple[int, str]:
    """Read a row; return the status, and the detail of the refusal."""
    answer = await gateway.get(ORDERS, headers=bearer(key))
    body = answer.json()
    return answer.status_code, "" if answer.is_success else str(body["detail"])


async def refused_by_all(gateways: list[httpx.AsyncClient], key: str) -> set[str]:
    """Wait until each gateway refuses a key; return what they say."""

    async def said() -> set[str] | None:
        answers = [await ask(gateway, key) for gateway in gateways]
        return {detail for _, detail in answers} if all(status == 401 for status, _ in answers) else None

    return await eventually(said, within=SOON, what="that all gateways refuse the key")


async def test_a_key_lets_in_and_nothing_else_does(gateways: list[httpx.AsyncClient], owner: Connection) -> None:
    (gateway, _) = gateways
    key_id, key = await api_keys.create(owner, FOR_ALL)
    assert await ask(gateway, key) == (200, "")
    nobody = await gateway.get(ORDERS)
    assert (nobody.status_code, nobody.json()["code"]) == (401, "FP036")
    assert nobody.headers["www-authenticate"].startswith("Bearer")
    unknown = (401, "Authorization: the gateway has no such API key.")
    _, of_another = await api_keys.create(owner, FOR_ALL)
    secret = of_another.split("_")[2]
    for made_up in (f"fp_{key_id}_{secret}", f"fp_0000_{secret}", key[:-1]):
        assert await ask(gateway, made_up) == unknown, "a wrong secret and an unknown id are one answer"
    for mangled in (f"fp_{key_id}", f"fp__{secret}", f"fp_{key_id}_{secret}_"):
        status, detail = await ask(gateway, mangled)
        assert (status, "an API key is fp_ID_SECRET" in detail) == (401, True), mangled
    assert await ask(gateway, key) == (200, "")
    _, reads = await api_keys.create(owner, NewKey(None, ("read",), None, None, ""))
    assert await ask(gateway, reads) == (200, "")
    for method, path in (("PATCH", "/v1/data/orders/order-123"), ("POST", "/v1/leases")):
        refused = await gateway.request(method, path, headers=bearer(reads))
        assert (refused.status_code, refused.json()["code"]) == (403, "FP038"), path


async def test_a_revoked_key_is_refused_by_all_at_once(gateways: list[httpx.AsyncClient], owner: Connection) -> None:
    key_id, key = await api_keys.create(owner, FOR_ALL)
    assert [await ask(gateway, key) for gateway in gateways] == [(200, "")] * 2
    assert await api_keys.revoke(owner, key_id)
    assert await refused_by_all(gateways, key) == {f"Authorization: the API key {key_id} was revoked."}
    assert not await api_keys.revoke(owner, key_id)


async def test_a_batch_under_way_takes_no_line_after_its_key_was_revoked(
    served: list[DemoGateway], gateways: list[httpx.AsyncClient], owner: Connection
) -> None:
    key_id, key = await api_keys.create(owner, FOR_ALL)
    sent = await Sent.open(served[0].url, key)
    await sent.send(patch_line("order-123", 2001, note="before"))
    assert ((await sent.next()) or {})["status"] == 200
    await owner.execute("NOTIFY fencepost, 'keys'")
    await sent.send(patch_line("order-123", 2002, note="it is looked up again, and good"))
    assert ((await sent.next()) or {})["status"] == 200
    await api_keys.revoke(owner, key_id)
    await refused_by_all(gateways, key)
    await sent.send(patch_line("order-123", 2003, note="after"))
    assert await sent.rest() == [
        {"stopped": True, "lines": 2, "reason": "The caller's token or key is to be shown again."}
    ]
    sent.connection.close()


async def test_a_rotated_key_has_its_old_secret_for_the_overlap_only(
    gateways: list[httpx.AsyncClient], owner: Connection
) -> None:
    key_id, first = await api_keys.create(owner, FOR_ALL)
    assert [await ask(gateway, first) for gateway in gateways] == [(200, "")] * 2
    second = await api_keys.rotate(owner, key_id, overlap=3600, expires_in=None)
    for key in (first, second):
        assert [await ask(gateway, key) for gateway in gateways] == [(200, "")] * 2
    third = await api_keys.rotate(owner, key_id, overlap=3600, expires_in=None)
    await refused_by_all(gateways, first)
    assert [(await ask(gateways[0], key))[0] for key in (first, second, third)] == [401, 200, 200]
    await owner.execute("UPDATE fencepost.api_keys SET old_until = clock_timestamp() WHERE id = $1", key_id)
    assert await refused_by_all(gateways, second) == {
        f"Authorization: the API key {key_id} has a new secret, and this one has ended."
    }
    last = await api_keys.rotate(owner, key_id, overlap=0, expires_in=None)
    await refused_by_all(gateways, third)
    assert await ask(gateways[1], last) == (200, "")


async def test_a_kept_key_ends_by_itself(gateways: list[httpx.AsyncClient], owner: Connection) -> None:
    (gateway, _) = gateways
    await owner.execute("ALTER TABLE fencepost.api_keys DISABLE TRIGGER announce")  # nothing announces it
    _, key = await api_keys.create(owner, NewKey(None, ("read",), None, 2, ""))
    assert await ask(gateway, key) == (200, "")
    assert "has expired." in (await refused_by_all([gateway], key)).pop()


async def test_a_key_is_found_out_when_its_announcement_was_lost(
    gateways: list[httpx.AsyncClient], owner: Connection
) -> None:
    key_id, key = await api_keys.create(owner, FOR_ALL)
    assert [await ask(gateway, key) for gateway in gateways] == [(200, "")] * 2
    await owner.execute("ALTER TABLE fencepost.api_keys DISABLE TRIGGER announce")
    await api_keys.revoke(owner, key_id)
    assert [await ask(gateway, key) for gateway in gateways] == [(200, "")] * 2, "it is kept: else this shows nothing"
    ended = await owner.fetch(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name = 'fencepost listener' AND datname = current_database()"
    )
    assert len(ended) == 2
    assert await refused_by_all(gateways, key) == {f"Authorization: the API key {key_id} was revoked."}


@pytest.mark.long("tests of several worker processes")
async def test_all_workers_know_and_no_log_has_the_key(
    short_dir: Path, owner: Connection, served: list[DemoGateway]
) -> None:
    key_id, key = await api_keys.create(owner, FOR_ALL)
    given = ("--database-url", served[0].dsn, "--workers", "3", "--api-keys", "--log-level", "debug", "--access-log")
    async with serving_process(short_dir, *given) as gateway, AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(httpx.AsyncClient(base_url=gateway.url, timeout=PATIENCE, trust_env=False))
            for _ in range(9)  # each has a connection of its own: they are spread over the workers
        ]
        for client in clients:
            assert await ask(client, key) == (200, "")
        await clients[0].get(ORDERS, headers=bearer(f"{key}0"))
        await api_keys.revoke(owner, key_id)
        await refused_by_all(clients, key)
        log = gateway.errors.read_text()
    assert key_id in log, "a refusal names the key by its id"
    assert key.split("_")[2] not in log
