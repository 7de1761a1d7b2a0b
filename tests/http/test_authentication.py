"""Authentication, on both stacks: who is let in, what is open, what refusals say, and what stays out of the logs."""

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import asyncpg
import pytest
from tests.http.conftest import StartGateway
from tests.support.asking import RSA, SECRET, Api, bearer, claims, forged, public, sign, token
from tests.support.gateways import DemoGateway, demo_gateway
from tests.support.postgres import ReadyMade
from tests.support.servers import jwks_server

ROUTES = [
    ("GET", "/v1/data/orders", "read"),
    ("GET", "/v1/data/orders/order-123", "read"),
    ("HEAD", "/v1/data/orders", "read"),
    ("POST", "/v1/data/orders", "write"),
    ("PATCH", "/v1/data/orders/order-123", "write"),
    ("PUT", "/v1/data/orders/order-123", "write"),
    ("DELETE", "/v1/data/orders/order-123", "write"),
    ("GET", "/v1/fences?resource=orders/order-123", "read"),
    ("POST", "/v1/claims", "write"),
    ("POST", "/v1/batch", "write"),
    ("GET", "/v1/writes/postgres:default.3.17.5d0f6c2b9a8e4471", "write"),
    ("POST", "/v1/leases", "lock"),
    ("DELETE", "/v1/leases", "lock"),
    ("GET", "/v1/leases/1", "lock"),
    ("POST", "/v1/leases/1/renew", "lock"),
    ("POST", "/v1/leases/1/tokens", "lock"),
    ("DELETE", "/v1/leases/1", "lock"),
    ("GET", "/v1/locks", "lock"),
    ("GET", "/v1/locks/x", "lock"),
    ("GET", "/v1/elections", "lock"),
    ("GET", "/v1/elections/x", "lock"),
    ("GET", "/v1/elections/events?names=x", "lock"),
]
NAMED = ["/openapi.json", "/metrics", "/v1", "/v1/nothing", "/nothing", "/healthz/", "/v1/data", "/docs/x"]
OPEN = ["/healthz", "/docs", "/docs/assets/docs.js", "/problems", "/problems/stale-token", "/readyz", "/"]
ALL = [*((method, path) for method, path, _ in ROUTES), *(("GET", path) for path in NAMED)]


@asynccontextmanager
async def gateway(start: StartGateway, database: str, **settings: object) -> AsyncIterator[Api]:
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
        b"/v1/data/../../healthz",
        b"/v1/data/orders/..%2F..%2Fhealthz",
        b"/healthz%2f..%2fmetrics",
        b"/%2e/metrics",
        b"//healthz",
    ):
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


REFUSED = {
    "expired": (token(exp=1), "it has expired"),
    "none": (forged({"alg": "none"}, claims()), "alg"),
    "not a token": ("abc", "no credential of a kind"),
    "too long": ("x" * 9000, "more than 8192 bytes"),
}


async def test_a_token_that_is_not_accepted_is_401(api: Api) -> None:
    for credential, why in REFUSED.values():
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


async def test_an_anonymous_role_reads_and_writes_and_takes_no_locks(
    demo_database: str, start_gateway: StartGateway
) -> None:
    connection = await asyncpg.connect(demo_database)
    try:
        if not await connection.fetchval("SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = 'anon_of_tests')"):
            await connection.execute("CREATE ROLE anon_of_tests")
        await connection.execute("GRANT SELECT, INSERT ON orders TO anon_of_tests")
    finally:
        await connection.close()
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
    demo_database: str, start_gateway: StartGateway
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


async def test_keys_that_cannot_be_had_are_503(demo_database: str, start_gateway: StartGateway) -> None:
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
async def alone(demo_database: str, start_gateway: StartGateway) -> AsyncIterator[Api]:
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


async def test_the_document_says_how_to_authenticate(api: Api, demo_database: str, start_gateway: StartGateway) -> None:
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
