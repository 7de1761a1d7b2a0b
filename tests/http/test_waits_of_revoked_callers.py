"""Streams and waits end with the caller's token: its time, its API key, or its JWT's key in the JWKS."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import asyncpg
import httpx
import pytest
from tests.support.asking import EC, RSA, Queued, bearer, claims, public, queueing, sign
from tests.support.gateways import FOR_ALL
from tests.support.interleave import Connection
from tests.support.servers import jwks_server

from fencepost.server.fence.caller import Caller
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.locks.builtin import PostgresLocks
from fencepost.server.locks.leases import TakeResult
from fencepost.server.postgres import api_keys
from fencepost.server.times import IdentityTimes, Times
from fencepost.testing.servers.processes import PATIENCE, eventually

STREAM = {"Accept": "text/event-stream"}
ELECTION = "/v1/elections/events?name=eu"

WAIT = {"lock": "job", "ttl_ms": 60_000, "wait_ms": 3_600_000}
Sent = Callable[[str], httpx.Request]
WAYS: dict[str, tuple[Sent, Callable[[Gateway], int], int]] = {
    "election": (lambda _: request("GET", ELECTION), lambda gateway: gateway.watches.count, 200),
    "lock": (lambda _: request("POST", "/v1/leases", json=WAIT), lambda gateway: gateway.waiters.count, 401),
    "stream": (lambda place: request("GET", place, headers=STREAM), lambda gateway: gateway.results.count, 200),
    "wait": (lambda place: request("GET", f"{place}?wait=3600"), lambda gateway: gateway.results.count, 401),
}
"""What is sent (the page of a queued write is given), what shows that it waits, and how it is answered."""


def request(method: str, path: str, **more: Any) -> httpx.Request:
    return httpx.Request(method, f"http://localhost{path}", **more)


@pytest.fixture
async def owner(demo_database: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(demo_database)
    yield connection
    await connection.close()


@pytest.fixture
async def queued(demo_database: str) -> AsyncIterator[Queued]:
    async with queueing(demo_database, api_keys=True, max_wait=3600) as queued:
        yield queued


async def begun(waiting: Callable[[], int], asked: asyncio.Task[httpx.Response]) -> None:
    """Wait until the request waits."""

    async def reached() -> bool:
        assert not asked.done(), asked.result().text
        return waiting() == 1

    await eventually(reached, what="the request waiting")


@pytest.mark.parametrize("way", WAYS)
async def test_it_ends_with_the_api_key(queued: Queued, owner: Connection, way: str) -> None:
    http, gateway = queued.api.http, queued.gateway
    (_, other), (key_id, key) = [await api_keys.create(owner, FOR_ALL) for _ in range(2)]
    held = await http.post("/v1/leases", json={"lock": "job", "ttl_ms": 60_000}, headers=bearer(other))
    assert held.status_code == 201, held.text
    asynchronous = bearer(other) | {"X-Fence-Token": "40", "Prefer": "respond-async"}
    place = (await http.delete("/v1/data/orders/order-123", headers=asynchronous)).headers["location"]
    sent, waiting, status = WAYS[way]
    mine = sent(place)
    mine.headers.update(bearer(key))
    async with asyncio.timeout(PATIENCE):
        asked = asyncio.create_task(http.send(mine))
        await begun(lambda: waiting(gateway), asked)
        await api_keys.revoke(owner, key_id)
        answer = await asked
    assert answer.status_code == status, answer.text
    assert status == 200 or answer.json()["code"] == "FP037"
    metrics = (await http.get("/metrics", headers=bearer(other))).text
    assert ('fencepost_callers_refused_total{code="FP037"} 1.0' in metrics) == (status == 401), "it is counted"
    await eventually(lambda: _none(lambda: waiting(gateway)), what="nobody waiting")


async def _none(waiting: Callable[[], int]) -> bool:
    return waiting() == 0


@pytest.mark.parametrize(("change", "secret", "kept"), [("revoke", False, 0), ("revoke", True, 0), ("rotate", True, 1)])
async def test_a_lock_that_is_granted_as_the_key_ends_is_kept_for_who_can_ask_again(
    queued: Queued, owner: Connection, monkeypatch: pytest.MonkeyPatch, change: str, secret: bool, kept: int
) -> None:
    (_, other), (key_id, key) = [await api_keys.create(owner, FOR_ALL) for _ in range(2)]
    take = PostgresLocks.take

    async def ended_meanwhile(locks: PostgresLocks, *asked: Any) -> TakeResult:
        taken = await take(locks, *asked)
        if change == "revoke":
            await api_keys.revoke(owner, key_id)
        else:
            await api_keys.rotate(owner, key_id, overlap=0, expires_in=None)
        await asyncio.wait((asked[-1],))
        return taken

    monkeypatch.setattr(PostgresLocks, "take", ended_meanwhile)
    chosen = {"X-Lease-Secret": "mine-and-of-no-other-client"} if secret else {}
    async with asyncio.timeout(PATIENCE):
        answer = await queued.api.http.post("/v1/leases", json=WAIT, headers=bearer(key) | chosen)
    assert (answer.status_code, answer.json()["code"]) == (401, "FP037"), answer.text
    assert len((await queued.api.http.get("/v1/locks", headers=bearer(other))).json()) == kept


async def test_it_ends_with_the_key_that_signed_the_jwt(demo_database: str) -> None:
    times = Times(identity=IdentityTimes(jwks_asked_every=0))
    async with (
        jwks_server(public(RSA)) as server,
        queueing(demo_database, times, jwt_jwks=server.url, jwt_role_claim_key="") as queued,
        asyncio.timeout(PATIENCE),
    ):
        mine = bearer(sign(claims(), RSA, "RS256", kid="rsa-1"))
        asked = asyncio.create_task(queued.api.http.get(ELECTION, headers=mine))
        await begun(lambda: queued.gateway.watches.count, asked)
        server.give(public(EC))
        other = bearer(sign(claims(), EC, "ES256", kid="ec-1"))  # an unknown kid has the set fetched anew
        assert (await queued.api.http.get("/v1/locks", headers=other)).status_code == 200
        assert (await asked).status_code == 200


@pytest.mark.parametrize(("way", "shown"), [("election", "event: vacant"), ("stream", "queued"), ("wait", "queued")])
async def test_it_ends_with_the_time_of_the_callers_token(
    demo_database: str, monkeypatch: pytest.MonkeyPatch, way: str, shown: str
) -> None:
    async with queueing(demo_database, max_wait=3600) as queued, asyncio.timeout(PATIENCE):
        asynchronous = {"X-Fence-Token": "40", "Prefer": "respond-async"}
        place = (await queued.api.http.delete("/v1/data/orders/order-123", headers=asynchronous)).headers["location"]
        ended = Caller("ann", ends=asyncio.get_running_loop().time())
        monkeypatch.setattr("fencepost.server.http.app.EVERYBODY", ended)  # whose requests these are
        answer = await queued.api.http.send(WAYS[way][0](place))
    assert answer.status_code == 200
    assert shown in answer.text, "it has begun, and has ended"
