"""Who asks: JWTs and API keys, waits of callers whose key is revoked, claims as Supabase has them, and roles."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator, MutableMapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from starlette.types import Receive, Scope, Send
from tests.http.conftest import Start
from tests.support.asking import (
    EC,
    LOGIN,
    NOTHING,
    READER,
    RSA,
    SECRET,
    WEB,
    Api,
    Queued,
    acting,
    bearer,
    claims,
    code,
    forged,
    public,
    queueing,
    sign,
    token,
)
from tests.support.gateways import FOR_ALL, DemoGateway, demo_gateway, in_process, serving_process
from tests.support.gateways import serving as serving_here
from tests.support.interleave import Connect, Connection, connection_to
from tests.support.postgres import ReadyMade, Unmade
from tests.support.racing import ORDERS as ROLE_ORDERS
from tests.support.racing import open_race
from tests.support.servers import jwks_server
from tests.support.use_cases import Sent, patch_line

from fencepost.server.fence.caller import CALLER, Caller
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.locks.builtin import PostgresLocks
from fencepost.server.ops.protect import protect
from fencepost.server.postgres import api_keys
from fencepost.server.postgres.api_keys import NewKey
from fencepost.server.postgres.leases import Acquired
from fencepost.server.startup import StartupError
from fencepost.server.times import TIMES, IdentityTimes, Times
from fencepost.testing.servers.processes import PATIENCE, eventually

# Authentication, on both stacks: who is let in, what is open, what refusals say, and what stays out of the logs.

ROUTES = [
    ("GET", "/v1/data/orders", "read"), ("GET", "/v1/data/orders/order-123", "read"),
    ("HEAD", "/v1/data/orders", "read"), ("POST", "/v1/data/orders", "write"),
    ("PATCH", "/v1/data/orders/order-123", "write"), ("PUT", "/v1/data/orders/order-123", "write"),
    ("DELETE", "/v1/data/orders/order-123", "write"), ("GET", "/v1/fences?resource=orders/order-123", "read"),
    ("POST", "/v1/claims", "write"), ("POST", "/v1/batch", "write"),
    ("GET", "/v1/writes/postgres:default.3.17.5d0f6c2b9a8e4471", "write"), ("POST", "/v1/leases", "lock"),
    ("DELETE", "/v1/leases", "lock"), ("GET", "/v1/leases/1", "lock"), ("POST", "/v1/leases/1/renew", "lock"),
    ("POST", "/v1/leases/1/tokens", "lock"), ("DELETE", "/v1/leases/1", "lock"), ("GET", "/v1/locks", "lock"),
    ("GET", "/v1/locks/x", "lock"), ("GET", "/v1/elections", "lock"), ("GET", "/v1/elections/x", "lock"),
    ("GET", "/v1/elections/events?names=x", "lock"),
]  # fmt: skip
NAMED = ["/openapi.json", "/metrics", "/v1", "/v1/nothing", "/nothing", "/healthz/", "/v1/data", "/docs/x"]
OPEN = ["/healthz", "/docs", "/docs/assets/docs.js", "/problems", "/problems/stale-token", "/readyz", "/"]
ALL = [*((method, path) for method, path, _ in ROUTES), *(("GET", path) for path in NAMED)]


@asynccontextmanager
async def gateway(start: Start, database: str, **settings: object) -> AsyncIterator[Api]:
    given = {"jwt_secret": SECRET, "jwt_role_claim_key": ""} | settings
    async with Api.open(await start(database, **given)) as api:
        yield api


@pytest.fixture(scope="module")
def shared(databases: ReadyMade) -> Iterator[DemoGateway]:
    """Give a gateway that wants tokens, and takes no roles from them."""
    with demo_gateway(databases, jwt_secret=SECRET, jwt_role_claim_key="") as gateway:
        yield gateway


@pytest.fixture
async def api(gateway_url: str) -> AsyncIterator[Api]:
    async with Api.open(gateway_url) as api:
        yield api


async def test_a_request_without_a_token_is_401_on_every_route(api: Api) -> None:
    for method, path in ALL:
        answer = await api.http.request(method, path)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), (method, path)
        if method != "HEAD":
            assert answer.json()["code"] == "FP036"
            await api.check_problem(401, answer.headers, answer.content)


async def test_a_path_that_is_spelled_another_way_is_not_open(api: Api) -> None:
    for path in (
        b"/v1/data/../../healthz", b"/v1/data/orders/..%2F..%2Fhealthz", b"/healthz%2f..%2fmetrics", b"/%2e/metrics",
        b"//healthz",
    ):  # fmt: skip
        assert (await api.raw("GET", path)).status == 401, path


async def test_what_has_no_data_is_open(api: Api) -> None:
    for path in OPEN:
        answer = await api.http.get(path)
        assert (answer.status_code, "www-authenticate" in answer.headers) == (200, False), path
    assert (await api.http.get("/readyz")).json() == {"status": "ready"}
    index = (await api.http.get("/")).text
    assert "order" not in index.partition("<h2>Tables</h2>")[2]
    for link in re.findall('href="([^"#]+)"', index):
        assert (await api.http.get(f"/{link}")).status_code == 200, link


async def test_a_known_caller_is_served_on_both_stacks(api: Api) -> None:
    headers = bearer(token())
    for _ in range(2):  # verified, then known
        assert (await api.http.get("/v1/data/orders/order-123", headers=headers)).status_code == 200
        assert (await api.http.get("/v1/locks", headers=headers)).status_code == 200
    for path in NAMED[:2]:
        assert (await api.http.get(path, headers=headers)).status_code == 200
    assert "database" in (await api.http.get("/readyz", headers=headers)).json()
    assert "orders" in (await api.http.get("/", headers=headers)).text
    written = await api.http.patch(
        "/v1/data/orders/order-123", json={"status": "shipped"}, headers=headers | {"X-Fence-Token": "34"}
    )
    assert written.status_code == 200
    leased = await api.http.post("/v1/leases", json={"locks": ["x"]}, headers=headers)
    assert leased.status_code == 201


async def test_a_token_that_is_not_accepted_is_401(api: Api) -> None:
    refused = {
        "expired": (token(exp=1), "it has expired"), "none": (forged({"alg": "none"}, claims()), "alg"),
        "not a token": ("abc", "no credential of a kind"), "too long": ("x" * 9000, "more than 8192 bytes"),
    }  # fmt: skip
    for credential, why in refused.values():
        for method, path in (("GET", "/v1/data/orders"), ("GET", "/v1/locks"), ("GET", "/readyz"), ("GET", "/")):
            answer = await api.http.request(method, path, headers=bearer(credential))
            assert (answer.status_code, answer.json()["code"]) == (401, "FP037"), why
            assert why in answer.json()["detail"], why
            challenge = answer.headers["www-authenticate"]
            assert challenge.startswith('Bearer error="invalid_token", error_description="'), why
            assert why in challenge, why
            assert credential not in answer.text + challenge, why
        assert (await api.http.get("/healthz", headers=bearer(credential))).status_code == 200, why  # not looked at


async def test_what_is_no_bearer_credential(api: Api) -> None:
    answer = await api.http.get("/v1/data/orders", auth=("postgres", "postgres"))
    assert (answer.status_code, answer.json()["code"]) == (401, "FP036")
    assert (answer.headers["www-authenticate"], "not Bearer" in answer.json()["detail"]) == ("Bearer", True)
    good = f"Bearer {token()}".encode()
    for path in (b"/v1/data/orders", b"/v1/locks"):
        twice = await api.raw("GET", path, headers=[(b"Authorization", good), (b"authorization", good)])
        assert (twice.status, twice.json()["code"]) == (400, "FP016")
        assert twice.json()["detail"].startswith("Authorization: 2 headers")


async def test_a_scope_that_is_missing_is_403(api: Api) -> None:
    for scope in ("read", "write", "lock", "openid"):
        headers = bearer(token(scope=scope))
        for method, path, needed in ROUTES:
            if path.startswith("/v1/elections/events") and needed == scope:
                continue  # a stream
            answer = await api.http.request(method, path, headers=headers)
            assert (answer.status_code == 403) is (needed != scope), (method, path, scope)
            if needed != scope:
                challenge = answer.headers["www-authenticate"]
                assert challenge.startswith('Bearer error="insufficient_scope"')
                assert challenge.endswith(f'scope="{needed}"')
                assert method == "HEAD" or answer.json()["code"] == "FP038"
        for path in ("/openapi.json", "/metrics"):
            assert (await api.http.get(path, headers=headers)).status_code == 200


async def test_a_lease_that_claims_needs_both_scopes(api: Api) -> None:
    body = {"locks": ["x"], "claim": ["orders/order-123"]}
    lock = await api.http.post("/v1/leases", json=body, headers=bearer(token(scope="lock read")))
    assert (lock.status_code, lock.json()["code"], lock.json()["scope"]) == (403, "FP038", "write")
    both = await api.http.post("/v1/leases", json=body, headers=bearer(token(scope="lock write")))
    assert both.status_code == 201


async def test_an_anonymous_role_reads_and_writes_and_takes_no_locks(demo_database: str, start_gateway: Start) -> None:
    async with connection_to(demo_database) as connection:
        if not await connection.fetchval("SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = 'anon_of_tests')"):
            await connection.execute("CREATE ROLE anon_of_tests")
        await connection.execute("GRANT SELECT, INSERT ON orders TO anon_of_tests")
    async with gateway(start_gateway, demo_database, anon_role="anon_of_tests", roles="anon_of_tests") as api:
        assert (await api.http.get("/openapi.json")).status_code == 200
        assert 'data-before=""' in (await api.http.get("/docs")).text, "it shows the tables to this role"
        assert (await api.http.get("/readyz")).json() == {"status": "ready"}
        for path in ("/v1/locks", "/v1/elections", "/metrics"):
            answer = await api.http.get(path)
            assert (answer.status_code, answer.json()["code"]) == (401, "FP036")
        assert (await api.http.post("/v1/data/orders", json={})).status_code not in (401, 403)
        bad = await api.http.get("/v1/data/orders", headers=bearer(token(exp=1)))
        assert (bad.status_code, bad.json()["code"]) == (401, "FP037")


async def test_a_preflight_is_answered_and_the_request_after_it_needs_a_token(
    demo_database: str, start_gateway: Start
) -> None:
    async with gateway(start_gateway, demo_database, cors_origins="https://shop.example") as api:
        origin = {"Origin": "https://shop.example"}
        asked = {"Access-Control-Request-Method": "PATCH", "Access-Control-Request-Headers": "authorization"}
        preflight = await api.http.options("/v1/data/orders/order-123", headers=origin | asked)
        assert preflight.status_code == 200
        assert "authorization" in preflight.headers["access-control-allow-headers"].lower()
        answer = await api.http.get("/v1/data/orders", headers=origin)
        assert answer.status_code == 401
        assert answer.headers["access-control-allow-origin"] == "https://shop.example"
        assert "WWW-Authenticate" in answer.headers["access-control-expose-headers"]


async def test_keys_that_cannot_be_had_are_503(demo_database: str, start_gateway: Start) -> None:
    async with jwks_server(public(RSA)) as server:
        server.says = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"
        async with gateway(start_gateway, demo_database, jwt_secret=None, jwt_jwks=server.url) as api:
            headers = bearer(sign(claims(), RSA, "RS256"))
            for path in ("/v1/data/orders", "/v1/locks"):
                answer = await api.http.get(path, headers=headers)
                assert (answer.status_code, answer.json()["code"]) == (503, "FP039")
                await api.check_problem(503, answer.headers, answer.content)
            assert (await api.http.get("/readyz")).status_code == 503


@pytest.fixture
async def alone(demo_database: str, start_gateway: Start) -> AsyncIterator[Api]:
    """Give a gateway that nobody was refused at: of many refusals a second not all are logged."""
    async with gateway(start_gateway, demo_database) as api:
        yield api


async def test_refusals_are_counted_and_logged_with_the_peer_and_without_the_token(
    alone: Api, caplog: pytest.LogCaptureFixture
) -> None:
    credential = token(exp=1)
    await alone.http.get("/v1/data/orders", headers=bearer(credential))
    metrics = (await alone.http.get("/metrics", headers=bearer(token()))).text
    logged = caplog.text
    assert "FP037" in logged
    assert "127.0.0.1" in logged
    assert not any(part in logged for part in credential.split("."))
    assert 'fencepost_requests_turned_away_total{code="FP037"} 1.0' in metrics


async def test_a_queued_write_is_found_by_its_whole_id_only(api: Api) -> None:
    asked = bearer(token(sub="ann")) | {"X-Fence-Token": "40", "Prefer": "respond-async"}
    queued = await api.http.patch("/v1/data/orders/order-123", json={"status": "paid"}, headers=asked)
    assert queued.status_code == 202
    place = queued.headers["location"]
    assert (await api.http.get(f"{place}?wait=20", headers=bearer(token(sub="ann")))).json()["state"] == "applied"
    guessed = await api.http.get(place.rpartition(".")[0], headers=bearer(token(sub="bob")))
    assert (guessed.status_code, guessed.json()["code"]) == (404, "FP029")


async def test_the_document_says_how_to_authenticate(api: Api, demo_database: str, start_gateway: Start) -> None:
    document = (await api.http.get("/openapi.json", headers=bearer(token()))).json()
    assert document["security"] == [{"token": []}]
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    paths = document["paths"]
    assert paths["/healthz"]["get"]["security"] == []
    assert paths["/readyz"]["get"]["security"] == [{}, {"token": []}]
    for path, item in paths.items():
        for operation in item.values():
            assert ("401" in operation["responses"]) is (path != "/healthz"), path
    async with Api.open(await start_gateway(demo_database)) as open_to_all:
        assert "security" not in (await open_to_all.http.get("/openapi.json")).json()
        looked_at = await open_to_all.http.get("/v1/data/orders", headers=bearer("x.y.z"))
        assert looked_at.status_code == 200, "without authentication a token is not looked at"


# API keys at live gateways: who is let in, and how soon a key that has changed is refused everywhere.

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
    async with connection_to(served[0].dsn) as connection:
        yield connection
        await connection.execute("ALTER TABLE fencepost.api_keys ENABLE TRIGGER announce")


@pytest.fixture
async def gateways(served: list[DemoGateway]) -> AsyncIterator[list[httpx.AsyncClient]]:
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


# Streams and waits end with the caller's token: its time, its API key, or its JWT's key in the JWKS.

STREAM = {"Accept": "text/event-stream"}
ELECTION = "/v1/elections/events?name=eu"

WAIT = {"lock": "job", "ttl_ms": 60_000, "wait_ms": 3_600_000}
Waiting = Callable[[str], httpx.Request]
WAYS: dict[str, tuple[Waiting, Callable[[Gateway], int], int]] = {
    "election": (lambda _: request("GET", ELECTION), lambda gateway: gateway.watches.count, 200),
    "lock": (lambda _: request("POST", "/v1/leases", json=WAIT), lambda gateway: gateway.waiters.count, 401),
    "stream": (lambda place: request("GET", place, headers=STREAM), lambda gateway: gateway.results.count, 200),
    "wait": (lambda place: request("GET", f"{place}?wait=3600"), lambda gateway: gateway.results.count, 401),
}
"""What is sent (the page of a queued write is given), what shows that it waits, and how it is answered."""


def request(method: str, path: str, **more: Any) -> httpx.Request:
    return httpx.Request(method, f"http://localhost{path}", **more)


@pytest.fixture
async def key_owner(demo_database: str) -> AsyncIterator[Connection]:
    async with connection_to(demo_database) as connection:
        yield connection


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
async def test_it_ends_with_the_api_key(queued: Queued, key_owner: Connection, way: str) -> None:
    http, gateway = queued.api.http, queued.gateway
    (_, other), (key_id, key) = [await api_keys.create(key_owner, FOR_ALL) for _ in range(2)]
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
        await api_keys.revoke(key_owner, key_id)
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
    queued: Queued, key_owner: Connection, monkeypatch: pytest.MonkeyPatch, change: str, secret: bool, kept: int
) -> None:
    (_, other), (key_id, key) = [await api_keys.create(key_owner, FOR_ALL) for _ in range(2)]
    take = PostgresLocks.take

    async def ended_meanwhile(locks: PostgresLocks, *asked: Any) -> Acquired:
        taken = await take(locks, *asked)
        if change == "revoke":
            await api_keys.revoke(key_owner, key_id)
        else:
            await api_keys.rotate(key_owner, key_id, overlap=0, expires_in=None)
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
        monkeypatch.setattr("fencepost.server.http.data.EVERYBODY", ended)  # whose requests these are
        answer = await queued.api.http.send(WAYS[way][0](place))
    assert answer.status_code == 200
    assert shown in answer.text, "it has begun, and has ended"


# Claims as Supabase's and PostgREST's JWTs have them, and the policy that docs/roles.md gives for them.

PAGE = Path(__file__).parents[2] / "docs" / "roles.md"
SQL = re.compile(r"<!-- run by tests/http/test_identity.py -->\n```sql\n(.*?)```", re.DOTALL)
ROLES = """
SELECT pg_advisory_xact_lock(3308);
DO $$ BEGIN
  IF to_regrole('authenticated') IS NULL THEN
    CREATE ROLE anon; CREATE ROLE authenticated; CREATE ROLE service_role BYPASSRLS;
  END IF;
