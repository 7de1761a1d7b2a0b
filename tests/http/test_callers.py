"""Callers over HTTP: whose a lease is, which locks a caller sees, what it may send, and when its streams end."""

import asyncio
import time
from collections.abc import AsyncIterator

import asyncpg
import httpx
import pytest
from click.testing import CliRunner
from joserfc import jwt
from joserfc.jwk import OctKey
from tests.http.conftest import StartGateway

from fencepost.cli.main import main
from fencepost.storage.protecting.protect import protect
from fencepost.testing.servers.waiting import PATIENCE, eventually
from fencepost.times import Times, UpkeepTimes

SECRET = "a secret of a test, of more than 32 bytes"
ROLE = "callers_web"
LEASE_SECRET = "0123456789abcdef0123456789abcdef"


def bearer(subject: str, *, lives: float = 3600, **claims: object) -> dict[str, str]:
    """Give the header of a caller."""
    payload = {"sub": subject, "role": ROLE, "exp": int(time.time() + lives), **claims}  # noqa: TID251 - a claim of the wall clock
    return {"Authorization": f"Bearer {jwt.encode({'alg': 'HS256'}, payload, OctKey.import_key(SECRET))}"}


@pytest.fixture
async def served(demo_database: str) -> str:
    """Give the demo's database, with a role for the callers."""
    connection = await asyncpg.connect(demo_database)
    try:
        if not await connection.fetchval("SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)", ROLE):
            await connection.execute(f"CREATE ROLE {ROLE}")
        await connection.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON orders TO {ROLE}")
    finally:
        await connection.close()
    return demo_database


@pytest.fixture
async def http(served: str, start_gateway: StartGateway) -> AsyncIterator[httpx.AsyncClient]:
    url = await start_gateway(served, jwt_secret=SECRET, roles=ROLE)
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, trust_env=False) as client:
        yield client


async def lease(http: httpx.AsyncClient, caller: dict[str, str], lock: str, **asked: object) -> httpx.Response:
    headers = caller | {"X-Lease-Secret": LEASE_SECRET}
    return await http.post("/v1/leases", json={"lock": lock, "ttl_ms": 20_000, **asked}, headers=headers)


async def test_the_secret_of_a_lease_is_of_no_use_to_another_caller(http: httpx.AsyncClient) -> None:
    granted = await lease(http, bearer("ann"), "job")
    assert granted.status_code == 201
    place = f"/v1/leases/{granted.json()['lease_id']}"
    for caller, expected in ((bearer("bob"), 410), (bearer("ann"), 200), (bearer("ann", exp_of="another token"), 200)):
        secret = {"X-Lease-Secret": LEASE_SECRET}
        assert (await http.post(f"{place}/renew", json={}, headers=caller | secret)).status_code == expected
        assert (await http.post(f"{place}/tokens", json={}, headers=caller | secret)).status_code == expected


async def test_a_lock_that_no_pattern_names_is_403(http: httpx.AsyncClient) -> None:
    mine = bearer("ann", locks=["orders/*", "election/eu"])
    assert (await lease(http, mine, "orders/1")).status_code == 201
    for refused in (
        await lease(http, mine, "payments/1"),
        await http.get("/v1/locks", params={"name": "payments/1"}, headers=mine),
        await http.get("/v1/elections", params={"name": "us"}, headers=mine),
        await http.get("/v1/elections/events", params={"name": "us"}, headers=mine),
    ):
        assert (refused.status_code, refused.json()["code"]) == (403, "FP045"), refused.text
    assert (await lease(http, bearer("bob"), "payments/1")).status_code == 201
    listed = await http.get("/v1/locks", headers=mine)
    assert [each["name"] for each in listed.json()] == ["orders/1"]


