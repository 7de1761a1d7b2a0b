"""Which host a request names, and which pages of the web may send one."""

import httpx
from tests.http.conftest import StartGateway
from tests.http.raw import ask

from fencepost.server.http.openapi_answers import HEADERS

LEASE = {"lock": "nightly", "ttl_ms": 3_600_000, "owner": "me"}


async def test_another_host_is_421(gateway_url: str) -> None:
    for host in ("evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.nip.io"):
        for path in ("/v1/data/orders", "/v1/locks", "/healthz"):
            answer = await ask(gateway_url, f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            assert (answer.status, answer.body["code"]) == (421, "FP031"), path
            assert answer.body["hint"] == f"FENCEPOST_ALLOWED_HOSTS={host.partition(':')[0]} allows it.", path


async def test_a_request_has_one_host(gateway_url: str) -> None:
    for version, hosts, status in (
        ("1.1", "", 400),
        ("1.1", "Host: localhost\r\nHost: localhost\r\n", 400),
        ("1.1", "Host: localhost\r\nHost: evil.example\r\n", 400),
        ("1.0", "Host: localhost\r\nHost: evil.example\r\n", 400),
        ("1.1", "Host: a b\r\n", 400),
        ("1.1", "Host: \r\n", 400),
        ("1.1", "Host: localhost@evil.example\r\n", 400),
        ("1.0", "", 200),
        ("1.0", "Host: evil.example\r\n", 421),
    ):
        answer = await ask(gateway_url, f"GET /v1/data/orders HTTP/{version}\r\n{hosts}\r\n".encode())
        assert answer.status == status, (version, hosts, status)


async def test_a_page_of_another_site_may_not_write(http: httpx.AsyncClient) -> None:
    for headers in (
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:1"},
        [("Origin", "https://evil.example"), ("Origin", "https://evil.example")],
        [("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Site", "same-origin")],
        {"Sec-Fetch-Site": "Cross-Site"},
    ):
        for method, path in (("POST", "/v1/leases"), ("PATCH", "/v1/data/orders/order-123")):
            answer = await http.request(method, path, json=LEASE, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (403, "FP032"), (method, path)
            assert (await http.get("/v1/locks")).json() == [], (method, path)


async def test_the_origin_null_is_no_host_of_a_request_without_one(gateway_url: str) -> None:
    head = b"POST /v1/leases HTTP/1.0\r\nOrigin: null\r\nContent-Type: application/json\r\nContent-Length: 12\r\n\r\n"
    answer = await ask(gateway_url, head + b'{"lock":"x"}')
    assert (answer.status, answer.body["code"]) == (403, "FP032")


async def test_hosts_and_pages_that_are_allowed_are_served(demo_database: str, start_gateway: StartGateway) -> None:
    url = await start_gateway(
        demo_database, cors_origins="https://shop.example", allowed_hosts="Shop.example, 10.0.0.5"
    )
    page = {"Origin": "https://shop.example", "Sec-Fetch-Site": "cross-site"}
    asked = {"Access-Control-Request-Method": "PATCH", "Access-Control-Request-Headers": "x-fence-token"}
    async with httpx.AsyncClient(base_url=url) as client:
        for host, status in (("shop.example:443", 200), ("10.0.0.5", 200), ("localhost", 200), ("10.0.0.6", 421)):
            assert (await client.get("/v1/data/orders", headers={"Host": host})).status_code == status
        before = await client.request("OPTIONS", "/v1/data/orders/order-123", headers={**page, **asked})
        assert (before.status_code, before.headers["access-control-allow-origin"]) == (200, "https://shop.example")
        written = await client.patch(
            "/v1/data/orders/order-123", json={"status": "shipped"}, headers={**page, "X-Fence-Token": "1301"}
        )
        assert (written.status_code, written.headers["access-control-allow-origin"]) == (200, "https://shop.example")
        for path in ("/v1/data/orders", "/v1/locks"):
            read = await client.get(path, headers=page)
            assert read.headers["access-control-allow-origin"] == "https://shop.example"
            shown = set(read.headers["access-control-expose-headers"].split(", "))
            assert shown >= HEADERS.keys(), "all headers of answers that OpenAPI describes"
        large = {**page, "X-Large": "x" * 70_000}
        refused = await client.get("/v1/data/orders", headers=large)
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (431, "https://shop.example")
        assert refused.headers["access-control-expose-headers"] == read.headers["access-control-expose-headers"]
        others = await client.get("/v1/data/orders", headers=large | {"Origin": "https://evil.example"})
        assert (others.status_code, "access-control-allow-origin" in others.headers) == (431, False)
        other = await client.post("/v1/leases", json=LEASE, headers={"Origin": "https://evil.example"})
        assert other.status_code == 403