END $$"""
ANN, BOB = str(uuid4()), str(uuid4())


def of(user: str, **claims: object) -> dict[str, str]:
    """Give the headers of a user's request."""
    supabase = {"iss": "https://project.example/auth/v1", "sub": user, "role": "authenticated", "aud": "authenticated"}
    more = {"email": "ann@example.com", "is_anonymous": False, "app_metadata": {"provider": "email"}}
    return bearer(token(**{**supabase, **more, **claims})) | {"X-Fence-Token": "40"}


@pytest.fixture
async def notes(database: str) -> AsyncIterator[str]:
    found = SQL.search(PAGE.read_text("utf-8"))
    assert found is not None
    async with connection_to(database) as connection:
        await connection.execute(ROLES)
        await connection.execute(found[1])
        await protect(connection, "notes")
        yield database


async def shown(http: httpx.AsyncClient, headers: dict[str, str]) -> list[object]:
    answer = await http.get("/v1/data/notes?select=id,user_id", headers=headers)
    assert answer.status_code == 200, answer.text
    return list(answer.json())


async def test_a_policy_with_auth_uid_gives_each_user_its_own_rows(notes: str) -> None:
    settings: dict[str, Any] = {"jwt_secret": SECRET, "roles": "anon,authenticated", "anon_role": "anon"}
    async with in_process(notes, jwt_aud="authenticated", **settings) as http:
        made = await http.post("/v1/data/notes", json={"id": 1, "body": "hers"}, headers=of(ANN))
        assert made.status_code == 201, made.text
        assert [row["user_id"] for row in made.json()] == [ANN]
        assert await shown(http, of(ANN)) == [{"id": 1, "user_id": ANN}]
        assert (await shown(http, of(BOB)), await shown(http, {})) == ([], [])
        for method in ("PATCH", "DELETE"):
            body = {"body": "his"} if method == "PATCH" else None
            later = of(BOB) | {"X-Fence-Token": "41"}
            theirs = await http.request(method, "/v1/data/notes/1", headers=later, json=body)
            assert code(theirs) == (404, "FP006"), theirs.text
        forged = await http.post("/v1/data/notes", json={"id": 2, "user_id": ANN}, headers=of(BOB))
        assert code(forged) == (403, "42501")
        nobodys = await http.post("/v1/data/notes", json={"id": 3}, headers={"X-Fence-Token": "41"})
        assert (code(nobodys), nobodys.headers["WWW-Authenticate"]) == ((401, "42501"), "Bearer"), "as PostgREST says"
        mine = await http.patch("/v1/data/notes/1", json={"body": "mine"}, headers=of(ANN) | {"X-Fence-Token": "41"})
        assert mine.json()["body"] == "mine"
        assert code(await http.get("/v1/data/notes", headers=of(ANN, role="service_role"))) == (403, "FP043")
        assert code(await http.get("/v1/data/notes", headers=of(ANN, aud=None))) == (401, "FP037")
    async with in_process(notes, **settings) as http:
        assert code(await http.get("/v1/data/notes", headers=of(ANN))) == (401, "FP037")