async def test_a_lease_that_no_pattern_names_is_as_one_that_is_not_there(http: httpx.AsyncClient) -> None:
    granted = await lease(http, bearer("bob"), "payments/1")
    number = int(granted.json()["lease_id"])
    secret = {"X-Lease-Secret": "another-secret-of-32-characters!"}

    async def asked(caller: dict[str, str], lease_id: int) -> list[int]:
        place = f"/v1/leases/{lease_id}"
        return [
            (await http.get(place, headers=caller)).status_code,
            (await http.post(f"{place}/renew", json={}, headers=caller | secret)).status_code,
            (await http.post(f"{place}/tokens", json={}, headers=caller | secret)).status_code,
            (await http.delete(place, headers=caller | secret)).status_code,
        ]

    mine = bearer("ann", locks=["orders/*"])
    assert await asked(mine, number) == await asked(mine, number + 1000) == [410, 410, 410, 204]
    assert await asked(bearer("ann"), number) == [200, 410, 410, 410], "who may see it hears that it is held"
    kept = {"X-Lease-Secret": LEASE_SECRET}
    renewed = await http.post(f"/v1/leases/{number}/renew", json={}, headers=bearer("bob") | kept)
    assert renewed.status_code == 200, "nothing was released"


async def test_a_lease_of_ones_own_is_released_also_when_the_patterns_have_changed(http: httpx.AsyncClient) -> None:
    granted = await lease(http, bearer("ann"), "payments/1")
    place, secret = f"/v1/leases/{granted.json()['lease_id']}", {"X-Lease-Secret": LEASE_SECRET}
    released = await http.delete(place, headers=bearer("ann", locks=["orders/*"]) | secret)
    assert released.status_code == 204
    assert (await http.get(place, headers=bearer("ann"))).status_code == 410


async def test_a_stream_ends_with_the_callers_token(http: httpx.AsyncClient) -> None:
    """The token ended a moment ago: within the skew that is allowed it is accepted, and nothing is left to wait."""
    short = bearer("ann", lives=-28)
    async with (
        asyncio.timeout(PATIENCE),
        http.stream("GET", "/v1/elections/events", params={"name": "eu"}, headers=short) as stream,
    ):
        assert stream.status_code == 200
        events = (await stream.aread()).decode()
    assert "event: vacant" in events, "it has begun, and has ended"


async def test_too_many_requests_of_one_caller_are_429(served: str, start_gateway: StartGateway) -> None:
    url = await start_gateway(served, jwt_secret=SECRET, roles=ROLE, rate_limit="3/minute")
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, trust_env=False) as http:
        answers = [await http.get("/v1/data/orders?limit=1", headers=bearer("ann")) for _ in range(4)]
        other = await http.get("/v1/data/orders?limit=1", headers=bearer("bob"))
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert (answers[3].json()["code"], other.status_code) == ("FP046", 200)
    assert [answer.headers["ratelimit"].split(";")[1] for answer in answers] == ["r=2", "r=1", "r=0", "r=0"]
    assert {answer.headers["ratelimit-policy"] for answer in answers} == {'"caller";q=3;w=60'}
    assert 0 < int(answers[3].headers["retry-after"]) <= 60


async def test_without_a_limit_answers_have_no_such_field(http: httpx.AsyncClient) -> None:
    assert "ratelimit" not in (await http.get("/v1/data/orders?limit=1", headers=bearer("ann"))).headers


async def test_an_address_that_tries_tokens_is_not_looked_at(served: str, start_gateway: StartGateway) -> None:
    url = await start_gateway(served, jwt_secret=SECRET, roles=ROLE, failed_rate_limit="2/minute")
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, trust_env=False) as http:
        good = bearer("ann")
        assert (await http.get("/v1/data/orders?limit=1", headers=good)).status_code == 200
        tried = [await http.get("/v1/data/orders", headers={"Authorization": f"Bearer a.b.{n}"}) for n in range(3)]
        assert [answer.status_code for answer in tried] == [401, 401, 429]
        assert (await http.get("/v1/data/orders?limit=1", headers=good)).status_code == 200


