"""Callers over HTTP: whose a lease is, which locks a caller sees, what it may send, and when its streams end."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import asyncpg
import httpx
import pytest
from click.testing import CliRunner
from tests.http.conftest import Start
from tests.support.asking import SECRET, bearer, token
from tests.support.gateways import DemoGateway, demo_gateway
from tests.support.manual_clock import UNHURRIED
from tests.support.postgres import ReadyMade

from fencepost.cli.main import main
from fencepost.server.ops.protect import protect
from fencepost.server.times import UpkeepTimes
from fencepost.testing.servers.postgres import run_on
from fencepost.testing.servers.processes import PATIENCE, eventually

ROLE = "callers_web"
LEASE_SECRET = {"X-Lease-Secret": "0123456789abcdef0123456789abcdef"}
ORDERS = "/v1/data/orders?limit=1"
GRANTS = f"""
SELECT pg_advisory_xact_lock(3307);
DO $$ BEGIN
  IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{ROLE}') THEN CREATE ROLE {ROLE}; END IF;
END $$;
GRANT SELECT, INSERT, UPDATE, DELETE ON orders TO {ROLE}"""


def caller(subject: str, **claims: object) -> dict[str, str]:
    return bearer(token(sub=subject, role=ROLE, **claims))


@pytest.fixture(scope="module")
def shared(databases: ReadyMade) -> Iterator[DemoGateway]:
    """Give a gateway on the demo, with a role for its callers."""
    often = replace(UNHURRIED, upkeep=UpkeepTimes(record_every=0.05))
    with demo_gateway(databases, often, jwt_secret=SECRET, roles=ROLE) as gateway:
        asyncio.run(run_on(gateway.dsn, GRANTS))
        yield gateway


async def lease(http: httpx.AsyncClient, who: dict[str, str], lock: str, **asked: object) -> httpx.Response:
    return await http.post("/v1/leases", json={"lock": lock, "ttl_ms": 20_000, **asked}, headers=who | LEASE_SECRET)


async def test_a_lock_that_no_pattern_names_is_403(http: httpx.AsyncClient) -> None:
    mine = caller("ann", locks=["orders/*", "election/eu"])
    assert (await lease(http, mine, "orders/1")).status_code == 201
    for refused in (
        await lease(http, mine, "payments/1"),
        await http.get("/v1/locks", params={"name": "payments/1"}, headers=mine),
        await http.get("/v1/elections", params={"name": "us"}, headers=mine),
        await http.get("/v1/elections/events", params={"name": "us"}, headers=mine),
    ):
        assert (refused.status_code, refused.json()["code"]) == (403, "FP045"), refused.text
    assert (await lease(http, caller("bob"), "payments/1")).status_code == 201
    listed = await http.get("/v1/locks", headers=mine)
    assert [each["name"] for each in listed.json()] == ["orders/1"]


async def test_a_lease_that_no_pattern_names_is_as_one_that_is_not_there(http: httpx.AsyncClient) -> None:
    number = int((await lease(http, caller("bob"), "payments/1")).json()["lease_id"])
    secret = {"X-Lease-Secret": "another-secret-of-32-characters!"}

    async def asked(who: dict[str, str], lease_id: int) -> list[int]:
        place = f"/v1/leases/{lease_id}"
        return [
            (await http.get(place, headers=who)).status_code,
            (await http.post(f"{place}/renew", json={}, headers=who | secret)).status_code,
            (await http.post(f"{place}/tokens", json={}, headers=who | secret)).status_code,
            (await http.delete(place, headers=who | secret)).status_code,
        ]

    mine = caller("ann", locks=["orders/*"])
    assert await asked(mine, number) == await asked(mine, number + 1000) == [410, 410, 410, 204]
    assert await asked(caller("ann"), number) == [200, 410, 410, 410], "who may see it hears that it is held"
    place = f"/v1/leases/{number}"
    renewed = await http.post(f"{place}/renew", json={}, headers=caller("bob") | LEASE_SECRET)
    assert renewed.status_code == 200, "nothing was released"
    narrowed = caller("bob", locks=["orders/*"])
    assert (await http.delete(place, headers=narrowed | LEASE_SECRET)).status_code == 204
    assert (await http.get(place, headers=caller("bob"))).status_code == 410, "one's own is released all the same"


async def test_too_many_requests_of_one_caller_or_with_bad_tokens_are_429(
    http: httpx.AsyncClient, shared: DemoGateway, start_gateway: Start
) -> None:
    assert "ratelimit" not in (await http.get(ORDERS, headers=caller("ann"))).headers, "there is no limit"
    limits = {"rate_limit": "3/minute", "failed_rate_limit": "2/minute"}
    url = await start_gateway(shared.dsn, jwt_secret=SECRET, roles=ROLE, **limits)
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, trust_env=False) as limited:
        ann, bob = caller("ann"), caller("bob")
        answers = [await limited.get(ORDERS, headers=ann) for _ in range(4)]
        other = await limited.get(ORDERS, headers=bob)
        cat, line = caller("cat"), '{"method":"PATCH","path":"orders/none","token":9,"body":{"status":"paid"}}\n'
        ndjson = {"Content-Type": "application/x-ndjson"}
        batch = await limited.post("/v1/batch", content=line, headers=cat | ndjson)
        whole = await limited.post("/v1/batch?atomic=true", content=line, headers=cat | ndjson)
        tried = [await limited.get(ORDERS, headers=bearer(f"a.b.{n}")) for n in range(3)]
        good = await limited.get(ORDERS, headers=bob)
    assert (batch.status_code, batch.json()["status"], whole.status_code) == (200, 404, 429), "four of three"
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert (answers[3].json()["code"], other.status_code) == ("FP046", 200)
    assert [answer.headers["ratelimit"].split(";")[1] for answer in answers] == ["r=2", "r=1", "r=0", "r=0"]
    assert {answer.headers["ratelimit-policy"] for answer in answers} == {'"caller";q=3;w=60'}
    assert 0 < int(answers[3].headers["retry-after"]) <= 60
    assert [answer.status_code for answer in (*tried, good)] == [401, 401, 429, 200]


@pytest.fixture
async def builtin(shared: DemoGateway, http: httpx.AsyncClient) -> AsyncIterator[None]:
    """Let the table take tokens of leases only; the gateway knows it, which tells whose token is newer."""
    connection = await asyncpg.connect(shared.dsn)

    async def take(source: str) -> None:
        await protect(connection, "orders", source=source)

        async def known() -> bool:
            fence = await http.get("/v1/fences", params={"resource": "orders/order-123"}, headers=caller("ann"))
            return bool(fence.json()["source"] == source)

        await eventually(known, what=f"the gateway notified of the source {source}")

    await take("builtin")
    yield
    await take("external")
    await connection.close()


@pytest.mark.usefixtures("builtin")
async def test_a_lock_that_is_not_for_the_caller_is_not_named_by_what_it_fences(http: httpx.AsyncClient) -> None:
    granted = await lease(http, caller("ann"), "job/secret-name", claim=["orders/order-123"], tokens=2)
    assert granted.status_code == 201, granted.text
    first, second = granted.json()["tokens"]
    place = "/v1/data/orders/order-123"
    written = await http.patch(place, json={"status": "paid"}, headers=caller("ann") | {"X-Fence-Token": second})
    assert written.status_code == 200
    bob = caller("bob")
    for who, sees in ((bob, True), (caller("bob", locks=["other/*"]), False), (caller("bob", locks=[]), False)):
        stale = await http.patch(place, json={"status": "new"}, headers=who | {"X-Fence-Token": first})
        assert (stale.status_code, stale.json()["code"]) == (409, "FP001")
        fence = await http.get("/v1/fences", params={"resource": "orders/order-123"}, headers=who)
        assert ("secret-name" in stale.text, "secret-name" in fence.text) == (sees, sees)


async def test_callers_of_one_role_share_their_keys(http: httpx.AsyncClient) -> None:
    """So that the lock's next holder may repeat what the one before has begun."""
    place, headers = "/v1/data/orders/order-123", {"X-Fence-Token": "40", "Idempotency-Key": "pay-7"}
    first = await http.patch(place, json={"status": "paid"}, headers=headers | caller("ann"))
    again = await http.patch(place, json={"status": "paid"}, headers=headers | caller("bob"))
    assert (first.status_code, again.status_code) == (200, 200)
    assert again.headers["idempotent-replayed"] == "true"


async def test_refusals_for_who_the_caller_is_are_kept_as_counts(http: httpx.AsyncClient, shared: DemoGateway) -> None:
    for _ in range(3):
        await lease(http, caller("eve", locks=["orders/*"]), "payments/1")
    await http.get(ORDERS, headers=caller("eve", scope="write"))
    await http.get(ORDERS, headers=bearer("a.b.c"))
    await http.get(ORDERS)
    connection = await asyncpg.connect(shared.dsn)

    async def recorded() -> bool:
        rows = await connection.fetch("SELECT caller, code, count FROM fencepost.refusals")
        of_eve = {row["code"]: row["count"] for row in rows if row["caller"].endswith("eve")}
        of_nobody = {row["code"] for row in rows if row["caller"] == "address 127.0.0.1"}
        return of_eve == {"FP045": 3, "FP038": 1} and of_nobody >= {"FP036", "FP037"}

    await eventually(recorded, what="the refusals")
    await connection.close()
    metrics = (await http.get("/metrics", headers=caller("ann"))).text
    assert 'fencepost_callers_refused_total{code="FP045"}' in metrics
    status = await asyncio.to_thread(CliRunner().invoke, main, ["status", "--database-url", shared.dsn])
    assert "FP045" in status.output