# Requests whose caller has a role of the database, by HTTP. Who the caller is says a header here, by a stand-in for
# the authenticator; all else is the product.

GRANTED = f"""
GRANT SELECT, INSERT, UPDATE, DELETE ON orders TO {WEB}; GRANT SELECT ON orders TO {READER};
CREATE ROLE t_plain"""


class FromHeader:
    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: MutableMapping[bytes, bytes] = dict(scope.get("headers", []))
        role = headers.get(b"x-test-role")
        if role is not None:
            name = headers.get(b"x-test-name", role + b"-1").decode()
            claims = headers.get(b"x-test-claims", b"").decode()
            scope = {**scope, CALLER: Caller(name, role=role.decode(), claims=claims)}
        await self.app(scope, receive, send)


@asynccontextmanager
async def serving_roles(dsn: str, times: Times = TIMES, /, **settings: object) -> AsyncIterator[httpx.AsyncClient]:
    async with in_process(dsn, times, **settings) as client:
        transport = client._transport  # noqa: SLF001
        assert isinstance(transport, httpx.ASGITransport)
        transport.app = FromHeader(transport.app)
        yield client


@pytest.fixture
async def dsn(connect: Connect, unmade: Unmade) -> AsyncIterator[str]:
    """Give a database with the order k, and the URL by which the gateway logs in."""
    race = await open_race(connect, unmade, ddl=ROLE_ORDERS)
    await race.insert(race.a, "k", 30)
    try:
        async with acting(race.observer, race.dsn, GRANTED) as stage:
            yield stage.dsn
    finally:
        await race.observer.execute("DROP ROLE IF EXISTS t_plain")