@pytest.mark.parametrize("patterns", [["other/*"], []])
async def test_a_lock_that_is_not_for_the_caller_is_not_named_by_what_it_fences(
    served: str, start_gateway: StartGateway, patterns: list[str]
) -> None:
    connection = await asyncpg.connect(served)
    await protect(connection, "orders", source="builtin")
    await connection.close()
    url = await start_gateway(served, jwt_secret=SECRET, roles=ROLE)
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, trust_env=False) as http:
        granted = await lease(http, bearer("ann"), "job/secret-name", claim=["orders/order-123"], tokens=2)
        assert granted.status_code == 201, granted.text
        first, second = granted.json()["tokens"]
        place = "/v1/data/orders/order-123"
        written = await http.patch(place, json={"status": "paid"}, headers=bearer("ann") | {"X-Fence-Token": second})
        assert written.status_code == 200
        for caller, sees in ((bearer("bob"), True), (bearer("bob", locks=patterns), False)):
            stale = await http.patch(place, json={"status": "new"}, headers=caller | {"X-Fence-Token": first})
            assert (stale.status_code, stale.json()["code"]) == (409, "FP001")
            fence = await http.get("/v1/fences", params={"resource": "orders/order-123"}, headers=caller)
            assert ("secret-name" in stale.text, "secret-name" in fence.text) == (sees, sees)


async def test_a_queued_write_is_found_by_its_whole_id_only(served: str, start_gateway: StartGateway) -> None:
    url = await start_gateway(served, jwt_secret=SECRET, jwt_role_claim_key="")
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, trust_env=False) as http:
        asked = bearer("ann") | {"X-Fence-Token": "40", "Prefer": "respond-async"}
        queued = await http.patch("/v1/data/orders/order-123", json={"status": "paid"}, headers=asked)
        assert queued.status_code == 202
        place = queued.headers["location"]
        assert (await http.get(f"{place}?wait=20", headers=bearer("ann"))).json()["state"] == "applied"
        guessed = await http.get(place.rpartition(".")[0], headers=bearer("bob"))
        assert (guessed.status_code, guessed.json()["code"]) == (404, "FP029")


async def test_callers_of_one_role_share_their_keys(http: httpx.AsyncClient) -> None:
    """So that the lock's next holder may repeat what the one before has begun."""
    headers = {"X-Fence-Token": "40", "Idempotency-Key": "pay-7"}
    body = {"status": "paid"}
    first = await http.patch("/v1/data/orders/order-123", json=body, headers=headers | bearer("ann"))
    again = await http.patch("/v1/data/orders/order-123", json=body, headers=headers | bearer("bob"))
    assert (first.status_code, again.status_code) == (200, 200)
    assert again.headers["idempotent-replayed"] == "true"


async def test_refusals_for_who_the_caller_is_are_recorded_as_counts(served: str, start_gateway: StartGateway) -> None:
    times = Times(upkeep=UpkeepTimes(record_every=0.05))
    url = await start_gateway(served, times, jwt_secret=SECRET, roles=ROLE)
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, trust_env=False) as http:
        for _ in range(3):
            await lease(http, bearer("ann", locks=["orders/*"]), "payments/1")
        await http.get("/v1/data/orders", headers=bearer("ann", scope="write"))
        await http.get("/v1/data/orders", headers={"Authorization": "Bearer a.b.c"})
        await http.get("/v1/data/orders")
        metrics = (await http.get("/metrics", headers=bearer("ann"))).text
    connection = await asyncpg.connect(served)
    try:

        async def all_recorded() -> dict[tuple[str, str], int] | None:
            rows = await connection.fetch("SELECT caller, code, count FROM fencepost.refusals")
            found = {(row["caller"], row["code"]): row["count"] for row in rows}
            return found if sum(found.values()) == 6 else None

        found = await eventually(all_recorded, what="six refusals")
    finally:
        await connection.close()
    assert {code: count for (caller, code), count in found.items() if caller.endswith("ann")} == {
        "FP045": 3,
        "FP038": 1,
    }
    assert {code for (caller, code) in found if caller == "address 127.0.0.1"} == {"FP036", "FP037"}
    assert 'fencepost_callers_refused_total{code="FP045"} 3.0' in metrics
    status = await asyncio.to_thread(CliRunner().invoke, main, ["status", "--database-url", served])
    assert "FP045" in status.output
