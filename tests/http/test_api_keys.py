"""API keys at live gateways: who is let in, and how soon a key that has changed is refused everywhere."""

import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest
from tests.http.conftest import StartGateway
from tests.support.interleave import Connect, Connection
from tests.support.serving import serving

from fencepost.storage.identity import api_keys
from fencepost.storage.identity.api_keys import NewKey
from fencepost.testing.servers.waiting import PATIENCE, eventually

ORDERS = "/v1/data/orders?select=order_id&limit=1"
FOR_ALL = NewKey(None, ("read", "write", "lock"), None, None, "")
SOON = 10.0
"""Seconds. Far less than a verified key is kept where nothing announces its end."""


@pytest.fixture
async def owner(connect: Connect) -> Connection:
    return await connect()


@pytest.fixture
async def gateways(demo_database: str, start_gateway: StartGateway) -> AsyncIterator[list[httpx.AsyncClient]]:
    """Give two gateways on one database, as two workers are."""
    async with AsyncExitStack() as stack:
        urls = [await start_gateway(demo_database, api_keys=True) for _ in range(2)]
        yield [
            await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=PATIENCE, trust_env=False))
            for url in urls
        ]


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


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
    for made_up in (f"fp_{key_id}_{secret}", f"fp_0000_{secret}", f"{key}0", key[:-1], f"fp_{key_id}_{'0' * 48}"):
        assert await ask(gateway, made_up) == unknown, "a wrong secret and an unknown id are one answer"
    for mangled in (f"fp_{key_id}", f"fp_{key_id}_", f"fp__{secret}", f"fp_{key_id}_{secret}_", "fp_"):
        status, detail = await ask(gateway, mangled)
        assert (status, "an API key is fp_ID_SECRET" in detail) == (401, True), mangled
    assert await ask(gateway, key) == (200, "")


async def test_a_key_is_for_what_it_was_made_for(gateways: list[httpx.AsyncClient], owner: Connection) -> None:
    (gateway, _) = gateways
    _, reads = await api_keys.create(owner, NewKey(None, ("read",), None, None, ""))
    assert await ask(gateway, reads) == (200, "")
    write = await gateway.patch(
        "/v1/data/orders/order-123", headers={**bearer(reads), "X-Fence-Token": "34"}, json={"status": "paid"}
    )
    assert (write.status_code, write.json()["code"]) == (403, "FP038")


async def test_a_revoked_key_is_refused_by_all_at_once(gateways: list[httpx.AsyncClient], owner: Connection) -> None:
    key_id, key = await api_keys.create(owner, FOR_ALL)
    assert [await ask(gateway, key) for gateway in gateways] == [(200, "")] * 2
    assert await api_keys.revoke(owner, key_id)
    assert await refused_by_all(gateways, key) == {f"Authorization: the API key {key_id} was revoked."}
    assert not await api_keys.revoke(owner, key_id)


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
    await owner.execute("UPDATE fencepost.api_keys SET old_until = clock_timestamp()")
    assert await refused_by_all(gateways, second) == {
        f"Authorization: the API key {key_id} has a new secret, and this one has ended."
    }
    last = await api_keys.rotate(owner, key_id, overlap=0, expires_in=None)
    await refused_by_all(gateways, third)
    assert await ask(gateways[1], last) == (200, "")


async def test_a_key_ends_when_it_was_to_end(gateways: list[httpx.AsyncClient], owner: Connection) -> None:
    key_id, key = await api_keys.create(owner, NewKey(None, ("read",), None, 3600, ""))
    assert [await ask(gateway, key) for gateway in gateways] == [(200, "")] * 2
    await owner.execute("UPDATE fencepost.api_keys SET expires_at = clock_timestamp()")
    assert await refused_by_all(gateways, key) == {f"Authorization: the API key {key_id} has expired."}


async def test_a_kept_key_ends_by_itself(gateways: list[httpx.AsyncClient], owner: Connection) -> None:
    (gateway, _) = gateways
    await owner.execute("ALTER TABLE fencepost.api_keys DISABLE TRIGGER announce")  # nothing announces it
    _, key = await api_keys.create(owner, NewKey(None, ("read",), None, 2, ""))
    assert await ask(gateway, key) == (200, "")
    await refused_by_all([gateway], key)


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


async def test_a_change_of_keys_loads_no_tables(gateways: list[httpx.AsyncClient], owner: Connection) -> None:
    (gateway, _) = gateways
    key_id, key = await api_keys.create(owner, FOR_ALL)

    async def version() -> str:
        found = re.search(r"version (\d+)", (await gateway.get("/readyz", headers=bearer(key))).json()["catalog"])
        assert found is not None
        return found[1]

    _, other = await api_keys.create(owner, FOR_ALL)
    before = await version()
    await api_keys.rotate(owner, key_id, overlap=3600, expires_in=None)
    await api_keys.revoke(owner, other.split("_")[1])
    await refused_by_all(gateways, other)
    assert await version() == before


@pytest.mark.long("tests of several worker processes")
async def test_all_workers_know_and_no_log_has_the_key(short_dir: Path, owner: Connection, demo_database: str) -> None:
    key_id, key = await api_keys.create(owner, FOR_ALL)
    given = ("--database-url", demo_database, "--workers", "3", "--api-keys", "--log-level", "debug", "--access-log")
    async with serving(short_dir, *given) as gateway, AsyncExitStack() as stack:
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