def ask_as(role: str, token: int = 40, **more: str) -> dict[str, str]:
    return {"X-Test-Role": role, "X-Fence-Token": str(token), **more}


REQUESTS: dict[str, tuple[str, str, object]] = {
    "GET row": ("GET", "/v1/data/orders/k", None), "GET rows": ("GET", "/v1/data/orders", None),
    "PATCH": ("PATCH", "/v1/data/orders/k", {"n": 1}), "PATCH rows": ("PATCH", "/v1/data/orders?n=eq.0", {"n": 1}),
    "PUT": ("PUT", "/v1/data/orders/k", {"n": 1}), "POST": ("POST", "/v1/data/orders", {"order_id": "n"}),
    "DELETE": ("DELETE", "/v1/data/orders/k", None), "claim": ("POST", "/v1/claims", {"resource": "orders/k"}),
    "fences": ("GET", "/v1/fences?resource=orders/k", None),
    "lease": ("POST", "/v1/leases", {"locks": ["l"], "ttl_ms": 60000, "claim": ["orders/k"]}),
}  # fmt: skip


LOCK = {"locks": ["l"], "ttl_ms": 60000}


async def send(client: httpx.AsyncClient, name: str, role: str) -> httpx.Response:
    method, path, body = REQUESTS[name]
    headers = ask_as(role)
    if method == "GET" or name == "lease":
        del headers["X-Fence-Token"]
    return await client.request(method, path, json=body, headers=headers)


