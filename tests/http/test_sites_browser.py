"""A page of another site, in a real browser: it takes no lease and writes no row."""

import http.server
import threading
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
from playwright.async_api import Page
from tests.http.browser import browser_page, in_a_browser
from tests.http.conftest import StartGateway

pytestmark = [*in_a_browser, pytest.mark.parametrize("postgres", ["embedded-18"], indirect=True)]

LEASE = '{"lock": "nightly", "owner": "a page", "ttl_ms": 3600000}'
ATTACKS = """async ([url, body]) => {
    const said = [];
    const json = new Blob([body], {type: 'application/json'});
    for (const sent of [body, new Blob([body]), json, new URLSearchParams({a: body})])
        for (const mode of ['no-cors', 'cors'])
            said.push(await fetch(url, {method: 'POST', mode, body: sent}).then(a => a.status, e => e.name));
    return said;
}"""
ASKS = """async ([url, body]) => {
    const headers = {'Content-Type': 'application/json'};
    return (await fetch(url, {method: 'POST', body, headers})).status;
}"""


class _Empty(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>another site</title>")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def another_site() -> Iterator[str]:
    """Serve a page whose site is localhost; the gateway's is 127.0.0.1."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Empty)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://localhost:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    async with browser_page() as page:
        yield page


async def locks(url: str) -> list[str]:
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
        return [lock["name"] for lock in (await client.get("/v1/locks")).json()]


async def test_a_page_of_another_site_takes_a_lease_only_where_its_site_is_allowed(
    page: Page, demo_database: str, start_gateway: StartGateway, another_site: str
) -> None:
    url = await start_gateway(demo_database)
    await page.goto(another_site)
    said = await page.evaluate(ATTACKS, [f"{url}/v1/leases", LEASE])
    assert set(said) == {0, "TypeError"}, "the page does not learn what became of them"
    assert await locks(url) == []
    # DNS rebinding: for the browser it is the page's own site.
    answer = await page.goto(url.replace("127.0.0.1", "page.localhost") + "/v1/data/orders")
    assert answer is not None
    assert answer.status == 421
    allowed = await start_gateway(demo_database, cors_origins=another_site.rstrip("/"))
    await page.goto(another_site)
    assert await page.evaluate(ASKS, [f"{allowed}/v1/leases", LEASE]) == 201
    assert await locks(url) == ["nightly"]
    await page.goto(f"{url}/docs")
    assert await page.evaluate(ASKS, ["/v1/leases", LEASE.replace("nightly", "daily")]) == 201
    assert sorted(await locks(url)) == ["daily", "nightly"]