async def test_a_role_that_is_not_allowed_is_refused_on_every_route(dsn: str) -> None:
    async with serving_roles(dsn, roles=f" {READER} ,{NOTHING},t_plain") as client:
        for name in REQUESTS:
            answer = await send(client, name, "t_plain")
            assert code(answer) == (403, "FP043"), name
            assert f"GRANT t_plain TO {LOGIN}" in answer.json()["detail"]
            answer = await send(client, name, WEB)
            assert code(answer) == (403, "FP043"), name
            assert "FENCEPOST_ROLES" in answer.json()["detail"]
            answer = await send(client, name, NOTHING)
            assert code(answer) == (403, "42501"), (name, answer.text)
            answer = await send(client, name, READER)
            assert answer.is_success is (name in ("GET row", "GET rows", "fences")), (name, answer.text)
        row = await send(client, "GET row", READER)
        assert row.json()["n"] == 0, "nothing was written"
        locked = await client.post("/v1/leases", json=LOCK, headers={"X-Test-Role": "t_plain"})
        assert locked.status_code == 201, "a lock by itself needs no role of the database"


async def test_a_role_writes_and_without_a_caller_the_login_acts_as_before(dsn: str) -> None:
    async with serving_roles(dsn) as client:
        answer = await client.patch("/v1/data/orders/k", json={"n": 7}, headers=ask_as(WEB))
        assert (answer.status_code, answer.json()["n"]) == (200, 7)
        queued = await client.patch("/v1/data/orders/k", json={"n": 1}, headers=ask_as(WEB, Prefer="respond-async"))
        assert code(queued) == (403, "FP044")
        assert "--seal-keys-file" in queued.json()["hint"]
        answer = await client.get("/v1/data/orders/k")
        assert code(answer) == (403, "42501"), "it may do nothing by itself"
        assert (await client.post("/v1/leases", json=LOCK)).status_code == 201


@pytest.mark.parametrize(
    ("settings", "starts"), [({}, False), ({"roles": WEB}, True), ({"jwt_role_claim_key": ""}, True)], ids=str
)
async def test_a_superuser_needs_a_list_of_roles(database: str, settings: dict[str, object], *, starts: bool) -> None:
    """A JWT could name any role there."""
    opened = serving_roles(database, jwt_secret="x" * 32, **settings)
    if starts:
        async with opened:
            return
    with pytest.raises(StartupError, match="FENCEPOST_ROLES"):
        await opened.__aenter__()
